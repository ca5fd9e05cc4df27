"""Nodes of `--scale` that talk through a real store: who fits, whose time it is, who is gone."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.meeting import (
    READINGS,
    Meeting,
    NodeGone,
    Place,
    free_port,
    join,
    place_of,
)
from gpurun.records.spec import StopRule
from gpurun.scaling import nodes as module
from gpurun.scaling.arguments import check_counts
from gpurun.scaling.following import Following
from gpurun.scaling.handing_over import keep_records, records_of
from gpurun.scaling.here import GIVEN_UP_ELSEWHERE, NOT_WITH_OTHERS, Elsewhere
from gpurun.scaling.launch import Ended, Order
from gpurun.scaling.messages import (
    Facts,
    Over,
    Part,
    PartEnded,
    read_message,
    write_message,
)
from gpurun.scaling.nodes import Looking, Nodes, Other, ending, worse
from gpurun.trials.interruption import Interruption

MET = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1")
FACTS = Facts(
    host="gpu-1",
    device="CPU cores",
    ranks=2,
    command=("script", "train.py"),
    script="abc",
    counts=(1, 4),
    strong=False,
    exchange=(),
    isolation="overlay",
    gpurun="0.1.0",
    torch="2.13.0",
)
ORDER = Order(4, StopRule(1, 0.0, 10, 0, 0))
PART = Part(3, ORDER, 4, (), None, layered=True)


class Launched:
    """In place of what launches on this node: a run folder, with the records of two ranks."""

    def __init__(self, folder: Path, ended: Ended, error: Exception | None = None) -> None:
        self.folder = folder
        self.ended = ended
        self.error = error
        self.parts: list[Part] = []

    def run(self, part: Part, elsewhere: Any) -> tuple[Path, Ended]:
        self.parts.append(part)
        if self.error is not None:
            raise self.error
        run_dir = self.folder / "launches" / part.name
        log = run_dir / "ranks" / "x" / "attempt_0" / "1" / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text("ValueError: no data")
        (run_dir / "events-7.jsonl").write_text('{"event":"process","unix_time_ns":5000}\n[]\n')
        (run_dir / "samples.jsonl").write_text(
            '{"event": "host", "unix_time_ns": 1}\n{"event": "device", "unix_time_ns": 6000}\n'
        )
        elsewhere()
        return run_dir, self.ended


@pytest.fixture
def pair() -> tuple[Meeting, Meeting]:
    """The first node and another one."""
    place = Place(2, "localhost", free_port(), "job", None, 2)
    first = join(place)
    return first, join(place)


def nodes_of(meeting: Meeting, told: list[str] | None = None) -> Nodes:
    return Nodes(meeting, 2, ([] if told is None else told).append)


def test_whoever_finds_the_address_here_and_free_is_the_first(
    pair: tuple[Meeting, Meeting],
) -> None:
    assert [meeting.node for meeting in pair] == [0, 1]
    with pytest.raises(GpurunError, match="all 2 nodes of the job 'job' are there already"):
        join(pair[0].place)
    for word, text in (("a", "from node 1: é"), ("b", ""), ("c", "long" * 1_000_000)):
        pair[1].tell(word, text)  # each word is told once: the store does not wait until it is kept
        assert pair[0].hear(word, 60) == pair[0].heard(word) == text
    assert pair[0].heard("another") is None
    with pytest.raises(NodeGone):
        pair[0].hear("another", 0.1)


@pytest.fixture
def follower(pair: tuple[Meeting, Meeting]) -> Iterator[Callable[[Launched], Future[Over]]]:
    """Start a second node that takes part in launches; it ends with the test."""
    with ThreadPoolExecutor(1) as pool:
        following = Following(pair[1], lambda _: None)

        def follow(launched: Launched) -> Over:
            try:
                return following.follow(launched)  # type: ignore[arg-type]
            finally:
                following.leave("it has ended")

        def started(launched: Launched) -> Future[Over]:
            following.introduce(FACTS)
            return pool.submit(follow, launched)

        yield started
        for number in range(1, 10):  # whatever was said to it before
            pair[0].tell(f"1/message/{number}", write_message(Over("failed", 1)))


Follower = Callable[[Launched], "Future[Over]"]


def launch(nodes: Nodes, launched: Launched, number: int, ranks: int, **order: Any) -> Ended:
    part = replace(PART, number=number, ranks=ranks, order=replace(ORDER, ranks=ranks, **order))
    return nodes.run(part, launched)[1]  # type: ignore[arg-type]


def test_a_launch_on_two_nodes_is_in_one_record(
    pair: tuple[Meeting, Meeting], tmp_path: Path, follower: Follower
) -> None:
    ours = Launched(tmp_path / "0", Ended(0, 2.0, ""))
    theirs = Launched(tmp_path / "1", Ended(1, 2.0, ""))
    other = follower(theirs)
    nodes = nodes_of(pair[0])
    nodes.gather(FACTS)
    assert launch(nodes, ours, 3, 4).exit_code == 1, "it failed there"
    launch(nodes, ours, 4, 2)
    launch(nodes, ours, 5, 1, first=True)
    nodes.end(Over("ok", 0))
    assert other.result() == Over("ok", 0)
    assert [(p.number, p.nodes, p.ranks) for p in theirs.parts] == [(3, 2, 2), (5, 1, 1)]
    assert theirs.parts[0].port == ours.parts[0].port > 0
    assert [part.number for part in ours.parts] == [3, 4, 5]
    run_dir = tmp_path / "0" / "launches" / "03-of-4"
    assert (run_dir / "events-node1-7.jsonl").exists()
    log = run_dir / "ranks" / "node1" / "attempt_0" / "3" / "stderr.log"
    assert log.read_text() == "ValueError: no data", "local rank 1 of the second node is rank 3"
    assert not list(run_dir.parent.glob("05*/events-node1*")), "what warmed up there stays there"


def test_records_are_put_on_the_first_nodes_clock(tmp_path: Path) -> None:
    there, _ = Launched(tmp_path / "1", Ended(0, 2.0, "")).run(PART, lambda: None)
    here = tmp_path / "0"
    here.mkdir()
    (here / "samples.jsonl").write_text('{"event": "host", "unix_time_ns": 2}\n')
    keep_records(records_of(there), here, node=1, ahead_ns=2000, first_rank=2)
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


def test_all_nodes_warm_up_and_one_that_cannot_is_told(
    pair: tuple[Meeting, Meeting], tmp_path: Path, follower: Follower
) -> None:
    theirs = Launched(tmp_path / "1", Ended(7, 2.0, ""))
    ours = Launched(tmp_path / "0", Ended(0, 2.0, ""))
    told: list[str] = []
    follower(theirs)
    nodes = nodes_of(pair[0], told)
    nodes.gather(FACTS)
    nodes.others.insert(0, Other(2, "gpu-3", gone="never there"))
    ended = launch(nodes, ours, 3, 4, first=True)  # would take this node and the one that is gone
    assert (ended.given_up, ended.lost) == ("node 2 (gpu-3) is gone: never there", True)
    assert launch(nodes, ours, 4, 2, first=True).exit_code == 0
    assert [(p.number, p.nodes, p.ranks) for p in theirs.parts] == [(4, 1, 2)]
    assert "node 1 (gpu-1) did not warm up: exit code 7" in told


def test_what_cannot_be_launched_or_kept_is_the_error_of_its_launch(
    pair: tuple[Meeting, Meeting],
    tmp_path: Path,
    follower: Follower,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = Launched(tmp_path / "1", Ended(0, 2.0, ""), OSError(28, "No space left on device"))
    ours = Launched(tmp_path / "0", Ended(None, 2.0, GIVEN_UP_ELSEWHERE))
    follower(theirs)
    nodes = nodes_of(pair[0])
    nodes.gather(FACTS)
    ended = launch(nodes, ours, 3, 4)
    assert ended.given_up == "node 1 (gpu-1): could not be launched: No space left on device"
    theirs.error, ours.ended = None, Ended(0, 2.0, "")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "keep_records", full)
    assert launch(nodes, ours, 4, 4).given_up == (
        "node 1 (gpu-1): its records could not be kept here: No space left on device"
    )


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
        ((None, NOT_WITH_OTHERS), (None, "hangs"), None, "node 1 (gpu-1): hangs"),
        ((None, "hangs"), (None, GIVEN_UP_ELSEWHERE), None, "hangs"),
        ((0, ""), (None, NOT_WITH_OTHERS), 0, f"node 1 (gpu-1): {NOT_WITH_OTHERS}"),
    ],
)
def test_the_cause_is_told_and_not_its_consequence(
    ours: tuple[int | None, str], theirs: tuple[int | None, str], code: int | None, given_up: str
) -> None:
    other = Other(1, "gpu-1")
    ended = worse(Ended(ours[0], 2.0, ours[1]), Ended(theirs[0], 2.0, theirs[1]), other)
    assert (ended.exit_code, ended.given_up, ended.lost) == (code, given_up, False)


def test_clocks_are_compared_by_the_quickest_answer(
    pair: tuple[Meeting, Meeting], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 3_600_000_000_000
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(_show_clock, pair[1], ahead, 0.2)
        found = pair[0].read_clock("clock", 60.0)
        shown.result()
    # the first answer is 0.2 s late: taken for the quickest, it would be 0.1 s off
    assert abs(found - ahead) < 50_000_000


def _show_clock(meeting: Meeting, ahead_ns: int, late: float) -> None:
    """As `show_clock`, by a clock that is ahead, the first time with a late answer."""
    for number in range(READINGS):
        meeting.hear(f"clock/{number}/ask", 60.0, 0.001)
        text = str(time.time_ns() + ahead_ns)
        time.sleep(0.0 if number else late)
        meeting.tell(f"clock/{number}/time", text)


@pytest.mark.parametrize(
    ("theirs", "what"),
    [
        (replace(FACTS, script="abd"), "the script of node 1 (gpu-1) is another one than here"),
        (replace(FACTS, command=("m",)), "the command of node 1 (gpu-1) is another one than here"),
        (
            replace(FACTS, torch="2.4.0"),
            "the version of torch of node 1 (gpu-1) is another one than here",
        ),
        (
            replace(FACTS, ranks=1),
            "node 1 (gpu-1) has room for 1 of the 2 ranks that each is to have",
        ),
    ],
)
def test_nodes_that_do_not_fit_are_refused_by_name(
    pair: tuple[Meeting, Meeting], theirs: Facts, what: str
) -> None:
    Following(pair[1], lambda _: None).introduce(theirs)
    with pytest.raises(GpurunError) as raised:
        nodes_of(pair[0]).gather(FACTS)
    assert raised.value.what == what
    assert raised.value.todo


def test_a_node_that_does_not_come_and_other_devices_are_told(
    pair: tuple[Meeting, Meeting],
) -> None:
    told: list[str] = []
    nodes = nodes_of(pair[0], told)
    nodes.meeting.place = replace(pair[0].place, join_seconds=0.1)
    with pytest.raises(GpurunError, match=r"node 1 did not come: within 0.1 s"):
        nodes.gather(FACTS)
    pair[1].tell("1/left", "isolation is not possible there")
    with pytest.raises(GpurunError, match="node 1 did not come: isolation is not possible there"):
        nodes.gather(FACTS)
    Following(pair[1], lambda _: None).introduce(replace(FACTS, device="NVIDIA A100", ranks=8))
    nodes.gather(FACTS)
    assert told[-1] == "node 1 (gpu-1) has other devices: NVIDIA A100"


def test_a_silent_node_ends_the_launches_that_need_it_and_no_others(
    pair: tuple[Meeting, Meeting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    nodes, ours = nodes_of(pair[0], told), Launched(tmp_path, Ended(0, 2.0, ""))
    monkeypatch.setattr(module, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(Meeting, "read_clock", lambda *_: 0)
    Following(pair[1], lambda _: None).introduce(FACTS)
    pair[1].tell("3/1/here", "")  # it takes part, and is heard of no more
    nodes.gather(FACTS)
    gone = "node 1 (gpu-1) is gone: no sign of life for 0.2 s"
    ended = launch(nodes, ours, 3, 4)
    assert (ended.given_up, ended.lost, told[-1]) == (gone, True, gone)
    assert launch(nodes, ours, 4, 4).given_up == gone
    assert launch(nodes, ours, 5, 2).given_up == ""
    assert [part.number for part in ours.parts] == [3, 5]


def test_a_node_that_left_is_gone_with_its_reason(
    pair: tuple[Meeting, Meeting], tmp_path: Path
) -> None:
    following = Following(pair[1], lambda _: None)
    following.introduce(FACTS)
    nodes = nodes_of(pair[0])
    nodes.gather(FACTS)
    following.leave("it was interrupted there")
    ended = launch(nodes, Launched(tmp_path, Ended(0, 1.0, "")), 3, 4)
    assert ended.given_up == "node 1 (gpu-1) is gone: it was interrupted there"


def test_the_others_end_as_the_first_one_whatever_ends_it(
    pair: tuple[Meeting, Meeting], tmp_path: Path, follower: Follower
) -> None:
    other = follower(Launched(tmp_path, Ended(0, 1.0, "")))
    nodes = nodes_of(pair[0])
    nodes.gather(FACTS)
    with (
        pytest.raises(KeyboardInterrupt),
        Interruption() as interruption,
        ending(nodes, interruption),
    ):
        signal.raise_signal(signal.SIGINT)
    assert other.result() == Over("interrupted", 130)


def test_the_others_hear_why_the_first_one_cannot_go_on(
    pair: tuple[Meeting, Meeting], tmp_path: Path, follower: Follower
) -> None:
    other = follower(Launched(tmp_path, Ended(0, 1.0, "")))
    with (
        pytest.raises(GpurunError),
        Interruption() as interruption,
        ending(nodes_of(pair[0]), interruption),
    ):
        raise GpurunError("--scale: 24 is above the 16 ranks of 2 nodes", "leave it out")
    assert other.result() == Over("error", 2, "--scale: 24 is above the 16 ranks of 2 nodes")


def test_the_answer_of_a_costly_question_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[None] = []

    def question() -> Elsewhere:
        asked.append(None)
        return Elsewhere.ENDED

    looking = Looking(question)
    monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    assert [looking(), looking()] == [Elsewhere.ENDED, Elsewhere.ENDED]
    assert len(asked) == 1


def test_messages_of_another_version_are_refused() -> None:
    message = PartEnded(Ended(0, 1.0, ""), {"events-1.jsonl": "eJw"})
    assert read_message(PartEnded, write_message(message)) == message
    assert read_message(Part, write_message(PART)) == PART
    for text in ("", "[]", '{"kind":"Part"}', '{"kind":"Part","body":{"number":1}}'):
        with pytest.raises(GpurunError, match="do not understand each other"):
            read_message(Part, text)


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
    assert place_of(("--nnodes=1",), {}) is None
    assert place_of((*c10d, "--rdzv-endpoint=host:1234"), {}) == Place(
        2, "host", 1234, "x", None, None
    )
    hosting = (*c10d, "--rdzv-endpoint=host", "--rdzv-conf=is_host=1,join_timeout=5")
    assert place_of((*hosting, "--nproc-per-node=4"), {}) == Place(
        2, "host", 29400, "x", True, 4, None, 5.0
    )
    static = ("--nnodes=2", "--node-rank=1", "--master-addr=a", "--master-port=7")
    found = place_of(static, {})
    assert found is not None
    assert (found.host, found.port, found.first, found.number) == ("a", 7, False, 1)
    slurm = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "gpu[3-4]", "SLURM_PROCID": "1",
    }  # fmt: skip
    found = place_of(("--nnodes=auto",), slurm)
    assert found is not None
    assert (found.host, found.first, found.job) == ("gpu3", False, "slurm-7.0")
    assert found.number == 1


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--nnodes=1:4",), "--nnodes 1:4 is no fixed number of nodes"),
        (("--nnodes=2",), "--nnodes 2: nobody says where the nodes meet"),
        (("--nnodes=2", "--rdzv-backend=etcd"), "--scale does not meet by --rdzv-backend etcd"),
        ((*MET, "--nproc-per-node=0"), "--nproc-per-node 0 is no number of ranks"),
        ((*MET, "--nproc-per-node=many"), "--nproc-per-node many: "),
        ((*MET, "--rdzv-conf=join_timeout=9m"), "--rdzv-conf join_timeout=9m is no number of"),
        (
            ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:x"),
            "The port number of the rendezvous endpoint 'h:x' must be an integer between 0 and",
        ),
    ],
)
def test_what_is_no_place_to_meet_is_refused(flags: tuple[str, ...], what: str) -> None:
    with pytest.raises(GpurunError) as raised:
        place_of(flags, {})
    assert raised.value.what.startswith(what)


def test_a_port_that_a_stranger_holds_is_an_error_with_a_cure() -> None:
    with socket.create_server(("", 0)) as server:
        place = Place(2, "localhost", server.getsockname()[1], "job", True, 1, 1.0)
        with pytest.raises(GpurunError) as raised:
            join(place)
    assert raised.value.what.startswith(f"the nodes did not meet at localhost:{place.port}: ")
    assert os.linesep not in raised.value.what
