"""Records each attempt to run the ranks, reports restarts, and notices lost nodes.

The agent is torch's own (`LocalElasticAgent`). Its methods that start, watch and restart the ranks
of this node are wrapped for the time of one launch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpurun.errors import say
from gpurun.formatting.number_text import count
from gpurun.launch.exit_code import exit_code_of, signal_name
from gpurun.records.codec import to_json
from gpurun.records.failure import ATTEMPTS_FILE, Attempt, RankFailure
from gpurun.records.parse_json import open_regular
from gpurun.records.script_arguments import masked_text
from gpurun.rundir import mode_of

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
        with open_regular(run_dir / f"events-rank{rank}-{pid}.jsonl") as file:
            lines = file.read().splitlines()
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


WRAPPED = ("_start_workers", "_monitor_workers", "_restart_workers")


class NodeLost(Exception):
    """A node of the job is gone; the text says which."""


class AttemptLog:
    """The attempts of one launch. They are kept in `run_dir` as each ends, where there is one."""

    def __init__(self, run_dir: Path | None) -> None:
        self.done: list[Attempt] = []
        self._run_dir = run_dir
        self._started: float | None = None
        self._world_size = 0
        self._nodes: dict[Any, str] = {}
        self._agent: Any = None
        self._asked_to_end: tuple[float, str] | None = None
        """When, and by which signal; None before, and once the rest was killed."""

    @property
    def running(self) -> bool:
        """True if the ranks run, as far as was seen."""
        return self._started is not None

    @contextlib.contextmanager
    def watching(self, agent: type[Any]) -> Iterator[None]:
        """Note what agents of this class do meanwhile; nothing where torch has other methods."""
        if not all(hasattr(agent, name) for name in WRAPPED):
            yield
            return
        start, monitor, restart = (getattr(agent, name) for name in WRAPPED)
        before = {name: vars(agent).get(name) for name in WRAPPED}

        def start_workers(it: Any, group: Any) -> Any:
            self._agent = it
            self._begin(group)
            return start(it, group)

        def monitor_workers(it: Any, group: Any) -> Any:
            return self._looked(it, group, monitor(it, group))

        def restart_workers(it: Any, group: Any) -> Any:
            _forget_store(group.spec.rdzv_handler)
            return restart(it, group)

        for name, method in zip(
            WRAPPED, (start_workers, monitor_workers, restart_workers), strict=True
        ):
            setattr(agent, name, method)
        try:
            yield
        finally:
            for name, method in before.items():
                delattr(agent, name) if method is None else setattr(agent, name, method)

    def end(self, outcome: str, detail: str = "") -> None:
        """Close the running attempt, if there is one, where the agent gave no result."""
        if self.running:
            self._end(outcome, detail=detail)

    @contextlib.contextmanager
    def telling_kills(self, rank: type[Any]) -> Iterator[None]:
        """Say which ranks the agent kills meanwhile, because they have not ended when asked to.

        `rank`: torch's class of one rank's process.
        """
        original = rank.close

        def close(it: Any, death_sig: Any = None) -> None:
            if death_sig != signal.SIGKILL:
                self._asked_to_end = time.monotonic(), signal.Signals(death_sig or 15).name
            elif self._asked_to_end is not None:
                (asked, name), self._asked_to_end = self._asked_to_end, None
                self._tell_kill(time.monotonic() - asked, name)
            original(it, death_sig)

        rank.close = close
        try:
            yield
        finally:
            rank.close = original

    def _tell_kill(self, seconds: float, name: str) -> None:
        ranks, workers = self._agent._pcontext, self._agent._worker_group.workers
        processes = ranks.subprocess_handlers.items()
        left = [workers[local].global_rank for local, it in processes if it.proc.poll() is None]
        failed = [f"rank {workers[local].global_rank} failed" for local in ranks._failures]
        say(
            f"{failed[0] if failed else 'the job ends'}; gpurun kills {_ranks(left)}, "
            f"which did not end within {seconds:.0f} s of {name}"
        )

    def send_to_ranks(self, number: int) -> None:
        """Send a signal to the ranks of this node."""
        ranks = getattr(self._agent, "_pcontext", None)
        for pid in () if ranks is None else ranks.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _begin(self, group: Any) -> None:
        self.end("regrouped")
        self._started = time.monotonic()
        self._world_size = int(group.workers[0].world_size) if group.workers else 0
        self._nodes = {}

    def _looked(self, agent: Any, group: Any, result: Any) -> Any:
        state = result.state.name
        restarts = getattr(agent, "_remaining_restarts", 0)
        if state == "SUCCEEDED":
            self._end("succeeded")
        elif state == "FAILED" and self.running:
            logs = getattr(agent._pcontext, "stderrs", {})
            self._end("failed", failures=failures_of(result.failures, self._run_dir, logs))
            if restarts:
                first = self.done[-1].failures[0]
                self._tell_restart(f"rank {first.rank} failed first: {first.how}", restarts)
        elif state == "HEALTHY":
            lost = self._lost_nodes(group.spec.rdzv_handler)
            if lost:
                self._end("node lost", detail=lost)
                if not restarts:
                    raise NodeLost(lost)
                self._tell_restart(lost, restarts)
                result.state = type(result.state).UNHEALTHY
        return result

    def _lost_nodes(self, handler: Any) -> str:
        """The nodes that have gone since the ranks started, by the heartbeats of the rendezvous."""
        self._nodes = self._nodes or nodes_there(handler)
        gone = gone_nodes(handler, self._nodes)
        if not gone:
            return ""
        return f"node {', '.join(gone)} is gone: its launcher no longer answers"

    def _tell_restart(self, why: str, restarts: int) -> None:
        number = self.done[-1].number
        left = count(restarts, "restart")
        say(f"attempt {number}: {why}; starting the ranks again ({left} left)")

    def _end(self, outcome: str, failures: Any = (), detail: str = "") -> None:
        seconds = 0.0 if self._started is None else time.monotonic() - self._started
        self._started = None
        number = len(self.done) + 1
        attempt = Attempt(number, self._world_size, seconds, outcome, failures, detail)
        self.done.append(attempt)
        if self._run_dir is not None:
            line = json.dumps(to_json(attempt)) + "\n"
            opener = partial(_own, mode=mode_of(line))
            try:
                with open(self._run_dir / ATTEMPTS_FILE, "a", opener=opener) as file:
                    file.write(line)
            except OSError:
                pass  # the folder is gone or full: the ranks go on


def _ranks(numbers: Sequence[int]) -> str:
    """ "rank 1", "ranks 0 and 1", "ranks 0, 1 and 2"."""
    *first, last = map(str, numbers)
    return f"ranks {', '.join(first)} and {last}" if first else f"rank {last}"


def nodes_there(handler: Any) -> dict[Any, str]:
    """The addresses of the nodes in a rendezvous, by node; a static one has no heartbeats."""
    holder = getattr(handler, "_state_holder", None)
    return {} if holder is None else {node: node.addr for node in holder.state.participants}


def gone_nodes(handler: Any, known: Mapping[Any, str]) -> list[str]:
    """The addresses of the nodes that are not in a rendezvous any more, by their heartbeats."""
    here = nodes_there(handler)
    own = getattr(handler, "_this_node", None)  # late itself, it would take itself for dead
    return sorted(addr for node, addr in known.items() if node not in here and node != own)


def _own(path: str, flags: int, mode: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)


def _forget_store(handler: Any) -> None:
    """Have the rendezvous make a new store for the ranks that are started again.

    torch 2.13 gives them the store of the earlier ranks, which still holds their addresses. A
    process group then connects to ranks that are gone, and every restart fails.
    """
    for name in ("_bootstrap_store_info", "_shared_tcp_store_server"):
        if hasattr(handler, name):
            setattr(handler, name, None)
