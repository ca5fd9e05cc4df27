"""The rendezvous of the launchers of several nodes: torch's own c10d rendezvous and its store.

torchrun's flags and `PET_*` variables say where, read by torch's own parser. torch's rendezvous
waits for all nodes, keeps their heartbeats and hands out the store; nodes exchange what they must
know of each other through it. Of the parent's modules only this one and `elastic_agent.py` import
torch.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from gpurun.arguments.torchrun_flags import is_given
from gpurun.errors import GpurunError
from gpurun.launch.attempt_log import gone_nodes, nodes_there
from gpurun.launch.cluster_nodes import AUTO, node_of, with_nodes
from gpurun.launch.elastic_agent import (
    PAGES_OF_TEXT,
    PATIENCE,
    first_line,
    import_torchrun,
    local_ranks,
    usage_error,
)

T = TypeVar("T")
Look = Callable[[], None]
"""Done now and then while the store is waited for; what it raises ends that."""

JOIN_SECONDS = 600
"""Seconds that nodes wait for each other, as under torchrun; `--rdzv-conf join_timeout=` sets
it."""
C10D_PORT = 29400
"""Where torch's c10d rendezvous meets if no port is said."""
LOOK = timedelta(seconds=1.0)
"""Seconds to wait for the store before a new look at the other nodes."""
BREATH_SECONDS = 0.01
"""Between two waits: torch's heartbeats go through the same store."""
FAREWELL_SECONDS = 20.0
"""The node that keeps the store waits so long until the others have read all of it."""
LONGEST = 1 << 20
"""Bytes of one value: the store closes the connection of who writes much more."""
BACKENDS = ("static", "c10d")
ADDRESSES = ("rdzv-endpoint", "master-addr")


