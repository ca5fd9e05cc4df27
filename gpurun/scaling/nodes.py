"""Several nodes that carry out the same plan, each by itself.

A launch that one node has room for runs on the first alone; a larger one takes as many nodes as it
fills. After each launch all nodes gather what every one of them recorded, through the store of
torch's rendezvous. So all of them have the same figures and decide alike what to launch next.
All nodes warm up, for what a script downloads must be everywhere: those that the first launch does
not take do so by themselves.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.launch.elastic import NODE_LOST
from gpurun.launch.rendezvous import NodeGone, NodeGroup, free_port
from gpurun.records.codec import from_json, to_json
from gpurun.scaling.here import NOT_WITH_OTHERS, Here, Part
from gpurun.scaling.launch import Ended
from gpurun.scaling.node_records import NodeFile, NodeRecords, files_of, keep_files, number_logs

LOOK_SECONDS = 0.5
"""How often the others are looked at while a launch runs."""
VERDICT_SECONDS = 60.0
"""The first node has so long to write its report after the last launch."""
VERDICT = "verdict"
LEFT = "left"


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself. `room`: ranks that it has devices for; `ranks`: those that it
    would give to each node; `same`: what must be alike on all nodes, by what it is called.
    """

    host: str
    device: str
    room: int
    ranks: int
    same: dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """How a node ends. `why` it could not go on, "" where it could."""

    verdict: str
    exit_code: int
    why: str = ""


