"""Every rank but the first writes for itself, and sees what rank 0 has written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import ME, User, ordinary_user, tree
from tests.integration.launched import DEADLINE_SECONDS, wait_for
from tests.integration.rank_pairs import Rank, pair

Pair = tuple[Rank, Rank]


@pytest.fixture
def project(user: User, open_path: Path) -> Path:
    cwd = open_path / "a project, with: odd signs"
    (cwd / "out/old").mkdir(parents=True)
    for name in ("read.txt", "gone.txt", "log.txt", "out/a.txt", "out/old/b.txt"):
        (cwd / name).write_text("old")
    user.give(cwd, *cwd.rglob("*"))
    return cwd


@pytest.fixture
def ranks(user: User, project: Path) -> Iterator[Pair]:
    with pair(user, project) as both:
        yield both


def test_what_rank_zero_changes_is_seen_by_a_rank_that_has_looked_before(ranks: Pair) -> None:
    zero, one = ranks
    looks = ("new.txt", "read.txt", "over.txt", "gone.txt", "out/a.txt", "made/x.txt")
    zero.does("put('over.txt', 'old')")
    for path in looks:
        one.does(f"get({path!r})")
    one.does("os.listdir('out')")

    zero.does("put('new.txt', 'zero')")
    zero.does("put('read.txt', 'longer than before')")
    zero.does("replace('over.txt', 'replaced')")
    zero.does("os.unlink('gone.txt')")
    zero.does("remake('out'); put('out/c.txt', 'zero')")
    zero.does("os.makedirs('made'); put('made/x.txt', 'zero')")
    zero.does("put('never asked for.txt', 'zero')")
    one.meets()

    assert [one.does(f"get({path!r})") for path in looks] == [
        "zero", "longer than before", "replaced", None, None, "zero",
    ]  # fmt: skip
    assert one.does("get('never asked for.txt')") == "zero"
    assert one.does("os.listdir('out')") == ["c.txt"]
    assert (
        one.does("subprocess.run(['cat', 'over.txt'], capture_output=True).stdout") == b"replaced"
    )


def test_a_rank_that_only_waits_for_a_file_sees_it_soon(ranks: Pair) -> None:
    zero, one = ranks
    assert one.does("get('flag')") is None
    zero.does("put('flag', 'up')")
    assert wait_for(lambda: one.does("get('flag')") == "up")

    one.does("os.unlink('flag')")
    zero.does("replace('flag', 'up again')")
    assert wait_for(lambda: one.does("get('flag')") == "up again")


@pytest.mark.parametrize("first", [0, 1])
def test_a_folder_that_both_delete_and_make_anew_shows_the_files_of_both(
    ranks: Pair, first: int
) -> None:
    zero, one = ranks
    for rank in (ranks[first], ranks[1 - first]):
        rank.does("remake('out')")
    assert one.does("os.listdir('out')") == []
    one.does("put('out/one.pt', 'one')")
    zero.does("put('out/zero.pt', 'zero')")
    one.meets()

    assert one.does("sorted(os.listdir('out'))") == ["one.pt", "zero.pt"]
    assert one.does("get('out/zero.pt')") == "zero"
    assert zero.does("os.listdir('out')") == ["zero.pt"]


def test_a_rank_renames_a_folder_that_was_there_before_it(ranks: Pair) -> None:
    """An ordinary user's layer refuses that: the rank failed where rank 0 went on."""
    zero, one = ranks
    before = zero.does("sorted(os.listdir('out'))")
    assert one.does("os.rename('out', 'kept')") is None
    assert one.does("os.path.exists('out'), sorted(os.listdir('kept'))") == (False, before)
    assert zero.does("os.path.exists('kept'), sorted(os.listdir('out'))") == (False, before)


def test_a_folder_can_be_deleted_in_one_go_while_rank_zero_fills_it(ranks: Pair) -> None:
    zero, one = ranks
    one.does("put('out/own.pt', 'one')")
    zero.does("remake('out'); put('out/zero.pt', 'zero')")
    assert one.does("delete_tree('out'), delete_tree('log.txt'), os.path.exists('out')") == (
        True, True, False,
    )  # fmt: skip
    one.does("os.makedirs('out')")
    assert one.does("os.listdir('out'), get('log.txt')") == ([], None)
    assert zero.does("os.listdir('out'), get('log.txt')") == (["zero.pt"], "old")


def test_a_log_that_a_rank_keeps_open_does_not_hide_what_rank_zero_saves_beside_it(
    ranks: Pair,
) -> None:
    zero, one = ranks
    one.does("os.makedirs('runs/1'); log = open('runs/1/log', 'w')")
    zero.does("os.makedirs('runs/1'); put('runs/1/best.pt', 'zero')")
    one.meets()
    assert one.does("get('runs/1/best.pt')") == "zero"
    one.does("print('more', file=log, flush=True); put('runs/1/own.pt', 'one')")
    assert one.does("get('runs/1/log')") == "more\n"
    one.meets()
    assert one.does("sorted(os.listdir('runs/1'))") == ["best.pt", "log", "own.pt"]
    assert zero.does("os.listdir('runs/1')") == ["best.pt"]


