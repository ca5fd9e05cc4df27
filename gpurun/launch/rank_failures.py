"""The rank that failed first and its error, from the agent's exit codes and the ranks' exit
records.

The agent looks from time to time and finds several ranks dead at once, in no order. A rank's own
exit record (`runtime/boot/rank_process.py`) tells when and why it ended; the `@record` of
`torch.distributed.elastic` leaves a file that tells why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpurun.launch.exit_code import exit_code_of, signal_name
from gpurun.records.ranks import RankFailure
from gpurun.records.script_arguments import masked_text

NOTICED_TOGETHER_SECONDS = 1
"""The agent stamps dead ranks in whole seconds. Those found later were ended by the agent."""

NOT_CAUSED_BY_OTHERS = frozenset({"SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"})
"""Signals that end a rank and are never caused by the failure of another rank."""

NO_MESSAGE = "<NONE>"
"""torch's message where there is no such file."""

LONGEST_ERROR = 300
"""Characters of an exception's text that fit a line."""


def failures_of(
    found: Mapping[int, Any], run_dir: Path | None, logs: Mapping[int, str]
) -> tuple[RankFailure, ...]:
    """The failures of one attempt, first cause first.

    `found`: torch's `ProcessFailure` by global rank; `logs`: the file of stderr by local rank.
    """
    earliest = min((failure.timestamp for failure in found.values()), default=0)
    together: list[RankFailure] = []
    later: list[RankFailure] = []
    for rank, failure in found.items():
        told = _failure(rank, failure, run_dir, logs)
        ended_by_agent = failure.timestamp > earliest + NOTICED_TOGETHER_SECONDS
        (later if ended_by_agent else together).append(told)
    return (*first_cause_first(together), *later)


def first_cause_first(failures: Iterable[RankFailure]) -> list[RankFailure]:
    """Failures that were noticed together, in their likely order.

    A rank that was struck comes first: ranks that lose it raise. Then those that tell their time,
    by it; then those that tell nothing (SIGABRT of a watchdog, `os._exit`). SIGTERM comes last: it
    is the agent's, which ends what still runs.
    """

    def place(failure: RankFailure) -> tuple[int, int]:
        if failure.signal in NOT_CAUSED_BY_OTHERS:
            return 0, 0
        if failure.signal == "SIGTERM":
            return 3, 0
        return (2, 0) if failure.unix_time_ns is None else (1, failure.unix_time_ns)

    return sorted(failures, key=place)


def _failure(rank: int, failure: Any, run_dir: Path | None, logs: Mapping[int, str]) -> RankFailure:
    ended = {} if run_dir is None else _exit_record(run_dir, rank, failure.pid)
    error = ended.get("error") or _recorded_error(failure.error_file_data)
    log = logs.get(failure.local_rank)
    return RankFailure(
        rank=rank,
        local_rank=failure.local_rank,
        pid=failure.pid,
        exit_code=exit_code_of(failure.exitcode),
        signal=signal_name(failure.exitcode),
        error=None if error is None else " ".join(str(error).split())[:LONGEST_ERROR],
        unix_time_ns=ended.get("unix_time_ns"),
        log=log or None,
    )


def _exit_record(run_dir: Path, rank: int, pid: int) -> dict[str, Any]:
    """The fields of a rank's exit record, empty without one."""
    try:
        lines = (run_dir / f"events-rank{rank}-{pid}.jsonl").read_bytes().splitlines()
    except OSError:
        return {}
    said = [line for line in lines if line.startswith(b'{"event":"exit_record"')]
    try:
        return dict(json.loads(said[-1])) if said else {}
    except ValueError:
        return {}  # torn


def _recorded_error(document: Any) -> str | None:
    """The exception in the file that `@record` left: its message, without the traceback."""
    message = document.get("message") if isinstance(document, dict) else None
    if isinstance(message, dict):
        message = message.get("message")
    return masked_text(str(message)) if message and message != NO_MESSAGE else None
