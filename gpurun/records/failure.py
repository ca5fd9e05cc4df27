"""How a launch or one of its ranks failed: a kind for programs, a text for people."""

from __future__ import annotations

import enum

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


class FailureKind(enum.Enum):
    """The kind of failure of a launch."""

    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    """It recorded and printed nothing for too long."""
    OUT_OF_TIME = "out_of_time"
    """It was not done within its limit."""
    COMPILING = "compiling"
    """It was given up, and torch's compiler had taken most of its time."""
    RANK_LEFT_BEHIND = "rank_left_behind"
    """Some ranks did not end with the others."""
    PARTNER_ENDED = "partner_ended"
    """The other side of its live pair failed, so it was ended."""
    KILLED = "killed"
    """Another process sent it SIGKILL, and not the kernel for lack of memory."""
    SIGNAL = "signal"
    """Another signal ended it: a segmentation fault, or one that was sent."""
    EXCEPTION = "exception"
    """The script raised it."""
    EXIT_CODE = "exit_code"
    """The script ended with one other than 0, and named no exception."""
    NO_INPUT = "no_input"
    """The script called `input()`, and a trial has no standard input."""
    KNOB_FAILED = "knob_failed"
    """A setting could not be applied."""
    NOT_STARTED = "not_started"
    """gpurun could not start it."""
    NOT_LIVE = "not_live"
    """These two launches cannot be a live pair."""
    NODE_LOST = "node_lost"
    """Another node of the launch is gone."""
    RANKS_REFUSED = "ranks_refused"
    """The script cannot be run as one rank of several."""
    TOO_FEW_STEPS = "too_few_steps"
    """It ended well, and before anything could be measured."""


TIMEOUTS = (
    FailureKind.HUNG,
    FailureKind.OUT_OF_TIME,
    FailureKind.COMPILING,
    FailureKind.RANK_LEFT_BEHIND,
    FailureKind.PARTNER_ENDED,
)
"""Kinds of launches that were ended from outside."""


@record
class Failure:
    """Why a launch is of no use. `text` is for people; programs ask for `kind`.

    `knob`: the setting that failed. `rank`: the one that failed first. None where that is not
    known, or does not apply.
    """

    kind: FailureKind
    text: str
    knob: str | None = None
    rank: int | None = None

    @property
    def timed_out(self) -> bool:
        """True if the launch was ended from outside."""
        return self.kind in TIMEOUTS
