"""Finds why a launch failed, from its events, its exit code and the end of its output."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from gpurun.formatting.number_text import count
from gpurun.launch.exit_code import (
    EXCEPTION,
    is_out_of_memory,
    last_error_line,
    last_lines,
    out_of_memory,
)
from gpurun.measure.kernel_facts import killed_for_memory
from gpurun.measure.measured_window import measured_span
from gpurun.measure.run_events import ProcessLog
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.messages.traits import PARALLEL_REFUSED
from gpurun.records.result import RunResult, status_of

ENDED_BADLY = ("failed", "killed", "crashed")
"""Statuses of a launch that did not end as it should."""
COMPILER_SHARE = 0.5
"""A trial that spent so much of its time in torch's compiler was given up for that."""
NOT_FOR_MEMORY = "killed from outside (SIGKILL), and not by the kernel for lack of memory"
NO_INPUT = "the script calls input(), and a trial has no standard input"
WORTH_A_WORD = 0.05
"""Of the measured time: compiling that took less of it is not why a change gains nothing."""
SHOWN_LINES = 5
"""Last lines of an output that are shown where a launch failed."""
SIGNAL_HERE = re.compile(r"rank (\d+) failed first: signal (SIG\w+)")
"""The line by which this host's agent reports that a signal ended a rank of its own."""
OF_AGENT = re.compile(r"^gpurun: | \(process \d+\)", re.MULTILINE)
"""Parts of the agent's lines that are left out: process ids hold only in the sandbox."""


def main_log(logs: Sequence[ProcessLog]) -> ProcessLog | None:
    """The process that trains: rank 0, else the one with most steps, else the first."""
    if not logs:
        return None
    return max(logs, key=lambda x: (sum(map(len, x.steps.values())), -(x.process.rank or 0)))


def outcome_status(
    logs: Sequence[ProcessLog], exit_code: int | None, timed_out: bool, needed: int = 1
) -> str:
    """The status of a launch whose processes wrote these events.

    `needed`: so many processes must have seen enough. Where one is enough, it leaves the other
    ranks in the lurch: how they end means nothing.
    """
    if timed_out:
        return "timeout"
    if sum(log.stop is not None for log in logs) >= needed:
        return "stopped"
    return status_of(exit_code)


def failure_of(
    logs: Sequence[ProcessLog], run_dir: Path, result: RunResult, knobs: Collection[str] = ()
) -> Failure | None:
    """Reason why a launch that ended by itself is of no use; None if it was measured.

    `knobs`: the names of those that were set.
    """
    failure = _failed(run_dir, result) if result.status in ENDED_BADLY else None
    if failure is not None and any(x.exit_record and x.exit_record.lacks_input for x in logs):
        return Failure(FailureKind.NO_INPUT, NO_INPUT)
    refused = refusal(logs)
    if refused is not None and (failure is None or failure.kind is not FailureKind.OUT_OF_MEMORY):
        return Failure(FailureKind.RANKS_REFUSED, refused)
    return failure or _failed_knob(result, knobs) or _too_few_steps(logs, result)


def refusal(logs: Sequence[ProcessLog]) -> str | None:
    """Reason why the script cannot be one rank of several; None if no rank said so."""
    told = (x.detail for log in logs for x in log.traits if x.trait == PARALLEL_REFUSED)
    detail = next(told, None)
    return None if detail is None else detail.splitlines()[0].removeprefix("gpurun: ")


def _failed(run_dir: Path, result: RunResult) -> Failure:
    """By its exit code and what it said last."""
    if result.exit_code is None:
        return Failure(FailureKind.HUNG, "it did not end by itself")
    if 0 in (logs := rank_logs(run_dir)):
        return _failed_rank(run_dir, result.exit_code, logs)
    if result.exit_code == 128 + signal.SIGKILL:
        if killed_for_memory(run_dir) is False:
            return Failure(FailureKind.KILLED, NOT_FOR_MEMORY)
        return Failure(FailureKind.OUT_OF_MEMORY, "killed (SIGKILL), most likely for memory")
    if result.ranks > 1:  # what ranks say last is that another one is gone
        for log in (run_dir / "output.log", *rank_logs(run_dir).values()):
            words = out_of_memory(log)
            if words is not None:
                return Failure(FailureKind.OUT_OF_MEMORY, words)
    said = last_error_line(run_dir / "output.log")
    if is_out_of_memory(said):
        return Failure(FailureKind.OUT_OF_MEMORY, said)
    if result.status != "killed" and EXCEPTION.match(said):
        return Failure(FailureKind.EXCEPTION, said)
    kind = FailureKind.SIGNAL if result.status == "killed" else FailureKind.EXIT_CODE
    return Failure(kind, f"{_ending(result)}{f', after it printed: {said}' if said else ''}")


