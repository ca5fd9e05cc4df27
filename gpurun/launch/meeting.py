"""Where the launchers of several nodes meet and talk: a store of words that the first node keeps.

Who meets where is said by torchrun's flags and `PET_*` variables, read by torch's own parser; the
store is torch's `TCPStore`. Only text goes through it. Beside `elastic.py` the only module of the
parent that imports torch.
"""

from __future__ import annotations

import importlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from gpurun.errors import GpurunError
from gpurun.launch.cluster import AUTO, node_of, with_nodes
from gpurun.launch.elastic import first_line, import_torchrun, local_ranks, usage_error
from gpurun.launch.said import is_said

T = TypeVar("T")

JOIN_SECONDS = 600.0
"""How long nodes wait for each other, as torchrun's do; `--rdzv-conf join_timeout=` says else."""
MOST_SECONDS = 1e6
QUESTION_SECONDS = 30.0
"""The store answers at once: if not within this time, its node or the network is gone."""
C10D_PORT = 29400
"""Where torch's c10d rendezvous meets if no port is said."""
LOOK_SECONDS = 0.05
SOON_SECONDS = 0.001
"""Between two looks at what is waited for, and while clocks are compared."""
READINGS = 5
"""Of the other node's clock; the one with the shortest way counts."""
LONGEST = 1 << 20
"""Characters in one word: the store closes the connection of who says much more."""
BACKENDS = ("static", "c10d")
ADDRESSES = ("rdzv-endpoint", "master-addr")


class NodeGone(Exception):
    """The other side does not answer any more; the text says why that is thought."""


@dataclass(frozen=True)
class Place:
    """What the flags say. `host` and `port` are where the first node keeps the store; `first` tells
    whether this is that node, None where its address decides. `number`: of this node, and `ranks`:
    on each node, both None where that was not said.
    """

    nodes: int
    host: str
    port: int
    job: str
    first: bool | None
    ranks: int | None
    number: int | None = None
    join_seconds: float = JOIN_SECONDS


def place_of(torchrun: Sequence[str], environment: Mapping[str, str]) -> Place | None:
    """Where the nodes meet; None where only one was asked for. `GpurunError` if unclear."""
    run = import_torchrun()
    parser = run.get_args_parser()
    parser.error = usage_error
    flags = parser.parse_args([*with_nodes(torchrun, environment), "script"])
    least, _, most = flags.nnodes.partition(":")
    if not least.isdigit() or (most or least) != least:
        raise GpurunError(
            f"--nnodes {flags.nnodes} is no fixed number of nodes", "write --nnodes 2"
        )
    if int(least) <= 1:
        return None
    if flags.rdzv_backend not in BACKENDS:
        raise GpurunError(
            f"--scale does not meet by --rdzv-backend {flags.rdzv_backend}",
            f"write one of {' and '.join(BACKENDS)}",
        )
    auto = AUTO in torchrun
    if not auto and not any(is_said(name, torchrun, environment) for name in ADDRESSES):
        raise GpurunError(
            f"--nnodes {flags.nnodes}: nobody says where the nodes meet",
            "add --rdzv-backend c10d --rdzv-endpoint HOST:PORT, with the first node's HOST",
        )
    pairs = (part.partition("=") for part in flags.rdzv_conf.split(",") if part)
    said = {name.strip(): value.strip().lower() for name, _, value in pairs}
    static = flags.rdzv_backend == "static"
    address = flags.rdzv_endpoint or f"{flags.master_addr}:{flags.master_port}"
    host, port = _endpoint(address)
    first = flags.node_rank == 0 if static else None
    if "is_host" in said:
        first = said["is_host"] in ("1", "true", "t", "yes", "y")
    ranks = is_said("nproc-per-node", torchrun, environment)
    return Place(
        nodes=int(least),
        host=host,
        port=port,
        job=flags.rdzv_id,
        first=first,
        ranks=_ranks(flags.nproc_per_node) if ranks else None,
        number=node_of(environment).rank if auto else int(flags.node_rank) if static else None,
        join_seconds=_seconds(said.get("join_timeout") or said.get("timeout")),
    )


def join(place: Place) -> Meeting:
    """Meet the other nodes: returns once the store is reached, not once all are there."""
    store_of = importlib.import_module("torch.distributed").TCPStore
    timeout = timedelta(seconds=place.join_seconds)
    keeps = _is_here(place.host) if place.first is None else place.first
    # two launchers on one machine: the second one finds the port in use, by the first
    for mine in (True, False) if keeps and place.first is None else (keeps,):
        try:
            reach = partial(store_of, place.host, place.port, None, mine, timeout)
            store = _answered(
                partial(reach, wait_for_workers=False), place.join_seconds + QUESTION_SECONDS
            )
            return Meeting(place, store, mine)
        except NodeGone as error:
            if mine and place.first is None:
                continue
            raise GpurunError(
                f"the nodes did not meet at {place.host}:{place.port}: {error}",
                "check --rdzv-endpoint, or --master-addr, --master-port and --node-rank; "
                "--rdzv-conf is_host=1 says which node is the first",
            ) from error
    raise AssertionError("one of both was tried last")


