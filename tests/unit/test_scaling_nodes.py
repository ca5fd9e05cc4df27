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

from gpurun.errors import GpurunError
from gpurun.launch.rendezvous import (
    NodeGroup,
    Rendezvous,
    free_port,
    join,
    rendezvous_of,
)
from gpurun.records.spec import StopRule
from gpurun.scaling.arguments import check_counts
from gpurun.scaling.here import NOT_WITH_OTHERS, Part
from gpurun.scaling.launch import Ended, Order
from gpurun.scaling.node_records import files_of, keep_files, number_logs
from gpurun.scaling.nodes import NodeFacts, Nodes, Verdict, worse

T = TypeVar("T")
Both = Callable[[Callable[[int], T]], list[T]]

MET = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1")
SAME = {"command": "script train.py", "script": "abc", "version of torch": "2.13.0"}
FACTS = NodeFacts("gpu", "CPU cores", 2, 2, SAME)
ORDER = Order(4, StopRule(1, 0.0, 10, 0, 0))
PART = Part(3, ORDER, 4, (), None, layered=True, patience=60.0)


class Launched:
    """In place of what launches on a node: a run folder, with the records of two ranks."""

    def __init__(self, folder: Path, ended: Ended, error: Exception | None = None) -> None:
        self.folder = folder
        self.ended = ended
        self.error = error
        self.layer: Path | None = folder
        self.parts: list[Part] = []

    def folder_of(self, part: Part) -> Path:
        return self.folder / part.name

    def run(self, part: Part, ended_elsewhere: Callable[[], bool]) -> tuple[Path, Ended]:
        self.parts.append(part)
        if self.error is not None:
            raise self.error
        run_dir = self.folder_of(part)
        log = run_dir / "ranks" / "x" / "attempt_0" / "1" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("ValueError: no data")
        (run_dir / "events-7.jsonl").write_text('{"event":"process","unix_time_ns":5000}\n[]\n')
        (run_dir / "samples.jsonl").write_text(
            '{"event": "host", "unix_time_ns": 1}\n{"event": "device", "unix_time_ns": 6000}\n'
        )
        ended_elsewhere()
        return run_dir, self.ended


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


def launch(
    both: Both[Any],
    pair: list[Nodes],
    launched: list[Launched],
    number: int,
    ranks: int,
    **order: Any,
) -> list[Ended]:
    """The same launch on both nodes; how each of them sees it ended."""
    part = replace(PART, number=number, ranks=ranks, order=replace(ORDER, ranks=ranks, **order))
    return both(lambda node: pair[node].run(part, launched[node])[1])  # type: ignore[arg-type]


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
    ended = [Ended(0, 2.0, ""), Ended(1, 3.0, "")]
    launched = [Launched(tmp_path / str(node), ended[node]) for node in range(2)]
    assert [x.exit_code for x in launch(both, pair, launched, 3, 4)] == [1, 1], "it failed on one"
    assert pair[0].now == pair[1].now > 0, "budgets are kept by one clock"
    launch(both, pair, launched, 4, 2)
    ended = launch(both, pair, launched, 5, 1, first=True)
    assert [x.exit_code for x in ended] == [0, 0], "what warms up elsewhere is not what is measured"
    assert [(p.number, p.nodes, p.ranks) for p in launched[0].parts] == [
        (3, 2, 2), (4, 1, 2), (5, 1, 1),
    ]  # fmt: skip
    assert [(p.number, p.nodes, p.ranks) for p in launched[1].parts] == [(3, 2, 2), (5, 1, 2)]
    assert launched[0].parts[0].port == launched[1].parts[0].port > 0
    for node, other, rank in ((0, 1, 3), (1, 0, 1)):
        run_dir = tmp_path / str(node) / "03-of-4"
        assert (run_dir / f"events-node{other}-7.jsonl").exists()
        log = run_dir / "ranks" / f"node{other}" / "attempt_0" / str(rank) / "stderr.log"
        assert log.read_text() == "ValueError: no data", "the second local rank"
    assert (tmp_path / "1" / "04-of-2" / "events-node0-7.jsonl").exists(), "it launched nothing"
    assert not list((tmp_path / "0" / "05-of-1").glob("events-node1*")), "it warmed up by itself"


def test_records_are_put_on_this_nodes_clock(tmp_path: Path) -> None:
    there, _ = Launched(tmp_path / "1", Ended(0, 2.0, "")).run(PART, lambda: False)
    here = tmp_path / "0"
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
    ahead, meet = 3_600_000_000_000, pair[1]._meet

    def an_hour_ahead(part: Part, nodes: int) -> tuple[Part | None, int]:
        mine, met_ns = meet(part, nodes)
        return mine, met_ns + ahead

    pair[1]._meet = an_hour_ahead  # type: ignore[method-assign]
    launched = [Launched(tmp_path / str(node), Ended(0, 2.0, "")) for node in range(2)]
    launch(both, pair, launched, 3, 4)
    for node, there in ((0, "events-node1-7.jsonl"), (1, "events-node0-7.jsonl")):
        event = json.loads((tmp_path / str(node) / "03-of-4" / there).read_text().splitlines()[0])
        moved = event["unix_time_ns"] - 5000
        assert moved == pytest.approx(ahead if node else -ahead, abs=500_000_000)


