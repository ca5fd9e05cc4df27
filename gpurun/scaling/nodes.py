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
from gpurun.launch.elastic_agent import NODE_LOST
from gpurun.launch.rendezvous import NodeGone, NodeGroup, free_port
from gpurun.records.codec import from_json, to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.scaling.node_records import (
    LaunchOutcome,
    NodeRecords,
    files_of,
    keep_files,
    number_logs,
)
from gpurun.scaling.scaling_requests import NodeShare, PlannedLaunch
from gpurun.trials.launch_request import ALL_LAUNCHES, LaunchRequest
from gpurun.trials.outcome import Outcome, conclude
from gpurun.trials.trial_launcher import TrialLauncher

LOOK_SECONDS = 0.5
"""Seconds between two looks at the other nodes while a launch runs."""
VERDICT_SECONDS = 60.0
"""The first node has so long to write its report after the last launch."""
VERDICT = "verdict"
LEFT = "left"
WARM_UP = "warm-up"

MakeRequest = Callable[[str, NodeShare], LaunchRequest]
"""The request for a launch, by the name of its folder and this node's share of it."""


@dataclass(frozen=True)
class NodeFacts:
    """The facts that a node sends to the others. `room`: ranks that it has devices for. `ranks`:
    ranks that it would give to each node. `same`: values that must be alike on all nodes, by name.
    """

    host: str
    device: str
    room: int
    ranks: int
    same: dict[str, str]