class NodeGone(Exception):
    """Another node has left or died; the text says which and why."""


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous that the flags ask for. `host` and `port` are the store's.

    `is_host`: whether this node keeps the store, None where its address decides. `number`: of this
    node, and `ranks`: on each node, both None where no flag says it. `conf`: of `--rdzv-conf`.
    """

    nodes: int
    host: str
    port: int
    job: str
    is_host: bool | None
    ranks: int | None
    number: int | None = None
    local_addr: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)


def rendezvous_of(torchrun: Sequence[str], environment: Mapping[str, str]) -> Rendezvous | None:
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
    auto = AUTO in torchrun
    addressed = auto or any(is_given(name, torchrun, environment) for name in ADDRESSES)
    _check_rendezvous(flags, addressed)
    pairs = (part.partition("=") for part in flags.rdzv_conf.split(",") if part)
    conf = {name.strip(): value.strip().lower() for name, _, value in pairs}
    static = flags.rdzv_backend == "static"
    host, port = _endpoint(flags.rdzv_endpoint or f"{flags.master_addr}:{flags.master_port}")
    is_host = flags.node_rank == 0 if static else None
    if "is_host" in conf:
        is_host = conf["is_host"] in ("1", "true", "t", "yes", "y")
    ranks = is_given("nproc-per-node", torchrun, environment)
    return Rendezvous(
        nodes=int(least),
        host=host,
        port=port,
        job=flags.rdzv_id,
        is_host=is_host,
        ranks=_ranks(flags.nproc_per_node) if ranks else None,
        number=node_of(environment).rank if auto else int(flags.node_rank) if static else None,
        local_addr=flags.local_addr,
        conf=conf,
    )


def _check_rendezvous(flags: argparse.Namespace, addressed: bool) -> None:
    """`GpurunError` for a backend that `--scale` cannot use, and without an address."""
    if flags.rdzv_backend not in BACKENDS:
        raise GpurunError(
            f"--scale cannot use --rdzv-backend {flags.rdzv_backend}",
            f"write one of {' and '.join(BACKENDS)}",
        )
    if not addressed:
        raise GpurunError(
            f"--nnodes {flags.nnodes}: no flag names the rendezvous",
            "add --rdzv-backend c10d --rdzv-endpoint HOST:PORT, with the first node's HOST",
        )


def join(rendezvous: Rendezvous) -> NodeGroup:
    """Wait in torch's rendezvous until all nodes are there; `GpurunError` if they do not come."""
    import_torchrun()
    for name, level in PAGES_OF_TEXT.items():
        logging.getLogger(name).setLevel(level)
    api = importlib.import_module("torch.distributed.elastic.rendezvous")
    registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")
    patience, _, attempts = PATIENCE.partition("=")
    conf: dict[str, Any] = {"join_timeout": JOIN_SECONDS, patience: attempts, **rendezvous.conf}
    conf.setdefault("read_timeout", conf["join_timeout"])  # the store may come as late as nodes
    if rendezvous.is_host is not None:
        conf["is_host"] = int(rendezvous.is_host)
    host = f"[{rendezvous.host}]" if ":" in rendezvous.host else rendezvous.host
    about = (
        f"{host}:{rendezvous.port}",
        rendezvous.job,
        rendezvous.nodes,
        rendezvous.nodes,
        rendezvous.local_addr,
    )
    parameters = api.RendezvousParameters("c10d", *about, **conf)

    def connect() -> tuple[Any, Any]:
        handler = registry.get_rendezvous_handler(parameters)
        return handler, handler.next_rendezvous()

    try:
        return NodeGroup(rendezvous, *_interruptible(connect))
    except (api.RendezvousError, NodeGone, RuntimeError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        raise GpurunError(
            f"the {rendezvous.nodes} nodes did not meet at {host}:{rendezvous.port}: "
            f"{first_line(cause)}",
            "start the same command on every node; check --rdzv-endpoint, or --master-addr, "
            "--master-port and --node-rank; --rdzv-conf is_host=1 says which node is the first",
        ) from error


class NodeGroup:
    """The nodes that have met. `number`: of this one, 0 where the store is kept.

    Every method that reads or writes raises `NodeGone` once the store is lost.
    """

    def __init__(self, rendezvous: Rendezvous, handler: Any, info: Any) -> None:
        self.rendezvous = rendezvous
        self._handler = handler
        self._store = info.store
        self._known = nodes_there(handler)
        self.number = int(info.rank)
        wishes = self.gather("number", str(_wish(rendezvous)).encode())
        # torch numbers by address: the node that the flags call the first goes first
        order = sorted(range(rendezvous.nodes), key=lambda rank: (int(wishes[rank]), rank))
        self.number = order.index(self.number)

    def put(self, name: str, data: bytes = b"") -> None:
        """Have `data`, which may be long, found under `name`."""
        parts = [data[i : i + LONGEST] for i in range(0, len(data), LONGEST)]
        for number, part in enumerate(parts):
            self._asked(self._store.set, f"{name}/{number}", part)
        self._asked(self._store.set, name, str(len(parts)))  # last: then all of it is there

    def has(self, name: str) -> bool:
        """True if somebody put something under `name`."""
        return bool(self._asked(self._store.check, [name]))

    def get(self, name: str) -> bytes:
        """The data that was put under `name`."""
        count = int(self._asked(self._store.get, name))
        return b"".join(self._asked(self._store.get, f"{name}/{i}") for i in range(count))

    def wait(self, name: str, look: Look = lambda: None) -> bytes:
        """Wait for the data that a node puts under `name`.

        `look` is called now and then; `NodeGone` where a node is not there any more.
        """
        while not self.has(name):
            try:
                self.check_nodes()
                look()
            except NodeGone:
                if self.has(name):
                    break  # that node said it meanwhile, before it ended
                raise
            try:
                self._store.wait([name], LOOK)
            except RuntimeError:
                time.sleep(BREATH_SECONDS)  # nobody has put it yet; a lost store is seen above
        return self.get(name)

    def gather(
        self, name: str, data: bytes, look: Callable[[], None] = lambda: None
    ) -> list[bytes]:
        """Wait for the data of all nodes under `name`, by number; every node must call this."""
        self.put(f"{name}/{self.number}", data)
        return [self.wait(f"{name}/{number}", look) for number in range(self.rendezvous.nodes)]

    def check_nodes(self) -> None:
        """`NodeGone` where torch's rendezvous hears no heartbeat of another node any more."""
        gone = gone_nodes(self._handler, self._known)
        if gone:
            raise NodeGone(f"node {', '.join(gone)} is gone: its launcher no longer answers")

    def close(self) -> None:
        """Wait until the other nodes have read what was said to them: then the store may go."""
        end = time.monotonic() + FAREWELL_SECONDS

        def look() -> None:
            if time.monotonic() > end:
                raise NodeGone(f"a node did not end within {FAREWELL_SECONDS:g} s")

        with suppress(NodeGone):  # whoever kept the store has heard all of us
            self.gather("bye", b"", look)

    def _asked(self, question: Callable[..., T], *about: Any) -> T:
        try:
            return question(*about)
        except RuntimeError as error:  # torch's errors of stores and networks
            raise NodeGone(
                f"the node that keeps the rendezvous is gone: {first_line(error)}"
            ) from error


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


def _wish(rendezvous: Rendezvous) -> int:
    """Where this node wants to stand: by its number, else the one that can keep the store first."""
    if rendezvous.number is not None:
        return rendezvous.number
    if rendezvous.is_host is not None:
        return int(not rendezvous.is_host)
    utils = importlib.import_module("torch.distributed.elastic.rendezvous.utils")
    return int(not utils._matches_machine_hostname(rendezvous.host))


def _interruptible(question: Callable[[], T]) -> T:
    """The answer of a question that blocks in torch, where a signal does not end it."""
    answers: list[T] = []
    errors: list[Exception] = []
    done = threading.Event()

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # raised again below, in the thread that asks
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=ask, name="gpurun-rendezvous", daemon=True).start()
    done.wait()
    if errors:
        raise errors[0]
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


def _endpoint(text: str) -> tuple[str, int]:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        host, port = parse_rendezvous_endpoint(text, C10D_PORT)
    except ValueError as error:
        raise GpurunError(first_line(error), "write --rdzv-endpoint HOST:PORT") from error
    return str(host), int(port)
