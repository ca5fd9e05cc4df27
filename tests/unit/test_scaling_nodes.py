"""Nodes of `--scale` that meet in torch's rendezvous: one plan, one record, one end."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.commands.scale import check_counts
from gpurun.errors import GpurunError
from gpurun.launch.rendezvous import (
    NodeGone,
    NodeGroup,
    Rendezvous,
    free_port,
    join,
    rendezvous_of,
)
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import StopRule
from gpurun.scaling.node_records import LaunchOutcome, files_of, keep_files, number_logs
from gpurun.scaling.nodes import NodeFacts, Nodes, NodeVerdict, worse
from gpurun.scaling.scaling_requests import NodeShare, PlannedLaunch, RequestBuilder
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome, conclude
from tests.unit.scaling_launches import CPU

T = TypeVar("T")
Both = Callable[[Callable[[int], T]], list[T]]

MET = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1")
SAME = {"command": "script train.py", "script": "abc", "version of torch": "2.13.0"}
FACTS = NodeFacts("gpu", "CPU cores", 2, 2, SAME)
ORDER = PlannedLaunch(4, StopRule(1, 0.0, 10, 0, 0))
OPTIONS = parse(["--scale", "1,4", "train.py"], {})
LEFT_BEHIND = Failure(FailureKind.RANK_LEFT_BEHIND, "some of its ranks did not end with the others")
HUNG = Failure(FailureKind.HUNG, "hangs")


class Launched:
    """In place of a node's launcher: run folders below `folder`, with the records of two ranks."""

    def __init__(self, folder: Path, ended: LaunchOutcome, error: Exception | None = None) -> None:
        self.folder = folder
        self.ended = ended
        self.error = error
        self.layered = True
        self.requests: list[LaunchRequest] = []

    def has_layer(self, shared: str) -> bool:
        return self.layered

    def drop_layer(self, shared: str) -> None:
        self.layered = False

    def run(self, request: LaunchRequest, ended_elsewhere: Callable[[], bool]) -> Outcome:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        record(request.run_dir)
        ended_elsewhere()
        return conclude(request, self.ended.exit_code, self.ended.seconds, self.ended.given_up)


def record(run_dir: Path) -> None:
    log = run_dir / "ranks" / "x" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text("ValueError: no data")
    (run_dir / "events-7.jsonl").write_text('{"event":"process","unix_time_ns":5000}\n[]\n')
    (run_dir / "samples.jsonl").write_text(
        '{"event": "host", "unix_time_ns": 1}\n{"event": "device", "unix_time_ns": 6000}\n'
    )


def run(nodes: Nodes, launched: Launched, **planned: Any) -> Outcome:
    """Carry out a planned launch, of four ranks by default, as one node does."""
    wanted = replace(ORDER, **planned)
    requests = RequestBuilder(OPTIONS, launched.folder, CPU)

    def make(name: str, share: NodeShare) -> LaunchRequest:
        return requests.make(f"{len(launched.requests)}-{name}", wanted, share, None)

    return nodes.run(wanted, make, launched)  # type: ignore[arg-type]


def shown(launched: Launched) -> list[tuple[str, int, int]]:
    """Folders of what a node launched, with how many nodes and ranks of its own."""
    found = []
    for request in launched.requests:
        words = () if request.ranks is None else request.ranks.torchrun
        flags = dict(word.partition("=")[::2] for word in words)
        nodes, ranks = flags.get("--nnodes", "1"), flags.get("--nproc-per-node", "1")
        found.append((request.run_dir.name, int(nodes), int(ranks)))
    return found


@pytest.fixture
def both() -> Iterator[Both[Any]]:
    """Have two nodes do something at the same time, and hear what came of it, by number."""
    with ThreadPoolExecutor(2) as pool:
        yield lambda work: list(pool.map(work, range(2)))


def groups(both: Both[NodeGroup], **conf: str) -> list[NodeGroup]:
    """Two nodes that have met."""
    place = Rendezvous(
        2, "localhost", free_port(), "job", None, 2, conf={"join_timeout": "60", **conf}
    )
    return both(lambda number: join(replace(place, is_host=number == 0)))


@pytest.fixture
def pair(both: Both[Any]) -> list[Nodes]:
    """Two nodes that know each other; what they are told is in `told` of each."""
    nodes = [_nodes(group) for group in groups(both)]
    both(lambda number: nodes[number].introduce(FACTS))
    return nodes


def _nodes(group: NodeGroup) -> Nodes:
    told: list[str] = []
    nodes = Nodes(group, told.append)
    nodes.told = told  # type: ignore[attr-defined]
    return nodes