def _failed_rank(run_dir: Path, exit_code: int, logs: Mapping[int, Path]) -> Failure:
    """The first cause, by what each rank said last: when one fails, the others fail because it is
    gone, and what they print is no cause.
    """
    for rank, log in logs.items():
        if out_of_memory(log) is not None:
            return Failure(FailureKind.OUT_OF_MEMORY, f"out of memory on rank {rank}", rank=rank)
    here = SIGNAL_HERE.search("\n".join(last_lines(run_dir / "output.log")))
    if exit_code == 128 + signal.SIGKILL:
        killed, who = (None, "a rank") if here is None else (int(here[1]), f"rank {here[1]}")
        if here is not None and killed_for_memory(run_dir) is False:
            return Failure(FailureKind.KILLED, f"{who} was {NOT_FOR_MEMORY}", rank=killed)
        text = f"out of memory, most likely: {who} was killed (SIGKILL)"
        return Failure(FailureKind.OUT_OF_MEMORY, text, rank=killed)
    if here is not None:
        return Failure(
            FailureKind.SIGNAL, f"rank {here[1]} was ended by {here[2]}", rank=int(here[1])
        )
    first = first_to_fail(logs)
    if first is not None:
        text = f"rank {first}: {last_error_line(logs[first])}"
        return Failure(FailureKind.EXCEPTION, text, rank=first)
    told = OF_AGENT.sub("", last_error_line(run_dir / "output.log"))
    return Failure(FailureKind.EXIT_CODE, told or f"exit code {exit_code}")


def first_to_fail(logs: Mapping[int, Path]) -> int | None:
    """The rank that named an exception first; None where none named one."""
    spoke = [rank for rank, log in logs.items() if EXCEPTION.match(last_error_line(log))]
    return min(spoke, key=lambda rank: logs[rank].stat().st_mtime_ns, default=None)


def _failed_knob(result: RunResult, knobs: Collection[str]) -> Failure | None:
    for outcome in result.knobs:
        if outcome.knob in knobs and outcome.outcome == "failed":
            text = f"{outcome.knob}: {outcome.detail}"
            return Failure(FailureKind.KNOB_FAILED, text, knob=outcome.knob)
    for error in result.hook_errors:
        for name in knobs:
            if error.startswith(f"knob {name}:"):
                return Failure(FailureKind.KNOB_FAILED, f"its hook failed: {error}", knob=name)
    return None


def _too_few_steps(logs: Sequence[ProcessLog], result: RunResult) -> Failure | None:
    if result.measured_steps:
        return None
    if result.steps:
        text = (
            f"it ended after {count(result.steps, 'training step')}, before any could be measured"
        )
    elif not any(log.torch is not None for log in logs):
        text = "it imports no torch, so that there are no training steps to measure"
    else:
        text = "no training step was seen: there is nothing to measure"
    return Failure(FailureKind.TOO_FEW_STEPS, text)


def rank_logs(run_dir: Path) -> dict[int, Path]:
    """The stderr log of each rank, as torch's agent keeps it."""
    found = (run_dir / "ranks").glob("*/attempt_*/*/stderr.log")
    return {int(log.parent.name): log for log in sorted(found) if log.parent.name.isdigit()}


def while_compiling(logs: Sequence[ProcessLog], now_ns: int, given_up: Failure) -> Failure:
    """Reason why a launch was given up: for torch's compiler if that took the time, else as it is.

    `now_ns`: its end by the clock of its events, which all processes of this host share.
    """
    log = main_log(logs)
    if log is None or not log.compiles:
        return given_up
    spent = compiling_seconds(log, now_ns)
    last = log.compiles[-1]
    if last.phase == "begin":
        unfinished = (now_ns - last.clock_ns) / 1e9
        if unfinished > COMPILER_SHARE * spent:
            text = f"compiling did not end within {unfinished:.0f} s"
            return Failure(FailureKind.COMPILING, text)
    lived = (now_ns - log.process.clock_ns) / 1e9
    if spent < COMPILER_SHARE * lived:
        return given_up
    begun = count(sum(event.phase == "begin" for event in log.compiles), "compilation")
    text = f"{given_up.text}: {spent:.0f} s of it went into {begun}"
    return Failure(FailureKind.COMPILING, text)


def recompiled(log: ProcessLog | None) -> str:
    """A note on what torch compiled while a trial was measured, "" if it took little time."""
    if log is None or log.stop is None:
        return ""
    since, end = measured_span(log)
    if not since:  # nothing was measured
        return ""
    seconds = compiling_seconds(log, end, since)
    if seconds < WORTH_A_WORD * (end - since) / 1e9:
        return ""
    number = sum(e.phase == "begin" and e.clock_ns >= since for e in log.compiles)
    again = "once" if number == 1 else count(number, "time")
    return f"torch compiled {again} more while it was measured, for {seconds:.1f} s"


def compiling_seconds(log: ProcessLog, until_ns: int, since_ns: int = 0) -> float:
    """Seconds that a process spent in torch's compiler, one that has not ended included."""
    spent, began = 0, None
    for event in log.compiles:
        if event.clock_ns < since_ns:
            continue
        if event.phase == "begin":
            began = event.clock_ns
        elif began is not None:
            spent += event.clock_ns - began
            began = None
    if began is not None:
        spent += max(0, until_ns - began)
    return spent / 1e9


def _ending(result: RunResult) -> str:
    code = result.exit_code or 0
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass  # an exit code of its own
    return f"exit code {code}"


def printed(run_dir: Path) -> tuple[str, ...]:
    """The last lines of a launch, or of the rank that failed first, to show where it failed."""
    logs = rank_logs(run_dir)
    first = first_to_fail(logs) if 0 in logs else None
    lines = last_lines(run_dir / "output.log" if first is None else logs[first])
    return tuple(OF_AGENT.sub("", line) for line in lines[-SHOWN_LINES:])
