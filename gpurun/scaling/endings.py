"""How a launch of N ranks ended, and why: the first cause first.

When a rank fails, the others fail after it because it is gone. What they print is no cause.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from gpurun.measure.oom_kills import killed_for_memory
from gpurun.trials.ending import (
    EXCEPTION,
    NOT_FOR_MEMORY,
    last_lines,
    last_words,
    out_of_memory,
    rank_logs,
)

OUT_OF_MEMORY_SAID = "out of memory"
STRUCK_HERE = re.compile(r"rank (\d+) failed first: signal SIGKILL")
"""What the agent of this host says of a rank of its own."""
OF_AGENT = re.compile(r"^gpurun: | \(process \d+\)", re.MULTILINE)
"""What its agent says besides: process ids are those of the box."""


def failed(run_dir: Path, exit_code: int | None) -> tuple[str, str]:
    """The status ("oom" or "failed") and, in a line, why: by what the ranks said last."""
    logs = rank_logs(run_dir)
    said = {rank: last_words(log) for rank, log in logs.items()}
    for rank, log in logs.items():
        if out_of_memory(log) is not None:
            return "oom", f"{OUT_OF_MEMORY_SAID} on rank {rank}"
    if exit_code == 128 + signal.SIGKILL:
        here = STRUCK_HERE.search("\n".join(last_lines(run_dir / "output.log")))
        who = "a rank" if here is None else f"rank {here[1]}"
        if here is not None and killed_for_memory(run_dir) is False:
            return "failed", f"{who} was {NOT_FOR_MEMORY}"
        return "oom", f"{OUT_OF_MEMORY_SAID}, most likely: {who} was killed (SIGKILL)"
    spoke = [rank for rank, words in said.items() if EXCEPTION.match(words)]
    first = min(spoke, key=lambda rank: logs[rank].stat().st_mtime_ns, default=None)
    if first is not None:
        return "failed", f"rank {first}: {said[first]}"
    told = OF_AGENT.sub("", last_words(run_dir / "output.log"))
    return "failed", told or f"exit code {exit_code}"


def printed(run_dir: Path, lines: int) -> tuple[str, ...]:
    """The last lines of the rank that failed first, else of what the launch printed."""
    logs = rank_logs(run_dir)
    spoke = [log for log in logs.values() if EXCEPTION.match(last_words(log))]
    first = min(spoke, key=lambda log: log.stat().st_mtime_ns, default=run_dir / "output.log")
    return tuple(OF_AGENT.sub("", line) for line in last_lines(first)[-lines:])
