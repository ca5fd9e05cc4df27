"""One launch of N ranks that has ended: its figures, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpurun.measure.run_events import ProcessLog
from gpurun.records.failure import FailureKind
from gpurun.records.messages.traits import DISTRIBUTED_TRAITS
from gpurun.records.result import RunResult
from gpurun.scaling.launch_figures import NOT_AT_ONCE, LaunchFigures, figures, work_together
from gpurun.scaling.scaling_requests import PlannedLaunch
from gpurun.trials.failure_cause import printed
from gpurun.trials.outcome import Outcome

OWN_EXCHANGE = "ddp"
"""The trait of a script whose DistributedDataParallel is its own."""
APART = "each of its ranks trained by itself, at another time"
EXCHANGE = "hidden_ddp"
"""The trait of a rank that was made to exchange gradients with the others."""
STATUSES = {FailureKind.OUT_OF_MEMORY: "oom", FailureKind.NODE_LOST: "lost"}
NOT_LEFT_OUT = "gradients were exchanged in a launch that should exchange none"


@dataclass(frozen=True)
class FinishedLaunch:
    """A finished launch. `figures` is None where `error` says why it is of no use.

    `status`: "measured", "oom", "timeout", "lost" (with a node) or "failed". `distributed`: the
    trait by which the script turned out to be distributed by itself. `together`: whether its ranks
    worked with each other; `switchable`: whether DistributedDataParallel, ours or the script's own,
    exchanges gradients, so that they can be left unexchanged. `whole`: the script came to its own
    end before it had been seen for long enough.
    """

    planned: PlannedLaunch
    result: RunResult
    figures: LaunchFigures | None
    status: str
    error: str | None
    folder: Path
    seconds: float
    distributed: str | None
    together: bool
    switchable: bool
    whole: bool
    printed: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """True if its ranks trained, together or each by itself."""
        return self.figures is not None or self.error == APART


def launch_of(planned: PlannedLaunch, outcome: Outcome, *, strong: bool) -> FinishedLaunch:
    """The figures of a launch, or why it is of no use. `strong`: ranks share each batch."""
    logs = outcome.logs
    together = work_together(logs)
    status, error, found = "measured", None, None
    unusable = _unusable(planned, outcome)
    if unusable is not None:
        status, error = unusable
    else:
        waits = together and planned.exchange
        measured = figures(logs, planned.ranks, strong=strong, exchange=waits)
        if isinstance(measured, str):
            apart = measured == NOT_AT_ONCE and not together
            status, error = "failed", APART if apart else measured
        else:
            found = measured
    return FinishedLaunch(
        planned=planned,
        result=outcome.result,
        figures=found,
        status=status,
        error=error,
        folder=outcome.run_dir,
        seconds=outcome.seconds,
        distributed=_trait(logs, DISTRIBUTED_TRAITS),
        together=together,
        switchable=_trait(logs, (EXCHANGE, OWN_EXCHANGE)) is not None,
        whole=outcome.result.status == "completed",
        printed=printed(outcome.run_dir),
    )


def _unusable(planned: PlannedLaunch, outcome: Outcome) -> tuple[str, str] | None:
    """Status and reason of a launch that cannot have figures; None where it may have them."""
    failure = outcome.failure
    if failure is not None and failure.kind is not FailureKind.TOO_FEW_STEPS:
        if failure.timed_out:
            return "timeout", failure.text
        return STATUSES.get(failure.kind, "failed"), failure.text
    if _trait(outcome.logs, (EXCHANGE,)) is not None and not planned.exchange:
        return "failed", NOT_LEFT_OUT
    left = _not_applied(planned, outcome.logs)
    return None if left is None else ("failed", left)


def _not_applied(planned: PlannedLaunch, logs: tuple[ProcessLog, ...]) -> str | None:
    """Why a knob did not apply on some rank; None where all did that were to."""
    for wanted in planned.settings:
        told = [(log, e) for log in logs for e in log.knobs if e.knob == wanted.knob]
        unlike = next((e for _, e in told if e.outcome != "applied"), None)
        if unlike is not None:
            return f"{wanted.knob}: {unlike.detail}"
        if len({log.process.rank for log, _ in told}) < planned.ranks:
            return f"{wanted.knob} was not applied on every rank"
    return None


def _trait(logs: tuple[ProcessLog, ...], names: tuple[str, ...]) -> str | None:
    """The first trait of these that a process showed, as "name: detail"."""
    found = (t for log in logs for t in log.traits if t.trait in names)
    trait = next(found, None)
    return None if trait is None else f"{trait.trait}: {trait.detail}"