def test_all_nodes_warm_up_and_one_that_cannot_is_told(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    launched = [Launched(tmp_path / str(node), Ended(7 * node, 2.0, "")) for node in range(2)]
    launched[1].layer = None
    ended = launch(both, pair, launched, 4, 2, first=True)
    assert [x.exit_code for x in ended] == [0, 0]
    for nodes in pair:
        assert nodes.told == ["node 1 (gpu) did not warm up: exit code 7"]  # type: ignore[attr-defined]
    assert launched[0].layer is None, "launches start alike on all nodes"


def test_a_part_that_cannot_be_launched_is_the_error_of_its_launch(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    ours = Launched(tmp_path / "0", Ended(None, 2.0, NOT_WITH_OTHERS))
    theirs = Launched(tmp_path / "1", ours.ended, OSError(28, "No space left on device"))
    for ended in launch(both, pair, [ours, theirs], 3, 4):
        assert ended.given_up == "node 1 (gpu): could not be launched: No space left on device"
        assert not ended.lost


@pytest.mark.parametrize(
    ("ours", "theirs", "code", "given_up"),
    [
        ((0, ""), (0, ""), 0, ""),
        ((0, ""), (3, ""), 3, ""),
        ((None, NOT_WITH_OTHERS), (3, ""), 3, ""),  # they failed, and we waited for them
        ((3, ""), (None, NOT_WITH_OTHERS), 3, ""),
        ((3, ""), (None, "hangs"), 3, ""),
        ((1, ""), (137, ""), 137, ""),  # killed there, for want of memory; here without a peer
        ((137, ""), (1, ""), 137, ""),
        ((None, NOT_WITH_OTHERS), (None, "node 1: hangs"), None, "node 1: hangs"),
        ((None, "hangs"), (None, f"node 1: {NOT_WITH_OTHERS}"), None, "hangs"),
        ((0, ""), (None, f"node 1: {NOT_WITH_OTHERS}"), 0, f"node 1: {NOT_WITH_OTHERS}"),
    ],
)
def test_the_cause_is_told_and_not_its_consequence(
    ours: tuple[int | None, str], theirs: tuple[int | None, str], code: int | None, given_up: str
) -> None:
    ended = worse(Ended(ours[0], 2.0, ours[1]), Ended(theirs[0], 2.0, theirs[1]))
    assert (ended.exit_code, ended.given_up, ended.lost) == (code, given_up, False)


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (
            replace(FACTS, same={**SAME, "script": "abd"}),
            "the script of node 1 (gpu) is another one than on node 0 (gpu)",
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
    launched = Launched(tmp_path, Ended(0, 2.0, ""))
    _, ended = nodes.run(replace(PART, order=replace(ORDER, ranks=1)), launched)  # type: ignore[arg-type]
    gone = f"node {socket.getfqdn()} is gone: its launcher gives no sign of life"
    assert (ended.given_up, ended.lost) == (gone, True)
    assert nodes.run(PART, launched)[1] == ended  # type: ignore[arg-type]
    assert launched.parts == []


def test_a_node_that_leaves_ends_the_launches_of_the_others_with_its_reason(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    launched = Launched(tmp_path, Ended(0, 1.0, ""))

    def work(number: int) -> Any:
        if number:
            return pair[1].end(Verdict("interrupted", 130, "it was interrupted"))
        ended = pair[0].run(PART, launched)[1]  # type: ignore[arg-type]
        return ended.given_up, ended.lost, pair[0].end(Verdict("failed", 5))

    (given_up, lost, ours), theirs = both(work)
    assert (given_up, lost) == ("node 1 (gpu): it was interrupted", True)
    assert (ours.exit_code, theirs.exit_code) == (5, 130)


def test_all_nodes_end_as_the_first_one(pair: list[Nodes], tmp_path: Path, both: Both[Any]) -> None:
    launched = Launched(tmp_path, Ended(0, 1.0, ""))

    def work(number: int) -> Verdict:
        if number == 0:
            return pair[0].end(Verdict("error", 2, "s.json cannot be written"))
        _, ended = pair[1].run(PART, launched)  # type: ignore[arg-type]
        assert ended.given_up == "the first node has ended: s.json cannot be written"
        return pair[1].end(Verdict("failed", 5))

    assert both(work) == [Verdict("error", 2, "s.json cannot be written")] * 2


def test_nodes_that_come_to_launch_different_things_stop(
    pair: list[Nodes], tmp_path: Path, both: Both[Any]
) -> None:
    orders = [replace(ORDER, exchange=exchange) for exchange in (True, False)]

    def work(number: int) -> Ended:
        launched = Launched(tmp_path / str(number), Ended(0, 1.0, ""))
        return pair[number].run(replace(PART, order=orders[number]), launched)[1]  # type: ignore[arg-type]

    assert {ended.given_up for ended in both(work)} == {"the nodes came to launch different things"}


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
        (("--nnodes=2",), "--nnodes 2: nobody says where the nodes meet"),
        (("--nnodes=2", "--rdzv-backend=etcd"), "--scale does not meet by --rdzv-backend etcd"),
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