def test_what_a_node_said_before_it_ended_is_heard(both: Both[NodeGroup]) -> None:
    group = groups(both)[0]

    def said_and_gone() -> None:
        group.put("facts", b"mine")
        raise NodeGone("the first node has ended")

    def gone() -> None:
        raise NodeGone("the first node has ended")

    assert group.wait("facts", said_and_gone) == b"mine"
    with pytest.raises(NodeGone):
        group.wait("never said", gone)


def launch(
    both: Both[Any], pair: list[Nodes], launched: list[Launched], **planned: Any
) -> list[Outcome]:
    """The same launch on both nodes; what each of them makes of it."""
    return both(lambda node: run(pair[node], launched[node], **planned))


def test_the_node_that_keeps_the_store_is_the_first_and_all_hear_what_each_says(
    both: Both[Any],
) -> None:
    found = groups(both)
    assert [group.number for group in found] == [0, 1]
    said = [b"from node 0", b"long" * 1_000_000]
    assert both(lambda node: found[node].gather("x", said[node])) == [said, said]


def test_node_ranks_say_who_is_the_first(both: Both[Any]) -> None:
    place = Rendezvous(2, "localhost", free_port(), "job", None, 2, conf={"join_timeout": "60"})
    flags = [replace(place, is_host=node == 1, number=1 - node) for node in range(2)]
    assert [group.number for group in both(lambda node: join(flags[node]))] == [1, 0]