class Nodes:
    """All nodes, as one of them sees them: those of the same measurement. `ranks`: on each of them.

    `gone`: why no launch is possible any more, "" as long as all nodes are there. `tell` hears it.
    """

    def __init__(self, group: NodeGroup, tell: Callable[[str], None]) -> None:
        self.group = group
        self.ranks = 1
        self.gone = ""
        self.now = 0.0
        """The first node's clock after the last launch: budgets are kept by it, on every node."""
        self._names = [f"node {number}" for number in range(group.place.nodes)]
        self._tell = tell

    def introduce(self, own: NodeFacts) -> None:
        """Compare with the other nodes; `GpurunError`, on all of them, where one does not fit."""
        try:
            about = json.dumps([time.monotonic(), to_json(own)]).encode()
            told = [json.loads(text) for text in self._gathered("facts", about)]
        except NodeGone as error:
            raise GpurunError(str(error), "look at what its launcher says") from error
        self.now = float(told[0][0])
        facts = [from_json(NodeFacts, fields) for _, fields in told]
        self.ranks = facts[0].ranks
        self._names = [f"node {number} ({one.host})" for number, one in enumerate(facts)]
        for number, one in enumerate(facts):
            self._check(number, facts[0], one)

    @property
    def first(self) -> bool:
        """Whether this node is the one that reports."""
        return self.group.number == 0

    def spanned(self, ranks: int) -> int:
        """How many nodes a launch of so many ranks takes."""
        return max(ranks // self.ranks, 1)

    def run(self, part: Part, here: Here) -> tuple[Path, Ended]:
        """Launch on as many nodes as it takes; this node's run folder then holds all of it."""
        nodes = self.spanned(part.order.ranks)
        run_dir = here.folder_of(part)
        run_dir.mkdir(parents=True, exist_ok=True)
        if self.gone:
            return run_dir, _lost(self.gone)
        try:
            mine, met_ns = self._meet(part, nodes)
            ended = self._take_part(mine, here)
            layered = here.layer is not None
            files = self._files(mine, run_dir)
            own = NodeRecords(ended, met_ns, time.monotonic(), layered, files)
            packed = self._gathered(f"{part.number}/ended", own.pack())
            everyone = [NodeRecords.unpack(data) for data in packed]
            return run_dir, self._concluded(everyone, nodes, here, run_dir)
        except (NodeGone, OSError) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"the records of another node could not be kept: {error.strerror or error}"
            self.gone = why
            self._tell(why)
            return run_dir, _lost(why)

    def end(self, own: Verdict) -> Verdict:
        """End this node, and hear how: like the first one, unless there is a reason of its own."""
        said = json.dumps(to_json(own)).encode()
        try:
            if self.first:
                self.group.put(VERDICT, said)
            elif own.why:
                self.group.put(LEFT, f"{self._names[self.group.number]}: {own.why}".encode())
            else:
                own = self._verdict()
        except NodeGone as error:
            own = Verdict("failed", NODE_LOST, str(error))
        self.group.close()
        return own

    # -- a launch ------------------------------------------------------------------------------

    def _meet(self, part: Part, nodes: int) -> tuple[Part | None, int]:
        """This node's part of a launch that takes so many, None where it has none; and the wall
        clock when all nodes are there.
        """
        about = {"name": part.name, "port": free_port()}
        told = self._gathered(f"{part.number}/ready", json.dumps(about).encode())
        met_ns = time.time_ns()
        others = [json.loads(text) for text in told]
        if any(other["name"] != part.name for other in others):
            raise NodeGone("the nodes came to launch different things")
        if self.group.number < nodes:
            if nodes == 1:
                return part, met_ns
            host, port = self.group.place.host, others[0]["port"]
            return replace(part, ranks=self.ranks, nodes=nodes, host=host, port=port), met_ns
        if not part.order.first:
            return None, met_ns
        order = replace(part.order, ranks=self.ranks)
        return replace(part, order=order, ranks=self.ranks, warms_up=True), met_ns

    def _take_part(self, part: Part | None, here: Here) -> Ended:
        if part is None:
            return Ended(0, 0.0, "")
        try:
            return here.run(part, self._looking(part))[1]
        except (OSError, GpurunError) as error:
            what = error.what if isinstance(error, GpurunError) else error.strerror or str(error)
            return Ended(None, 0.0, f"could not be launched: {what}")

    def _looking(self, part: Part) -> Callable[[], bool]:
        """Asks from time to time whether the launch has ended on another node of it."""
        others = [n for n in range(part.nodes) if n != self.group.number]
        next_look = 0.0

        def ended() -> bool:
            nonlocal next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + LOOK_SECONDS
            self._check_left()
            self.group.check_nodes()
            return any(self.group.has(f"{part.number}/ended/{n}") for n in others)

        return ended

    def _files(self, part: Part | None, run_dir: Path) -> tuple[NodeFile, ...]:
        if part is None or part.warms_up:  # a node that warms up by itself is not measured
            return ()
        number_logs(run_dir, self.group.number * self.ranks)
        return files_of(run_dir, self.group.number)

    def _concluded(
        self, everyone: list[NodeRecords], nodes: int, here: Here, run_dir: Path
    ) -> Ended:
        """How the launch ended as a whole; what other nodes recorded is kept."""
        self.now = everyone[0].moment
        if not all(one.layered for one in everyone):
            here.layer = None
        met_ns = everyone[self.group.number].met_ns
        for number, one in enumerate(everyone):
            if number != self.group.number:
                keep_files(one.files, run_dir, one.met_ns - met_ns)
            if number >= nodes and (one.ended.given_up or one.ended.exit_code):
                why = one.ended.given_up or f"exit code {one.ended.exit_code}"
                self._tell(f"{self._names[number]} did not warm up: {why}")
        named = [
            replace(one.ended, given_up=f"{name}: {one.ended.given_up}")
            if one.ended.given_up and number
            else one.ended
            for number, (name, one) in enumerate(zip(self._names, everyone, strict=True))
        ]
        return functools.reduce(worse, named[:nodes])

    # -- the other nodes -----------------------------------------------------------------------

    def _gathered(self, name: str, data: bytes) -> list[bytes]:
        return self.group.gather(name, data, self._check_left)

    def _check_left(self) -> None:
        """`NodeGone` where another node has ended."""
        if self.group.has(LEFT):
            raise NodeGone(self.group.get(LEFT).decode())
        if self.group.has(VERDICT):
            why = from_json(Verdict, json.loads(self.group.get(VERDICT))).why
            raise NodeGone(f"the first node has ended{f': {why}' if why else ''}")

    def _verdict(self) -> Verdict:
        end = time.monotonic() + VERDICT_SECONDS

        def look() -> None:
            if time.monotonic() > end:
                raise NodeGone(f"the first node said nothing for {VERDICT_SECONDS:g} s")

        return from_json(Verdict, json.loads(self.group.wait(VERDICT, look)))

    def _check(self, number: int, first: NodeFacts, other: NodeFacts) -> None:
        for what, text in first.same.items():
            if other.same.get(what) != text:
                raise GpurunError(
                    f"the {what} of {self._names[number]} is another one than on {self._names[0]}",
                    "start the same command, with the same files and packages, on every node",
                )
        if other.room < self.ranks:
            raise GpurunError(
                f"{self._names[number]} has room for {other.room} of the {self.ranks} ranks that "
                "each is to have",
                f"write --nproc-per-node {other.room}, or add --oversubscribe",
            )
        if other.device != first.device:
            self._tell(f"{self._names[number]} has other devices: {other.device}")


def _lost(why: str) -> Ended:
    return Ended(None, 0.0, why, lost=True)


def worse(one: Ended, other: Ended) -> Ended:
    """How a launch ended that ended like this on two nodes: badly if it did on one of them.

    A cause comes before its consequence: ranks that waited for others were given up for it.
    """
    codes = [ended.exit_code for ended in (one, other) if ended.exit_code]
    if codes:
        # a rank that a signal killed (out of memory) comes before one that lost the connection
        code = max(codes) if max(codes) > 128 else codes[0]
        return replace(one, exit_code=code, given_up="")
    given_up = [ended.given_up for ended in (one, other) if ended.given_up]
    causes = [why for why in given_up if not why.endswith(NOT_WITH_OTHERS)]
    return replace(one, given_up=next(iter((*causes, *given_up)), ""))
