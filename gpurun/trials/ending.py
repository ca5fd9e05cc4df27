"""How a trial ended, and why: from its events, its exit code and its last words."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Collection, Sequence
from pathlib import Path

from gpurun.measure.events import ProcessLog
from gpurun.measure.oom_kills import killed_for_memory
from gpurun.records.result import RunResult, status_of

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|an't allocate memory|annot allocate memory|MemoryError"
    r"|_ALLOC_FAILED"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
END_WELL = "let it end with exit code 0, or train for longer than a trial lasts"
"""What to do about a script that trains and then ends otherwise on purpose."""
COMPILER_SHARE = 0.5
"""A trial that spent so much of its time in torch's compiler was given up for that."""
NOT_FOR_MEMORY = "killed from outside (SIGKILL), and not by the kernel for want of memory"
WORTH_A_WORD = 0.05
"""Of the measured time: compiling that took less of it is not why a change gains nothing."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
FAILED_FIRST = re.compile(r"^gpurun: rank \d+ failed first: ")
"""What the launcher puts before the last words of a rank."""
AT_THE_END = 65536
"""Bytes at the end of a rank's output that are read."""
OF_RANK = re.compile(r"^\[rank\d+\]:[ ]?", re.MULTILINE)
"""What torch puts before each line of a traceback once a process is a rank."""


def main_log(logs: tuple[ProcessLog, ...]) -> ProcessLog | None:
    """The process that trains: rank 0, else the one with most steps, else the first."""
    if not logs:
        return None
    return max(logs, key=lambda x: (sum(map(len, x.steps.values())), -(x.process.rank or 0)))


def ending_status(logs: tuple[ProcessLog, ...], exit_code: int | None, timed_out: bool) -> str:
    """The status of a trial whose processes wrote these events."""
    if timed_out:
        return "timeout"
    # A rank that has seen enough leaves the others in the lurch: how they end means nothing.
    if any(log.stop is not None for log in logs):
        return "stopped"
    return status_of(exit_code)


def explained(
    status: str,
    run_dir: Path,
    result: RunResult,
    knobs: Collection[str] = (),
    needed_steps: float = math.inf,
) -> tuple[str, str]:
    """The final status and, where the trial is of no use, why.

    `knobs`: the names of those that were set. `needed_steps`: a script that trained for so many
    steps was long enough, however it ended.
    """
    if status in ("failed", "killed"):
        if result.exit_code == 128 + signal.SIGKILL:
            if killed_for_memory(run_dir) is False:
                return "failed", NOT_FOR_MEMORY
            return "oom", "killed (SIGKILL), most likely for memory"
        if result.ranks > 1:  # what ranks say last is that another one is gone
            for log in (run_dir / "output.log", *rank_logs(run_dir).values()):
                words = out_of_memory(log)
                if words is not None:
                    return "oom", words
        said = last_words(run_dir / "output.log")
        if EXCEPTION.match(said):
            return ("oom" if OUT_OF_MEMORY.search(said) else status), said
        told = f"{_ending(result)}{f', after it printed: {said}' if said else ''}"
        if status == "failed" and not knobs and result.steps >= needed_steps:
            told += f"; it took {result.steps} steps: {END_WELL}"
        return status, told
    for outcome in result.knobs:
        if outcome.knob in knobs and outcome.outcome == "failed":
            return "skipped", f"{outcome.knob}: {outcome.detail}"
    for error in result.hook_errors:
        if any(error.startswith(f"knob {name}:") for name in knobs):
            return "skipped", f"its hook failed: {error}"
    return status, ""


def rank_logs(run_dir: Path) -> dict[int, Path]:
    """What each rank wrote to stderr, as torch's agent keeps it."""
    found = (run_dir / "ranks").glob("*/attempt_*/*/stderr.log")
    return {int(log.parent.name): log for log in sorted(found) if log.parent.name.isdigit()}


def out_of_memory(log: Path) -> str | None:
    """The exception by which a process says so at the end of its output, None if it does not."""
    for line in last_lines(log, AT_THE_END):
        said = FAILED_FIRST.sub("", line)
        if EXCEPTION.match(said) and OUT_OF_MEMORY.search(said):
            return said
    return None


def while_compiling(logs: Sequence[ProcessLog], now_ns: int, given_up: str) -> str:
    """Why a trial was given up, if it was torch's compiler that took the time; else as it stands.

    `now_ns`: the wall clock's time at its end.
    """
    log = main_log(tuple(logs))
    if log is None or not log.compiles:
        return given_up
    spent = compiling_seconds(log, now_ns)
    last = log.compiles[-1]
    if last.phase == "begin":
        unfinished = (now_ns - log.unix_time_ns(last.clock_ns)) / 1e9
        if unfinished > COMPILER_SHARE * spent:
            return f"compiling did not end within {unfinished:.0f} s"
    lived = (now_ns - log.process.unix_time_ns) / 1e9
    if spent < COMPILER_SHARE * lived:
        return given_up
    count = sum(event.phase == "begin" for event in log.compiles)
    return f"{given_up}: {spent:.0f} s of it went into {count} compilations"


def recompiled(log: ProcessLog | None) -> str:
    """What torch compiled while a trial was measured, "" where it is not worth a word."""
    stop = None if log is None else log.stop
    if log is None or stop is None or stop.window_begin_ns is None:
        return ""
    since, end = stop.window_begin_ns, stop.window_end_ns
    seconds = compiling_seconds(log, log.unix_time_ns(end), since)
    if seconds < WORTH_A_WORD * (end - since) / 1e9:
        return ""
    count = sum(e.phase == "begin" and e.clock_ns >= since for e in log.compiles)
    again = "once" if count == 1 else f"{count} times"
    return f"torch compiled {again} more while it was measured, for {seconds:.1f} s"


def compiling_seconds(log: ProcessLog, until_ns: int, since_clock_ns: int = 0) -> float:
    """Seconds that a process spent in torch's compiler, one that has not ended included."""
    spent, began = 0, None
    for event in log.compiles:
        if event.clock_ns < since_clock_ns:
            continue
        if event.phase == "begin":
            began = event.clock_ns
        elif began is not None:
            spent += event.clock_ns - began
            began = None
    if began is not None:
        spent += max(0, until_ns - log.unix_time_ns(began))
    return spent / 1e9


def _ending(result: RunResult) -> str:
    code = result.exit_code or 0
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass  # an exit code of its own
    return f"exit code {code}"


def last_words(log: Path) -> str:
    """Why a failed trial failed: the last line that names an exception, else the last line."""
    words = last_lines(log)
    named = [line for line in words if EXCEPTION.match(line)]
    return (named or words or [""])[-1].strip()[:200]


def last_lines(log: Path, limit: int = 8192) -> list[str]:
    """The lines in the last `limit` bytes of an output, without colours, ranks and empty ones."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            text = COLOURS.sub("", file.read().decode("utf-8", "replace"))
            lines = OF_RANK.sub("", text).splitlines()
    except OSError:
        return []
    return [line.rstrip() for line in lines if line.strip()]