class Meeting:
    """What this node can say to the others and hear from them, by name.

    `node`: its number, 0 for the first. Every method raises `NodeGone` once the store is lost; all
    of them can be interrupted. Several threads may talk.
    """

    def __init__(self, place: Place, store: Any, first: bool) -> None:
        self.place = place
        self._store = store
        if first:
            self.node = 0
        elif place.number is not None:
            self.node = place.number
        else:
            self.node = self._count("joined")
        if self.node >= place.nodes:
            raise GpurunError(
                f"all {place.nodes} nodes of the job {place.job!r} are there already",
                "count the launchers, or name another job with --rdzv-id",
            )
        if self._count(f"{self.node}/claimed") > 1 or first != (self.node == 0):
            raise GpurunError(
                f"node {self.node} of the job {place.job!r} is there twice",
                "give each node a --node-rank of its own, and 0 to the first",
            )

    def is_there(self, node: int) -> bool:
        """Whether that node has met us."""
        key = self._key(f"{node}/claimed")
        return bool(self._asked(lambda: self._store.check([key])))

    def tell(self, name: str, text: str) -> None:
        """Have `text`, which may be long, heard under `name`."""
        parts = [text[i : i + LONGEST] for i in range(0, len(text), LONGEST)] or [""]
        for number, part in enumerate(parts[1:], 1):
            self._set(f"{name}/{number}", part)
        self._set(name, f"{len(parts)} {parts[0]}")  # last: then all of it is there

    def heard(self, name: str) -> str | None:
        """What was told under `name`; None if nothing was."""
        key = self._key(name)
        if not self._asked(lambda: self._store.check([key])):
            return None
        count, _, text = self._get(name).partition(" ")
        return text + "".join(self._get(f"{name}/{number}") for number in range(1, int(count)))

    def hear(self, name: str, seconds: float, every: float = LOOK_SECONDS) -> str:
        """Wait for what is told under `name`; `NodeGone` if nothing is in time."""
        end = time.monotonic() + seconds
        while (text := self.heard(name)) is None:
            if time.monotonic() > end:
                raise NodeGone(f"nothing was heard for {seconds:g} s")
            time.sleep(every)
        return text

    def read_clock(self, name: str, seconds: float) -> int:
        """Nanoseconds by which the clock of whoever calls `show_clock` is ahead of ours."""
        readings = []
        for number in range(READINGS):
            began = time.time_ns()
            self.tell(f"{name}/{number}/ask", "")
            theirs = int(self.hear(f"{name}/{number}/time", seconds, SOON_SECONDS))
            ended = time.time_ns()
            readings.append((ended - began, theirs - (began + ended) // 2))
        return min(readings)[1]

    def show_clock(self, name: str, seconds: float) -> None:
        """The other side of `read_clock`, at the same time."""
        for number in range(READINGS):
            self.hear(f"{name}/{number}/ask", seconds, SOON_SECONDS)
            self.tell(f"{name}/{number}/time", str(time.time_ns()))

    def _key(self, name: str) -> str:
        return f"gpurun/{self.place.job}/{name}"

    def _count(self, name: str) -> int:
        return int(self._asked(lambda: self._store.add(self._key(name), 1)))

    def _set(self, name: str, text: str) -> None:
        self._asked(lambda: self._store.set(self._key(name), text))

    def _get(self, name: str) -> str:
        return bytes(self._asked(lambda: self._store.get(self._key(name)))).decode()

    def _asked(self, question: Callable[[], T]) -> T:
        return _answered(question, QUESTION_SECONDS)


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    for family in (socket.AF_INET6, socket.AF_INET):
        try:
            with socket.socket(family) as probe:
                probe.bind(("", 0))
                return int(probe.getsockname()[1])
        except OSError:
            continue  # this system has no IPv6
    raise GpurunError("this machine has no network, not even to itself", "ip link set lo up")


def _answered(question: Callable[[], T], seconds: float) -> T:
    """The answer of a question that blocks in torch, where neither time nor a signal ends it."""
    answers: list[T] = []
    errors: list[Exception] = []
    done = threading.Event()

    def ask() -> None:
        try:
            answers.append(question())
        except (RuntimeError, ValueError) as error:  # torch's errors of stores and networks
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=ask, name="gpurun-meeting", daemon=True).start()
    if not done.wait(seconds):
        raise NodeGone(f"no answer for {seconds:g} s")
    if errors:
        raise NodeGone(first_line(errors[0])) from errors[0]
    return answers[0]


def _ranks(word: str) -> int:
    try:
        ranks = local_ranks(word)
    except ValueError as error:
        raise GpurunError(
            f"--nproc-per-node {word}: {first_line(error)}", "write how many ranks a node has"
        ) from error
    if ranks < 1:
        raise GpurunError(f"--nproc-per-node {word} is no number of ranks", "write one from 1")
    return ranks


def _seconds(text: str | None) -> float:
    try:
        seconds = JOIN_SECONDS if text is None else float(text)
        if 0 < seconds <= MOST_SECONDS:
            return seconds
    except ValueError:
        pass
    raise GpurunError(
        f"--rdzv-conf join_timeout={text} is no number of seconds", "write join_timeout=600"
    )


def _endpoint(text: str) -> tuple[str, int]:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        host, port = parse_rendezvous_endpoint(text, C10D_PORT)
    except ValueError as error:
        raise GpurunError(first_line(error), "write --rdzv-endpoint HOST:PORT") from error
    return str(host), int(port)


def _is_here(host: str) -> bool:
    """Whether the name is one of this machine: then its address can be bound."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False