def test_a_launch_on_two_nodes_is_in_one_record_on_both(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    launched = [
        Launched(tmp_path / str(node), LaunchOutcome(node, 2.0 + node)) for node in range(2)
    ]
    assert [x.exit_code for x in launch(both, pair, launched)] == [1, 1], "it failed on one"
    assert pair[0].now == pair[1].now > 0, "budgets are kept by one clock"
    assert shown(launched[0]) == shown(launched[1]) == [("0-of-4", 2, 2)]
    ports = {word for x in launched for word in x.requests[0].ranks.torchrun if "port" in word}  # type: ignore[union-attr]
    assert len(ports) == 1
    for node, other, rank in ((0, 1, 3), (1, 0, 1)):
        run_dir = tmp_path / str(node) / "launches" / "0-of-4"
        assert (run_dir / f"events-node{other}-7.jsonl").exists()
        log = run_dir / "ranks" / f"node{other}" / "attempt_0" / str(rank) / "stderr.log"
        assert log.read_text() == "ValueError: no data", "the second local rank"


def test_a_launch_of_one_node_is_known_to_the_others(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    launched = [Launched(tmp_path / str(node), LaunchOutcome(0, 2.0 + node)) for node in range(2)]
    ended = launch(both, pair, launched, ranks=1)
    assert [(x.exit_code, x.seconds) for x in ended] == [(0, 2.0), (0, 2.0)]
    assert launched[1].requests == []
    run_dir = tmp_path / "1" / "launches" / "0-of-1"
    assert (run_dir / "events-node0-7.jsonl").exists()


def test_records_are_put_on_this_nodes_clock(tmp_path: Path) -> None:
    there, here = tmp_path / "1", tmp_path / "0"
    record(there)
    here.mkdir()
    (here / "samples.jsonl").write_text('{"event": "host", "unix_time_ns": 2}\n')
    number_logs(there, first_rank=2)
    keep_files(files_of(there, node=1), here, ahead_ns=2000)
    event, rest = (here / "events-node1-7.jsonl").read_text().splitlines()
    assert json.loads(event) == {"event": "process", "unix_time_ns": 3000}
    assert rest == "[]"
    samples = [json.loads(line) for line in (here / "samples.jsonl").read_text().splitlines()]
    assert samples == [
        {"event": "host", "unix_time_ns": 2},
        {"event": "device", "unix_time_ns": 4000},
    ]
    log = here / "ranks" / "node1" / "attempt_0" / "3" / "stderr.log"
    source = next(there.rglob("stderr.log"))
    assert abs(log.stat().st_mtime_ns - source.stat().st_mtime_ns + 2000) < 1000


def test_clocks_are_compared_when_all_nodes_begin_a_launch(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    ahead, meet = 3_600_000_000_000, pair[1]._synchronize

    def an_hour_ahead(name: str) -> tuple[int, int]:
        port, met_ns = meet(name)
        return port, met_ns + ahead

    pair[1]._synchronize = an_hour_ahead  # type: ignore[method-assign]
    launched = [Launched(tmp_path / str(node), LaunchOutcome(0, 2.0)) for node in range(2)]
    launch(both, pair, launched)
    for node in range(2):
        path = tmp_path / str(node) / "launches" / "0-of-4" / f"events-node{1 - node}-7.jsonl"
        moved = json.loads(path.read_text().splitlines()[0])["unix_time_ns"] - 5000
        assert moved == pytest.approx(ahead if node else -ahead, abs=500_000_000)


def test_all_nodes_warm_up_and_one_that_cannot_is_told(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    launched = [Launched(tmp_path / str(node), LaunchOutcome(7 * node, 2.0)) for node in range(2)]
    launched[1].layered = False
    ended = launch(both, pair, launched, ranks=1, first=True)
    assert [x.exit_code for x in ended] == [0, 0]
    assert shown(launched[0]) == [("0-of-1", 1, 1)]
    assert shown(launched[1]) == [("0-warm-up", 1, 2)]
    for nodes in pair:
        assert nodes.told == ["node 1 (gpu) did not warm up: exit code 7"]  # type: ignore[attr-defined]
    assert not launched[0].layered, "launches start alike on all nodes"
    warm_up = list((tmp_path / "0").rglob("events-node1*"))
    assert warm_up == [], "what only warms up is not measured"


def test_a_share_that_cannot_be_launched_is_the_error_of_its_launch(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    ours = Launched(tmp_path / "0", LaunchOutcome(None, 2.0, LEFT_BEHIND))
    theirs = Launched(tmp_path / "1", ours.ended, OSError(28, "No space left on device"))
    why = "node 1 (gpu): could not be launched: No space left on device"
    for outcome in launch(both, pair, [ours, theirs]):
        assert outcome.failure == Failure(FailureKind.NOT_STARTED, why)


@pytest.mark.parametrize(
    ("ours", "theirs", "code", "given_up"),
    [
        ((0, None), (0, None), 0, None),
        ((0, None), (3, None), 3, None),
        ((None, LEFT_BEHIND), (3, None), 3, None),  # they failed, and we waited for them
        ((3, None), (None, LEFT_BEHIND), 3, None),
        ((3, None), (None, HUNG), 3, None),
        ((1, None), (137, None), 137, None),  # killed for want of memory; the other lost its peer
        ((137, None), (1, None), 137, None),
        ((None, LEFT_BEHIND), (None, HUNG), None, HUNG),
        ((None, HUNG), (None, LEFT_BEHIND), None, HUNG),
        ((0, None), (None, LEFT_BEHIND), None, LEFT_BEHIND),
    ],
)
def test_the_cause_is_told_and_not_its_consequence(
    ours: tuple[int | None, Failure | None],
    theirs: tuple[int | None, Failure | None],
    code: int | None,
    given_up: Failure | None,
) -> None:
    ended = worse(LaunchOutcome(ours[0], 2.0, ours[1]), LaunchOutcome(theirs[0], 2.0, theirs[1]))
    assert (ended.exit_code, ended.given_up) == (code, given_up)


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (
            replace(FACTS, same={**SAME, "script": "abd"}),
            "the script of node 1 (gpu) is not the same as on node 0 (gpu)",
        ),
        (
            replace(FACTS, room=1),
            "node 1 (gpu) has room for 1 of the 2 ranks that each is to have",
        ),
    ],
)
def test_nodes_that_do_not_fit_are_refused_by_name_on_all_of_them(
    both: Both[Any], theirs: NodeFacts, what: str
) -> None:
    nodes = [_nodes(group) for group in groups(both)]

    def introduced(number: int) -> tuple[str, str]:
        with pytest.raises(GpurunError) as raised:
            nodes[number].introduce(theirs if number else FACTS)
        return raised.value.what, raised.value.todo

    for said, todo in both(introduced):
        assert said == what
        assert todo


def test_other_devices_are_told(both: Both[Any]) -> None:
    nodes = [_nodes(group) for group in groups(both)]
    others = replace(FACTS, device="NVIDIA A100", room=8)
    both(lambda number: nodes[number].introduce(others if number else FACTS))
    assert nodes[0].told == ["node 1 (gpu) has other devices: NVIDIA A100"]  # type: ignore[attr-defined]


def test_a_node_without_heartbeats_ends_the_launches_of_all_nodes(
    both: Both[Any], tmp_path: Path
) -> None:
    first, second = groups(both, keep_alive_interval="1", keep_alive_max_attempt="2")
    second._handler._stop_heartbeats()  # as if its launcher had died
    nodes = Nodes(first, lambda _: None)
    launched = Launched(tmp_path, LaunchOutcome(0, 2.0))
    gone = f"node {socket.getfqdn()} is gone: its launcher no longer answers"
    for ranks in (1, 4):
        outcome = run(nodes, launched, ranks=ranks)
        assert outcome.failure == Failure(FailureKind.NODE_LOST, gone)
    assert launched.requests == []


def test_a_node_that_leaves_ends_the_launches_of_the_others_with_its_reason(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    def work(number: int) -> Any:
        if number:
            return pair[1].end(NodeVerdict("interrupted", 130, "it was interrupted"))
        outcome = run(pair[0], Launched(tmp_path, LaunchOutcome(0, 1.0)))
        return outcome.failure, pair[0].end(NodeVerdict("failed", 5))

    (failure, ours), theirs = both(work)
    assert failure == Failure(FailureKind.NODE_LOST, "node 1 (gpu): it was interrupted")
    assert (ours.exit_code, theirs.exit_code) == (5, 130)


def test_all_nodes_end_as_the_first_one(pair: list[Nodes], tmp_path: Path, both: Both[Any]) -> None:
    def work(number: int) -> NodeVerdict:
        if number == 0:
            return pair[0].end(NodeVerdict("error", 2, "s.json cannot be written"))
        failure = run(pair[1], Launched(tmp_path, LaunchOutcome(0, 1.0))).failure
        assert failure is not None
        assert failure.text == "the first node has ended: s.json cannot be written"
        return pair[1].end(NodeVerdict("failed", 5))

    assert both(work) == [NodeVerdict("error", 2, "s.json cannot be written")] * 2


def test_nodes_that_come_to_launch_different_things_stop(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    def work(number: int) -> Failure | None:
        launched = Launched(tmp_path / str(number), LaunchOutcome(0, 1.0))
        return run(pair[number], launched, exchange=number == 0).failure

    why = "the nodes chose different launches"
    assert both(work) == [Failure(FailureKind.NODE_LOST, why)] * 2


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        ((1, 12), "--scale: 12 does not fill nodes of 8 ranks"),
        ((8, 24), "--scale: 24 is above the 16 ranks of 2 nodes"),
    ],
)
def test_counts_fill_whole_nodes(counts: tuple[int, ...], what: str) -> None:
    check_counts((1, 3, 8, 16), 8, 2)
    with pytest.raises(GpurunError) as raised:
        check_counts(counts, 8, 2)
    assert raised.value.what == what


def test_where_nodes_meet_is_read_as_torchrun_reads_it() -> None:
    c10d = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=x")
    assert rendezvous_of(("--nnodes=1",), {}) is None
    assert rendezvous_of((*c10d, "--rdzv-endpoint=host:1234"), {}) == Rendezvous(
        2, "host", 1234, "x", None, None
    )
    hosting = (*c10d, "--rdzv-endpoint=host", "--rdzv-conf=is_host=1,join_timeout=5")
    assert rendezvous_of((*hosting, "--nproc-per-node=4"), {}) == Rendezvous(
        2, "host", 29400, "x", True, 4, None, None, {"is_host": "1", "join_timeout": "5"}
    )
    static = ("--nnodes=2", "--node-rank=1", "--master-addr=a", "--master-port=7")
    found = rendezvous_of(static, {})
    assert found is not None
    assert (found.host, found.port, found.is_host, found.number) == ("a", 7, False, 1)
    slurm = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_PROCID": "1",
    }  # fmt: skip
    found = rendezvous_of(("--nnodes=auto",), slurm)
    assert found is not None
    assert (found.host, found.is_host, found.job) == ("gpu3", False, "slurm-7.0")
    assert found.number == 1


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--nnodes=1:4",), "--nnodes 1:4 is no fixed number of nodes"),
        (("--nnodes=2",), "--nnodes 2: no flag names the rendezvous"),
        (("--nnodes=2", "--rdzv-backend=etcd"), "--scale cannot use --rdzv-backend etcd"),
        ((*MET, "--nproc-per-node=0"), "--nproc-per-node 0 is no number of ranks"),
        ((*MET, "--nproc-per-node=many"), "--nproc-per-node many: "),
        (
            ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:x"),
            "The port number of the rendezvous endpoint 'h:x' must be an integer between 0 and",
        ),
    ],
)
def test_what_is_no_place_to_meet_is_refused(flags: tuple[str, ...], what: str) -> None:
    with pytest.raises(GpurunError) as raised:
        rendezvous_of(flags, {})
    assert raised.value.what.startswith(what)


def test_a_port_that_a_stranger_holds_is_an_error_with_a_cure() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        place = Rendezvous(2, "localhost", port, "job", True, 1, conf={"join_timeout": "1"})
        with pytest.raises(GpurunError) as raised:
            join(place)
    assert raised.value.what.startswith(f"the 2 nodes did not meet at localhost:{port}: ")
    assert os.linesep not in raised.value.what


def test_a_node_that_does_not_come_is_an_error_with_a_cure() -> None:
    place = Rendezvous(2, "localhost", free_port(), "job", True, 1, conf={"join_timeout": "1"})
    with pytest.raises(GpurunError, match="the 2 nodes did not meet at localhost") as raised:
        join(place)
    assert "on every node" in raised.value.todo
