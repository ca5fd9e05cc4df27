"""The ranks of one node: each attempt at running them, the rank that failed first, and its
error."""

from __future__ import annotations

from gpurun.records.record import record

ATTEMPTS_FILE = "attempts.jsonl"
"""File of the run folder: one `Attempt` a line, written as each ends."""


@record
class RankFailure:
    """A rank that ended otherwise than with code 0.

    `exit_code` as a shell tells it: 128+n for signal n. `signal`: its name, None where there was
    none. `error`: "ValueError: no such file" where the rank ended by an exception that is known.
    `unix_time_ns`: when it ended by its own account, None without one. `log`: the file that holds
    its stderr, None where that was not redirected.
    """

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    signal: str | None
    error: str | None
    unix_time_ns: int | None = None
    log: str | None = None

    @property
    def how(self) -> str:
        """The end in words: "signal SIGKILL (process 12)", "exit code 1 (process 12): KeyError"."""
        way = f"signal {self.signal}" if self.signal else f"exit code {self.exit_code}"
        error = f": {self.error}" if self.error else ""
        return f"{way} (process {self.pid}){error}"


@record
class Attempt:
    """One start of this node's ranks.

    `number` counts from 1. `outcome`: "succeeded", "failed" (a rank failed), "node lost" (another
    node is gone), "regrouped" (a node came or left, and the ranks start again), "stopped" (by a
    signal to the launcher) or "broken" (the launcher could not go on). `failures`: first cause
    first. `detail`: what more is known, empty if nothing is.
    """

    number: int
    world_size: int
    seconds: float
    outcome: str
    failures: tuple[RankFailure, ...] = ()
    detail: str = ""
