"""One launch of N ranks that has ended: its figures, or why there are none."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.measure.measured_window import Window, measured_window
from gpurun.measure.optional_figures import known
from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import CLOCKS, StepRow
from gpurun.records.failure import FailureKind
from gpurun.records.messages.traits import DISTRIBUTED_TRAITS
from gpurun.records.result import RunResult, StepSplit
from gpurun.scaling.scaling_requests import PlannedLaunch
from gpurun.stats.descriptive import mean
from gpurun.trials.failure_cause import printed
from gpurun.trials.outcome import Outcome

OF_ITS_OWN = "it starts several training processes by itself, as many as it likes"
NOT_AT_ONCE = "its ranks did not train at the same time"
COOPERATING = (*DISTRIBUTED_TRAITS, "hidden_ddp")
"""Traits of a rank that works with the others."""


@dataclass(frozen=True)
class LaunchCosts:
    """The figures of all ranks together. `samples_per_second` is None where samples cannot be
    counted.

    `rate`: work a second, in samples or else in the script's batches. `step_time_ms` and `split`
    are the slowest rank's. `imbalance`: the largest own work of a rank over the mean of all; None
    if waiting for others cannot be separated from working. `busiest`: that rank. `steps`: measured
    ones.
    """

    rate: float
    samples_per_second: float | None
    step_time_ms: float
    split: StepSplit | None
    imbalance: float | None
    batch_size: float | None
    steps: int
    busiest: int | None = None


def figures(
    logs: Sequence[ProcessLog], ranks: int, *, strong: bool, exchange: bool
) -> LaunchCosts | str:
    """The figures, or why there are none.

    `strong`: the ranks share each of the script's batches. `exchange`: they waited for each other's
    gradients.
    """
    every = _with_best_clock(logs)
    windows = _one_a_rank(every)
    if any(_beside(window, other) for window in windows for other in every):
        return OF_ITS_OWN
    if len(windows) < ranks:
        if not windows:
            return "no training step was seen: there is nothing to measure"
        return f"only {len(windows)} of {ranks} ranks were seen to train"
    shared = _shared(windows)
    if shared is None:
        return NOT_AT_ONCE
    slowest = max(shared, key=_step_ms)
    rates = [window.samples_per_second for window in shared]
    counted = known(rates)
    samples = sum(counted) if len(counted) == len(rates) else None
    batches = sum(1000.0 / _step_ms(window) for window in shared)
    busy = _own_work(shared, exchange) if ranks > 1 else None
    return LaunchCosts(
        rate=samples or (batches / len(shared) if strong else batches),
        samples_per_second=samples,
        step_time_ms=_step_ms(slowest),
        split=slowest.split(),
        imbalance=None if busy is None else max(busy) / mean(busy),
        batch_size=slowest.batch_size,
        steps=slowest.measured_steps,
        busiest=None if busy is None else shared[busy.index(max(busy))].log.process.rank,
    )


def work_together(logs: Sequence[ProcessLog]) -> bool:
    """True if ranks were seen to work with each other, and not each for itself."""
    return any(trait.trait in COOPERATING for log in logs for trait in log.traits)


def _with_best_clock(logs: Sequence[ProcessLog]) -> list[Window]:
    """The windows of all processes that took steps of the best clock seen."""
    windows = [w for w in map(measured_window, logs) if w is not None and w.measured_steps]
    best = min((CLOCKS.index(w.clock.kind) for w in windows), default=0)
    return [w for w in windows if CLOCKS.index(w.clock.kind) == best]


def _one_a_rank(windows: Sequence[Window]) -> list[Window]:
    """The window of each rank's busiest process."""
    busiest_last = sorted(windows, key=lambda window: window.measured_steps)
    return list({window.log.process.rank: window for window in busiest_last}.values())


def _beside(window: Window, other: Window) -> bool:
    """True if another process of the same rank trained at the same time."""
    if window is other or window.log.process.rank != other.log.process.rank:
        return False
    (begin, end), (other_begin, other_end) = window.bounds_ns, other.bounds_ns
    shared = min(end, other_end) - max(begin, other_begin)
    return shared > min(end - begin, other_end - other_begin) / 2


def _shared(windows: Sequence[Window]) -> list[Window] | None:
    """The windows cut to the time that all of them cover; None where one has no step in it."""
    if len(windows) == 1:
        return list(windows)
    begin = max(window.bounds_ns[0] for window in windows)
    end = min(window.bounds_ns[1] for window in windows)
    cut = [_within(window, begin, end) for window in windows]
    kept = [window for window in cut if window is not None]
    return kept if len(kept) == len(windows) else None


def _within(window: Window, begin_ns: int, end_ns: int) -> Window | None:
    """The steps that lie in a span of wall-clock time."""
    log = window.log
    shift = log.process.unix_time_ns - log.process.clock_ns
    ends = window.clock.steps[StepRow.END_NS]
    # a step begins where the one before it ended; half of it may stick out at the begin, as clocks
    # of ranks that step together are read at slightly different times
    half = int(_step_ms(window) * 1e6 / 2)
    first = bisect.bisect_left(ends, begin_ns - shift - half, max(window.first - 1, 0)) + 1
    last = bisect.bisect_right(ends, end_ns - shift + half, window.first, window.last)
    if first >= last:
        return None
    durations = window.durations_ns[first - window.first : last - window.first]
    return replace(window, first=first, last=last, durations_ns=durations)


def _step_ms(window: Window) -> float:
    return sum(window.durations_ns) / window.measured_steps / 1e6


def _own_work(windows: Sequence[Window], exchange: bool) -> list[float] | None:
    """Milliseconds a step in which each rank works and waits for no other; None if unknown."""
    busy = [_step_ms(window) for window in windows]
    if exchange:
        # Ranks wait for each other in the backward pass. The one that comes last waits least: what
        # its backward pass takes is what all of theirs would without waiting.
        if any(window.device_time or _on_gpu(window) for window in windows):
            return None  # the host's times say nothing of when a device arrives
        backward = [0.0 if s is None else s.backward_ms for s in (w.split() for w in windows)]
        if None in backward:
            return None
        passes = known(backward)
        busy = [step - p + min(passes) for step, p in zip(busy, passes, strict=True)]
    return busy if mean(busy) > 0 else None


def _on_gpu(window: Window) -> bool:
    return any(root.device.startswith("cuda") for root in window.log.roots)


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
    figures: LaunchCosts | None
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
