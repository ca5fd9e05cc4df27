"""How a trial ended, and why: from its events, its exit code and its last words."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from gpurun.measure.events import ProcessLog
from gpurun.records.result import RunResult, status_of
from gpurun.tuner.plan import NEEDED_STEPS
from gpurun.tuner.trial import Request

OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|an't allocate memory|annot allocate memory|MemoryError"
    r"|_ALLOC_FAILED"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
END_WELL = "let it end with exit code 0, or train for longer than a trial lasts"
"""What to do about a script that trains and then ends otherwise on purpose."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


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


def explained(status: str, run_dir: Path, result: RunResult, request: Request) -> tuple[str, str]:
    """The final status and, where the trial is of no use, why."""
    if status in ("failed", "killed"):
        if result.exit_code == 128 + signal.SIGKILL:
            return "oom", "killed (SIGKILL), most likely for memory"
        said = last_words(run_dir / "output.log")
        if EXCEPTION.match(said):
            return ("oom" if OUT_OF_MEMORY.search(said) else status), said
        told = f"{_ending(result)}{f', after it printed: {said}' if said else ''}"
        if status == "failed" and not request.settings and result.steps >= NEEDED_STEPS:
            told += f"; it took {result.steps} steps: {END_WELL}"
        return status, told
    for outcome in result.knobs:
        if outcome.knob in request.settings and outcome.outcome == "failed":
            return "skipped", f"{outcome.knob}: {outcome.detail}"
    for error in result.hook_errors:
        if any(error.startswith(f"knob {name}:") for name in request.settings):
            return "skipped", f"its hook failed: {error}"
    return status, ""


def _ending(result: RunResult) -> str:
    code = result.exit_code or 0
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass  # an exit code of its own
    return f"exit code {code}"


def last_words(log: Path, limit: int = 8192) -> str:
    """Why a failed trial failed: the last line that names an exception, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            lines = COLOURS.sub("", file.read().decode("utf-8", "replace")).splitlines()
    except OSError:
        return ""
    words = [line.rstrip() for line in lines if line.strip()]
    named = [line for line in words if EXCEPTION.match(line)]
    return (named or words or [""])[-1].strip()[:200]
