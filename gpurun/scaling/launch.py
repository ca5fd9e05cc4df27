"""One launch of N ranks: as it is asked for, and as it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.measure import summarise_run
from gpurun.measure.events import ProcessLog, read_run
from gpurun.records.codec import to_json
from gpurun.records.events import PARALLEL_REFUSED
from gpurun.records.failure import FailureKind
from gpurun.records.result import RunResult
from gpurun.records.spec import Setting, StopRule
from gpurun.rundir import write_json
from gpurun.scaling.figures import NOT_AT_ONCE, Figures, figures, work_together
from gpurun.trials.ending import failure_of, printed

OWN_EXCHANGE = "ddp"
"""The trait of a script whose DistributedDataParallel is its own."""
DISTRIBUTED = ("process_group", OWN_EXCHANGE)
"""Traits of a script that is distributed by itself."""
APART = "its ranks trained each by itself, and not at the same time"
EXCHANGE = "hidden_ddp"
"""The trait of a rank that was made to exchange gradients with the others."""
NOT_LEFT_OUT = "gradients were exchanged although they were not to be"


@dataclass(frozen=True)
class Order:
    """What to launch: so many ranks, to be stopped by this rule.

    `exchange`: False to leave gradients unexchanged. `first`: what it writes before its first step
    is there for all later launches, and it may take long to get there. `options`: how gradients are
    exchanged, None for what the user asked for. `settings`: knobs to turn, which must apply.
    """

    ranks: int
    rule: StopRule
    exchange: bool = True
    first: bool = False
    options: tuple[Setting, ...] | None = None
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Launch:
    """A finished launch. `figures` is None where `error` says why it is of no use.

    `status`: "measured", "oom", "timeout", "lost" (with a node) or "failed". `distributed`: the
    trait by which the script turned out to be distributed by itself. `together`: whether its ranks
    worked with each other; `switchable`: whether DistributedDataParallel, ours or the script's own,
    exchanges gradients, so that they can be left unexchanged. `whole`: the script came to its own
    end before it had been seen for long enough.
    """

    order: Order
    result: RunResult
    figures: Figures | None
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
        """Whether its ranks trained, together or each by itself."""
        return self.figures is not None or self.error == APART


@dataclass(frozen=True)
class Ended:
    """How its box ended. `given_up`: why it had to be ended from outside, "" if it had not; `lost`:
    that was so because a node is gone."""

    exit_code: int | None
    seconds: float
    given_up: str
    lost: bool = False


def concluded(order: Order, run_dir: Path, ended: Ended, *, strong: bool, alone: bool) -> Launch:
    """What came of a launch; its result is written into its folder.

    `strong`: ranks share each batch. `alone`: the one rank was a plain process.
    """
    logs = read_run(run_dir).processes
    together = work_together(logs)
    enough = sum(log.stop is not None for log in logs) >= order.ranks
    well = not ended.given_up and (enough or ended.exit_code == 0)
    result = summarise_run(
        run_dir,
        exit_code=ended.exit_code,
        wall_seconds=ended.seconds,
        status="timeout" if ended.given_up else "stopped" if well else "failed",
    )
    write_json(run_dir / "result.json", to_json(result))
    status, error, found = "measured", None, None
    refusal = _trait(logs, (PARALLEL_REFUSED,))
    if ended.given_up:
        status, error = "lost" if ended.lost else "timeout", ended.given_up
    elif refusal is not None:
        status, error = _why(run_dir, result)
        if status != "oom":  # by which ranks part ways
            status, error = "failed", refusal.partition(": ")[2].splitlines()[0]
    elif _trait(logs, (EXCHANGE,)) is not None and not order.exchange:
        status, error = "failed", NOT_LEFT_OUT
    elif not well:
        status, error = _why(run_dir, result)
    elif (left := _not_applied(order, logs)) is not None:
        status, error = "failed", left
    else:
        waits = together and order.exchange
        measured = figures(logs, order.ranks, strong=strong, exchange=waits)
        if isinstance(measured, str):
            apart = measured == NOT_AT_ONCE and not together
            status, error = "failed", APART if apart else measured
        else:
            found = measured
    return Launch(
        order=order,
        result=result,
        figures=found,
        status=status,
        error=error,
        folder=run_dir,
        seconds=ended.seconds,
        distributed=_trait(logs, DISTRIBUTED),
        together=together,
        switchable=_trait(logs, (EXCHANGE, OWN_EXCHANGE)) is not None,
        whole=well and not enough,
        printed=printed(run_dir),
    )


def _not_applied(order: Order, logs: tuple[ProcessLog, ...]) -> str | None:
    """Why a knob did not apply on some rank; None where all did that were to."""
    for wanted in order.settings:
        told = [(log, e) for log in logs for e in log.knobs if e.knob == wanted.knob]
        unlike = next((e for _, e in told if e.outcome != "applied"), None)
        if unlike is not None:
            return f"{wanted.knob}: {unlike.detail}"
        if len({log.process.rank for log, _ in told}) < order.ranks:
            return f"{wanted.knob} was not applied on every rank"
    return None


def _why(run_dir: Path, result: RunResult) -> tuple[str, str]:
    failure = failure_of((), run_dir, replace(result, status="failed"))
    assert failure is not None
    return ("oom" if failure.kind is FailureKind.OUT_OF_MEMORY else "failed"), failure.text


def _trait(logs: tuple[ProcessLog, ...], names: tuple[str, ...]) -> str | None:
    """The first trait of these that a process showed, as "name: detail"."""
    found = (t for log in logs for t in log.traits if t.trait in names)
    trait = next(found, None)
    return None if trait is None else f"{trait.trait}: {trait.detail}"
