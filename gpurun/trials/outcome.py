"""The outcome of a launch: its records, its figures, and the failure that makes it useless."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.measure import summarise_run
from gpurun.measure.run_events import ProcessLog, read_run
from gpurun.records.codec import to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import RunResult
from gpurun.rundir import write_json
from gpurun.trials.failure_cause import failure_of, main_log, outcome_status, while_compiling
from gpurun.trials.launch_request import LaunchRequest

STATUSES = {
    FailureKind.OUT_OF_MEMORY: "oom",
    FailureKind.KNOB_FAILED: "skipped",
    FailureKind.KILLED: "killed",
    FailureKind.SIGNAL: "killed",
}


@dataclass(frozen=True)
class Outcome:
    """A finished launch. `failure`: why it is of no use; None where it was measured.

    `exit_code` is None where it had to be killed. `logs`: what its processes recorded. `seconds`:
    from start to end; of a side of a live pair half of what the pair took. `in_turns`: whether it
    took turns, with a reference or as a side of a live pair.
    """

    request: LaunchRequest
    result: RunResult
    logs: tuple[ProcessLog, ...]
    exit_code: int | None
    seconds: float
    failure: Failure | None
    in_turns: bool = False

    @property
    def run_dir(self) -> Path:
        """The folder with its records."""
        return self.request.run_dir

    @property
    def status(self) -> str:
        """One word for records: how it ended, or "oom", "timeout", "skipped" (a knob failed)."""
        if self.failure is None or self.failure.kind is FailureKind.TOO_FEW_STEPS:
            return self.result.status
        if self.failure.timed_out:
            return "timeout"
        return STATUSES.get(self.failure.kind, "failed")

    @property
    def log(self) -> ProcessLog | None:
        """The process that trains; None where none recorded anything."""
        return main_log(self.logs)

    def as_side(self, peak: int | None) -> Outcome:
        """The same as a side of a live pair that had this peak memory (bytes) in its turns.

        None: it took none, and the figure stays. What it wrote is left as it is.
        """
        result = self.result if peak is None else replace(self.result, peak_memory_bytes=peak)
        return replace(self, result=result, in_turns=True)


def connections(places: Counter[str]) -> str:
    """One line about connections to other machines, counted by address."""
    shown = ", ".join(place for place, _ in places.most_common(3))
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    times = "once" if places.total() == 1 else f"{places.total()} times"
    return (
        f"trials connected to other machines {times} ({shown}{more}): gpurun neither prevents nor "
        "undoes what they do there"
    )


def conclude(
    request: LaunchRequest, exit_code: int | None, seconds: float, given_up: Failure | None
) -> Outcome:
    """Read what a launch recorded, and write its result into its folder.

    `given_up`: why it was ended from outside; None where it ended by itself.
    """
    ended_ns = time.perf_counter_ns()
    run_dir = request.run_dir
    logs = read_run(run_dir).processes
    needed = (request.ranks and request.ranks.to_finish) or 1
    status = outcome_status(logs, exit_code, given_up is not None, needed)
    result = summarise_run(run_dir, exit_code=exit_code, wall_seconds=seconds, status=status)
    write_json(run_dir / "result.json", to_json(result))
    if given_up is not None:
        failure: Failure | None = while_compiling(logs, ended_ns, given_up)
    else:
        failure = failure_of(logs, run_dir, result, request.knobs)
    return Outcome(request, result, logs, exit_code, seconds, failure)