def test_what_rank_zero_saves_is_seen_though_the_clock_was_set_back(
    user: User, project: Path
) -> None:
    with pair(user, project, clock_back=3600) as (zero, one):
        one.does("os.unlink('log.txt'); os.makedirs('runs/1'); log = open('runs/1/log', 'w')")
        zero.does("replace('log.txt', 'zero'); os.makedirs('runs/1'); put('runs/1/best.pt', '0')")
        one.meets()
        assert one.does("get('log.txt'), get('runs/1/best.pt')") == ("zero", "0")
        assert one.does("os.mkdir('runs/2')") is None
        one.does("os.rmdir('runs/2')")
        zero.does("os.mkdir('runs/2')")
        assert one.does("os.mkdir('runs/2')") is None, "as if rank 0 had not been first"


def test_a_rank_may_make_what_rank_zero_has_just_made(ranks: Pair) -> None:
    zero, one = ranks
    for rank in (zero, one):
        assert rank.does("os.makedirs('results')") is None
        assert rank.does("os.symlink('results', 'latest')") is None
        assert rank.does("os.mkdir('results/deep')") is None
    zero.does("put('results/vocabulary', 'zero')")
    assert one.does("os.makedirs('results', exist_ok=True)") is None
    assert one.does("get('results/vocabulary')") == "zero"
    assert one.does("os.mkdir('results')") == "FileExistsError"
    assert one.does("os.mkdir('out')") == "FileExistsError"


def test_whatever_way_a_rank_writes_the_real_files_are_those_of_rank_zero(
    ranks: Pair, project: Path
) -> None:
    zero, one = ranks
    before = tree(project)
    one.does("data = sqlite3.connect('runs.db'); data.execute('create table runs (n)')")
    one.does("data.execute('insert into runs values (1)'); data.commit(); data.close()")
    one.does("open('log.txt', 'a').write(' and more')")
    one.does("subprocess.run('echo hi > by_shell; rm gone.txt; rm -r out', shell=True).returncode")
    one.does(f"put({str(project / 'absolute.pt')!r}, 'one'); os.rename('read.txt', 'moved.txt')")
    one.does("os.chmod('log.txt', 0o600); os.truncate('log.txt', 5)")
    one.meets()
    assert one.does("sorted(os.listdir('.'))") == [
        "absolute.pt", "by_shell", "log.txt", "moved.txt", "run folder", "runs.db",
    ]  # fmt: skip
    assert one.does("get('log.txt')") == "old a"
    assert tree(project) == before

    one.does("put('best.pt', 'one')")
    zero.does("put('best.pt', 'zero')")
    one.meets()
    assert one.does("get('best.pt')") == "one"
    assert (project / "best.pt").read_text() == "zero"


def test_the_run_folder_and_shared_memory_are_those_of_all_ranks(
    ranks: Pair, project: Path
) -> None:
    zero, one = ranks
    one.does("put('run folder/events-1.jsonl', 'one')")
    assert zero.does("get('run folder/events-1.jsonl')") == "one"
    name = f"/dev/shm/gpurun-test-{zero.process.pid}"
    one.does(f"put({name!r}, 'one')")
    assert zero.does(f"get({name!r}), os.unlink({name!r})") == ("one", None)
    same = "os.getuid(), os.getgid(), os.getcwd()"
    assert one.does(same) == zero.does(same)
    assert one.does("os.getpid()") == one.process.pid


ASKS = """
import socket, sys
from pathlib import Path
names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
for name in names:
    if name.startswith("@gpurun-layer-"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
            daemon.settimeout(20)
            try:
                daemon.connect("\\0" + name[1:])
                daemon.send(b"delete " + sys.argv[1].encode())
                print(daemon.recv(16))
            except OSError:
                print(b"")
"""


@pytest.mark.parametrize("who", ["the same user", "another user"])
def test_only_processes_of_the_rank_can_ask_its_view_daemon(
    ranks: Pair, user: User, project: Path, who: str
) -> None:
    one = ranks[1]
    one.does("put('own.txt', 'one')")
    stranger = user if who == "the same user" else ordinary_user() if user == ME else ME
    if stranger is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    said, _ = stranger.start(ASKS, f"{project}/own.txt").communicate(timeout=DEADLINE_SECONDS)
    assert said
    assert set(said.splitlines()) == {"b''"}
    assert one.does("get('own.txt')") == "one"
    assert one.does("delete_tree('own.txt'), get('own.txt')") == (True, None)


@pytest.mark.parametrize("request_", ["DELETE", "ADOPT", "HIDE"])
@pytest.mark.parametrize("way", ["up", "a link of the rank's", "relative"])
def test_no_request_leads_out_of_a_ranks_layer(
    ranks: Pair, user: User, project: Path, open_path: Path, request_: str, way: str
) -> None:
    mine = open_path / "mine"
    for folder in (mine, mine / "deep"):
        folder.mkdir()
    (mine / "deep" / "file").write_text("mine")
    user.give(mine, mine / "deep", mine / "deep" / "file")
    before = tree(mine)
    one = ranks[1]
    one.does("put('own.txt', 'one')")
    one.does(f"os.symlink({str(mine)!r}, 'link')")
    places = {
        "up": f"{project}{'/..' * 40}{mine}/deep",
        "a link of the rank's": f"{project}/link/deep",
        "relative": "own.txt",
    }
    one.does("from gpurun.runtime.ddp import rank_layer")
    assert one.does(f"rank_layer._ask(rank_layer.{request_} + {places[way]!r}.encode())") is False
    assert tree(mine) == before
    assert one.does("get('own.txt'), get('link/deep/file')") == ("one", "mine")