@dataclass(frozen=True)
class NodeVerdict:
    """The end of a node. `why` it could not go on, "" where it could."""

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
        self._launched = 0
        self.now = 0.0
        """The first node's clock after the last launch: budgets are kept by it, on every node."""
        self._names = [f"node {number}" for number in range(group.rendezvous.nodes)]
        self._tell = tell

    def introduce(self, own: NodeFacts) -> None:
        """Compare with the other nodes; `GpurunError`, on all of them, where one does not fit."""
        try:
            about = json.dumps([time.monotonic(), to_json(own)]).encode()
            told = [json.loads(text) for text in self._gathered("facts", about)]
        except NodeGone as error:
            raise GpurunError(str(error), "see the output of its launcher") from error
        self.now = float(told[0][0])
        facts = [from_json(NodeFacts, fields) for _, fields in told]
        self.ranks = facts[0].ranks
        self._names = [f"node {number} ({one.host})" for number, one in enumerate(facts)]
        for number, one in enumerate(facts):
            self._check(number, facts[0], one)

    @property
    def first(self) -> bool:
        """True for the node that reports."""
        return self.group.number == 0

    def spanned(self, ranks: int) -> int:
        """The number of nodes that a launch of so many ranks takes."""
        return max(ranks // self.ranks, 1)

    def run(self, planned: PlannedLaunch, make: MakeRequest, trials: TrialLauncher) -> Outcome:
        """Launch on as many nodes as it takes; this node's run folder then holds all of it."""
        whole = make(planned.name, NodeShare(planned.ranks))
        whole.run_dir.mkdir(parents=True, exist_ok=True)
        try:
            if self.gone:
                raise NodeGone(self.gone)
            ended = self._run(planned, make, trials, whole)
        except (NodeGone, OSError) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"the records of another node could not be kept: {error.strerror or error}"
            if not self.gone:
                self._tell(why)
            self.gone = why
            ended = LaunchOutcome(None, 0.0, Failure(FailureKind.NODE_LOST, why))
        return conclude(whole, ended.exit_code, ended.seconds, ended.given_up)

    def end(self, own: NodeVerdict) -> NodeVerdict:
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
            own = NodeVerdict("failed", NODE_LOST, str(error))
        self.group.close()
        return own

    # -- a launch ------------------------------------------------------------------------------

    def _run(
        self, planned: PlannedLaunch, make: MakeRequest, trials: TrialLauncher, whole: LaunchRequest
    ) -> LaunchOutcome:
        nodes = self.spanned(planned.ranks)
        self._launched += 1
        port, met_ns = self._synchronize(whole.name)
        request = self._request(planned, make, whole, port)
        ended = LaunchOutcome(0, 0.0) if request is None else self._launch(request, nodes, trials)
        if request is not None and request.run_dir == whole.run_dir:
            number_logs(whole.run_dir, self.group.number * self.ranks)
            files = files_of(whole.run_dir, self.group.number)
        else:
            files = ()  # a node that warms up by itself is not measured
        own = NodeRecords(ended, met_ns, time.monotonic(), trials.has_layer(ALL_LAUNCHES), files)
        packed = self._gathered(f"{self._launched}/ended", own.pack())
        everyone = [NodeRecords.unpack(data) for data in packed]
        if not all(one.layered for one in everyone):
            trials.drop_layer(ALL_LAUNCHES)
        return self._concluded(everyone, nodes, whole.run_dir)

    def _synchronize(self, name: str) -> tuple[int, int]:
        """Wait until all nodes are at this launch: a port of the first, and our wall clock then."""
        told = self._gathered(f"{self._launched}/ready", json.dumps([name, free_port()]).encode())
        met_ns = time.time_ns()
        others = [json.loads(text) for text in told]
        if any(other != name for other, _ in others):
            raise NodeGone("the nodes chose different launches")
        return int(others[0][1]), met_ns

    def _request(
        self, planned: PlannedLaunch, make: MakeRequest, whole: LaunchRequest, port: int
    ) -> LaunchRequest | None:
        """The request that this node launches; None if the launch does not need this node."""
        number, nodes = self.group.number, self.spanned(planned.ranks)
        if number < nodes:
            host = self.group.rendezvous.host
            share = NodeShare(self.ranks, nodes, number, host, port)
            return whole if nodes == 1 else make(planned.name, share)
        return make(WARM_UP, NodeShare(self.ranks)) if planned.first else None

    def _launch(self, request: LaunchRequest, nodes: int, trials: TrialLauncher) -> LaunchOutcome:
        alone = request.name.endswith(WARM_UP)
        others = [] if alone else [n for n in range(nodes) if n != self.group.number]
        try:
            outcome = trials.run(request, self._looking(others))
        except (OSError, GpurunError) as error:
            what = error.what if isinstance(error, GpurunError) else error.strerror or str(error)
            text = f"could not be launched: {what}"
            return LaunchOutcome(None, 0.0, Failure(FailureKind.NOT_STARTED, text))
        given_up = outcome.failure if outcome.exit_code is None else None
        return LaunchOutcome(outcome.exit_code, outcome.seconds, given_up)

    def _looking(self, others: list[int]) -> Callable[[], bool]:
        """Asks from time to time whether the launch has ended on another node of it."""
        next_look = 0.0

        def ended() -> bool:
            nonlocal next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + LOOK_SECONDS
            self._check_left()
            self.group.check_nodes()
            return any(self.group.has(f"{self._launched}/ended/{n}") for n in others)

        return ended

    def _concluded(self, everyone: list[NodeRecords], nodes: int, run_dir: Path) -> LaunchOutcome:
        """The end of the launch as a whole. The records of other nodes are kept."""
        self.now = everyone[0].moment
        met_ns = everyone[self.group.number].met_ns
        named = []
        for number, one in enumerate(everyone):
            ended, name = one.ended, self._names[number]
            if number != self.group.number:
                keep_files(one.files, run_dir, one.met_ns - met_ns)
            if number and ended.given_up is not None:
                told = replace(ended.given_up, text=f"{name}: {ended.given_up.text}")
                ended = replace(ended, given_up=told)
            if number < nodes:
                named.append(ended)
            elif ended.given_up is not None or ended.exit_code:
                why = f"exit code {ended.exit_code}"
                why = why if one.ended.given_up is None else one.ended.given_up.text
                self._tell(f"{name} did not warm up: {why}")
        return functools.reduce(worse, named)

    # -- the other nodes -----------------------------------------------------------------------

    def _gathered(self, name: str, data: bytes) -> list[bytes]:
        return self.group.gather(name, data, self._check_left)

    def _check_left(self) -> None:
        """`NodeGone` where another node has ended."""
        if self.group.has(LEFT):
            raise NodeGone(self.group.get(LEFT).decode())
        if self.group.has(VERDICT):
            why = from_json(NodeVerdict, json.loads(self.group.get(VERDICT))).why
            raise NodeGone(f"the first node has ended{f': {why}' if why else ''}")

    def _verdict(self) -> NodeVerdict:
        end = time.monotonic() + VERDICT_SECONDS

        def look() -> None:
            if time.monotonic() > end:
                raise NodeGone(f"the first node said nothing for {VERDICT_SECONDS:g} s")

        return from_json(NodeVerdict, json.loads(self.group.wait(VERDICT, look)))

    def _check(self, number: int, first: NodeFacts, other: NodeFacts) -> None:
        for what, text in first.same.items():
            if other.same.get(what) != text:
                raise GpurunError(
                    f"the {what} of {self._names[number]} is not the same as on {self._names[0]}",
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


def worse(one: LaunchOutcome, other: LaunchOutcome) -> LaunchOutcome:
    """The worse of two nodes' ends of one launch.

    A cause comes before its consequence: ranks that waited for others were given up for it.
    """
    codes = [ended.exit_code for ended in (one, other) if ended.exit_code]
    if codes:
        # a rank that a signal killed (out of memory) comes before one that lost the connection
        code = max(codes) if max(codes) > 128 else codes[0]
        return replace(one, exit_code=code, given_up=None)
    given_up = [ended.given_up for ended in (one, other) if ended.given_up is not None]
    if not given_up:
        return one
    causes = [why for why in given_up if why.kind is not FailureKind.RANK_LEFT_BEHIND]
    return replace(one, exit_code=None, given_up=(causes or given_up)[0])
