"""Every rank but the first writes for itself, above the files of rank 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import User, tree
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


def test_what_rank_zero_saves_is_read_through_the_layer(ranks: Pair) -> None:
    zero, one = ranks
    zero.does("put('new.txt', 'zero'); put('read.txt', 'longer than before')")
    zero.does("os.makedirs('made'); put('made/x.txt', 'zero')")
    assert one.does("get('new.txt'), get('read.txt'), get('made/x.txt')") == (
        "zero", "longer than before", "zero",
    )  # fmt: skip
    assert one.does("subprocess.run(['cat', 'new.txt'], capture_output=True).stdout") == b"zero"


def test_ranks_that_change_names_before_rank_zero_are_not_disturbed_by_it(
    ranks: Pair, project: Path
) -> None:
    """The order that `rank_zero_last` keeps."""
    for rank in reversed(ranks):
        assert rank.does("remake('out')") is None
        assert rank.does("os.makedirs('results/deep')") is None
        assert rank.does("os.symlink('results', 'latest')") is None
        assert rank.does("put('log.tmp', 'new'); os.replace('log.tmp', 'log.txt')") is None
        assert rank.does("os.unlink('gone.txt')") is None
    zero, one = ranks
    one.does("put('out/one.pt', 'one')")
    for rank in reversed(ranks):
        assert rank.does("os.rmdir('results/deep')") is None
        assert rank.does("os.mkdir('results/deep')") is None
        assert rank.does("get('log.txt'), get('gone.txt')") == ("new", None)
    assert one.does("os.listdir('out')") == ["one.pt"]
    assert zero.does("os.listdir('out')") == []
    assert sorted(path.name for path in project.iterdir()) == [
        "latest", "log.txt", "out", "read.txt", "results", "run folder",
    ]  # fmt: skip


def test_a_rank_renames_a_folder_that_was_there_before_it(ranks: Pair) -> None:
    """An ordinary user's layer refuses that: the rank failed where rank 0 went on."""
    zero, one = ranks
    before = zero.does("sorted(os.listdir('out'))")
    assert one.does("os.rename('out', 'kept')") is None
    assert one.does("os.path.exists('out'), sorted(os.listdir('kept'))") == (False, before)
    assert zero.does("os.path.exists('kept'), sorted(os.listdir('out'))") == (False, before)


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
    assert one.does("sorted(os.listdir('.'))") == [
        "absolute.pt", "by_shell", "log.txt", "moved.txt", "run folder", "runs.db",
    ]  # fmt: skip
    assert one.does("get('log.txt')") == "old a"
    assert tree(project) == before

    one.does("put('best.pt', 'one')")
    zero.does("put('best.pt', 'zero')")
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
