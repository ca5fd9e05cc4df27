"""What befalls a store: each fault is one clear line, and no record is lost."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gpurun.bench.store import open_store
from gpurun.bench.store.benchmark_store import TABLE, BenchmarkStore
from gpurun.errors import GpurunError
from tests.conftest import REPOSITORY
from tests.integration.isolation_launcher import tree
from tests.integration.small_disk import on_a_small_disk
from tests.unit.benchmark_records import record
from tests.unit.test_bench_store import ids, opened, refusal

WRITER = """
import sys, time
from pathlib import Path
from gpurun.bench.store import open_store
from gpurun.errors import GpurunError
from tests.unit.benchmark_records import record
home, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = open_store(home, notice=lambda line: print("notice:", line, flush=True))
try:
    for number in range(first, first + count):
        store.add(record(number))
        print(number, flush=True)
except GpurunError as error:
    print("refused:", error.what, "|", error.todo, flush=True)
"""
"""Adds records and names each that is kept; then what it was told, if anything."""


def writer(
    home: Path, first: int, count: int, prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    words = [*prefix, sys.executable, "-c", WRITER, str(home), str(first), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def numbers(count: int, start: int = 0) -> list[str]:
    return [record(number).id for number in range(start, start + count)]


def is_sound(home: Path) -> bool:
    with sqlite3.connect(home / "bench.db") as database:
        return bool(database.execute("PRAGMA integrity_check").fetchone() == ("ok",))


# -- several processes -----------------------------------------------------------------------------


def test_writers_at_once_lose_nothing_though_each_finds_no_tables_yet(tmp_path: Path) -> None:
    writers = [writer(tmp_path, 100 * n, 15) for n in range(3)]
    for n, process in enumerate(writers):
        output, _ = process.communicate(timeout=300)
        assert output.split() == [str(number) for number in range(100 * n, 100 * n + 15)]
    expected = [name for n in range(3) for name in numbers(15, 100 * n)]
    assert ids(opened(tmp_path).query()) == expected
    assert is_sound(tmp_path)


def test_a_writer_that_is_killed_loses_no_record_that_it_kept(tmp_path: Path) -> None:
    process = writer(tmp_path, 0, 10_000)
    assert process.stdout is not None
    kept = [int(process.stdout.readline()) for _ in range(10)]
    process.send_signal(signal.SIGKILL)
    kept += [int(line) for line in process.stdout.read().split("\n") if line]
    process.wait()
    found = ids(opened(tmp_path).query())
    assert found[: len(kept)] == numbers(len(kept))
    assert len(found) <= len(kept) + 1  # the one that it was about to name
    assert is_sound(tmp_path)


# -- locks -----------------------------------------------------------------------------------------


def locked(home: Path) -> sqlite3.Connection:
    holder = sqlite3.connect(home / "bench.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    return holder


def test_a_lock_that_lasts_too_long_is_one_line_and_the_record_enters_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path).add(record(0))
    with monkeypatch.context() as impatience, closing(locked(tmp_path)):
        impatience.setattr("gpurun.bench.store.database.PATIENCE_SECONDS", 0.2)
        refused = refusal(lambda: opened(tmp_path).add(record(1)))
        assert "locked by another process for more than 0.2 s" in refused.what
        assert "r0001.json is kept" in refused.what
    assert ids(opened(tmp_path).query()) == ["r0000", "r0001"]


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    opened(tmp_path).add(record(0))
    holder = locked(tmp_path)
    release = threading.Timer(0.5, holder.close)
    release.start()
    opened(tmp_path).add(record(1))
    release.join()
    assert ids(opened(tmp_path).query()) == ["r0000", "r0001"]


def test_a_history_is_read_while_another_process_writes(tmp_path: Path) -> None:
    opened(tmp_path).add(record(0))
    with closing(locked(tmp_path)):
        assert ids(opened(tmp_path).query()) == ["r0000"]


def test_a_store_is_for_its_owner_alone_until_he_says_otherwise(tmp_path: Path) -> None:
    opened(tmp_path).add(record(0))
    files = [path for path in tmp_path.iterdir() if path.name.startswith("bench.db")]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    (tmp_path / "bench.db").chmod(0o664)
    opened(tmp_path).add(record(1))
    assert (tmp_path / "bench.db").stat().st_mode & 0o777 == 0o664


# -- damage ----------------------------------------------------------------------------------------


def filled(home: Path) -> BenchmarkStore:
    store = opened(home)
    for number in range(10):
        store.add(record(number))
    store.accept("r0004", "Ada", "why")
    return store


def test_folders_that_share_a_file_share_the_records_beside_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    for number in range(4):
        open_store(tmp_path / f"of-{number % 2}", url, notice=print).add(record(number))
    (tmp_path / "shared.db").unlink()
    assert ids(open_store(tmp_path / "of-0", url, notice=print).query()) == numbers(4)


def shuffled(path: Path, draws: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(2):
        start = draws.randrange(4096, len(content) - 512)
        content[start : start + 512] = draws.randbytes(512)
    path.write_bytes(content)


def replaced(old: bytes, new: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "its body": lambda path: path.write_bytes(path.read_bytes()[:4096] + os.urandom(20_000)),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:9000]),
    "a row": replaced(b'"r0003"', b'"r0003\xff'),
    "a document": replaced(b'"r0003"', b'"r0003x'),
    "an older table": lambda path: database(
        path, "ALTER TABLE gpurun_benchmarks DROP COLUMN purpose"
    ),
    "a later table": lambda path: database(path, "ALTER TABLE gpurun_benchmarks ADD COLUMN new"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_index_that_cannot_be_used_stays_until_it_is_moved_away(
    tmp_path: Path, damage: str
) -> None:
    filled(tmp_path)
    path = tmp_path / "bench.db"
    DAMAGES[damage](path)
    before = path.read_bytes()
    refused = refusal(lambda: opened(tmp_path).query())
    assert refused.what.startswith(f"{path}")
    assert "move it away (the next call makes a new index" in refused.todo
    assert path.read_bytes() == before
    path.rename(tmp_path / "away.db")
    again = opened(tmp_path)
    assert ids(again.query()) == numbers(10)
    assert [one.record for one in again.baselines()] == ["r0004"]


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_at_all_is_a_crash(tmp_path: Path, seed: int) -> None:
    """Some of it reads as NULL, and SQLite says nothing."""
    filled(tmp_path)
    shuffled(tmp_path / "bench.db", random.Random(seed))
    with suppress(GpurunError):
        assert len(opened(tmp_path).query()) <= 10


def test_an_index_that_has_a_log_is_an_older_one_and_neither_changes(tmp_path: Path) -> None:
    filled(tmp_path)
    with closing(sqlite3.connect(tmp_path / "bench.db")) as holder:
        holder.execute("PRAGMA journal_mode=WAL")
        holder.execute("UPDATE gpurun_benchmarks SET branch = 'new'")
        holder.commit()
        before = tree(tmp_path)
        refused = refusal(lambda: opened(tmp_path).query())
        assert "bench.db and its log (-wal) are not of this gpurun" in refused.what
        assert tree(tmp_path) == before


def test_a_file_that_is_moved_away_while_it_is_used_is_made_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "bench.db").unlink()
    assert ids(store.query()) == numbers(10)


def test_an_empty_file_is_filled_as_a_missing_one_is(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "bench.db").write_bytes(b"")
    assert ids(opened(tmp_path).query()) == numbers(10)


def test_an_empty_file_with_a_second_name_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "placeholder").touch()
    (tmp_path / "bench.db").hardlink_to(tmp_path / "placeholder")
    with pytest.raises(GpurunError, match="is no index of benchmarks that gpurun made"):
        opened(tmp_path).query()
    assert (tmp_path / "placeholder").read_bytes() == b""


MARK = bytes.fromhex("d9d505f920a163d7")
"""Begins a rollback journal, and ends one that names another: SQLite deletes what that names."""


@pytest.mark.parametrize("kind", ["notes", "a second name", "a link", "one that names a file"])
def test_a_journal_that_no_writer_of_ours_left_is_refused_and_nothing_is_deleted(
    tmp_path: Path, kind: str
) -> None:
    filled(tmp_path)
    journal, victim = tmp_path / "bench.db-journal", tmp_path / "victim"
    victim.write_bytes(b"")
    if kind == "notes":
        journal.write_text("precious notes")
    elif kind == "a second name":
        os.link(victim, journal)
    elif kind == "a link":
        journal.symlink_to(victim)
    else:
        name = os.fsencode(victim)
        sizes = struct.pack(">IIIII", 0, 1, 4, 512, 4096)
        head = (MARK + sizes).ljust(512, b"\0")
        tail = (0x40000000 // 4096 + 1).to_bytes(4, "big") + name
        tail += len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + MARK
        journal.write_bytes(head + tail)
    before = tree(tmp_path)
    assert "its log (-journal)" in refusal(lambda: opened(tmp_path).query()).what
    assert tree(tmp_path) == before


# -- files that are not gpurun's -------------------------------------------------------------------


def database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


LOOKALIKE = ("CREATE TABLE gpurun_benchmarks (id TEXT)", "INSERT INTO gpurun_benchmarks VALUES (1)")
FOREIGN: dict[str, Callable[[Path], object]] = {
    "a model": lambda path: path.write_bytes(b"PK\3\4 weights" * 1000),
    "less than a head": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "another database": lambda path: database(path, "CREATE TABLE mine (a)"),
    "one in WAL mode": lambda path: database(path, "PRAGMA journal_mode=WAL", "CREATE TABLE m (a)"),
    "one with a number": lambda path: database(path, "PRAGMA application_id = 1", *LOOKALIKE),
    "an empty one with a log": lambda path: (
        path.touch(),
        path.with_name("model.pt-wal").write_text("log"),
    ),
    "a log without its database": lambda path: path.with_name("model.pt-wal").write_text("log"),
    "one with our table": lambda path: database(path, *LOOKALIKE, "CREATE TABLE mine (a)"),
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a named pipe": os.mkfifo,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_not_gpuruns_is_refused_and_stays_as_it_is(
    tmp_path: Path, kind: str
) -> None:
    FOREIGN[kind](tmp_path / "model.pt")
    before = tree(tmp_path)
    store = open_store(tmp_path / "home", f"sqlite:///{tmp_path}/model.pt", notice=print)
    refused = refusal(store.query)
    assert str(tmp_path / "model.pt") in refused.what
    assert tree(tmp_path) == before


COLUMNS = ", ".join(f'1 AS "{column.name}"' for column in TABLE.c)
ENDLESS = f"WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT {COLUMNS} FROM r"
AWAY = "ALTER TABLE gpurun_benchmarks RENAME TO other"
STRANGE: dict[str, tuple[str, ...]] = {
    "an endless view": (
        AWAY,
        f"CREATE VIEW gpurun_benchmarks AS {ENDLESS}",
    ),
    "a trigger": ("CREATE TRIGGER t AFTER INSERT ON gpurun_benchmarks BEGIN SELECT 1; END",),
    "an index": ("CREATE INDEX i ON gpurun_benchmarks (lower(document))",),
    "other types": (AWAY, f"CREATE TABLE gpurun_benchmarks AS SELECT {COLUMNS}"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_table_that_gpurun_did_not_make_is_refused_before_a_row_is_read(
    tmp_path: Path, kind: str
) -> None:
    filled(tmp_path)
    database(tmp_path / "bench.db", *STRANGE[kind])
    before = tree(tmp_path)
    assert "has parts that are not gpurun's" in refusal(opened(tmp_path).query).what
    assert tree(tmp_path) == before


def test_a_file_whose_reading_does_not_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr("gpurun.bench.store.database.READ_SECONDS", 0.0)
    monkeypatch.setattr("gpurun.bench.store.database.PROGRESS_STEPS", 1)
    assert "took longer than 0 s" in refusal(opened(tmp_path).query).what


def test_a_store_in_a_folder_like_tmp_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    told = refusal(opened(tmp_path).query).what
    assert f"any user may write to {tmp_path}" in told
    assert not (tmp_path / "bench.db").exists()


@pytest.mark.parametrize("mode", [0o2775, 0o777], ids=["of a group", "of a container"])
def test_a_team_shares_a_store_and_root_uses_a_users(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    if os.getuid() == 0:
        os.chown(tmp_path, 1000, 2000)
    assert not opened(tmp_path).query()
    assert (tmp_path / "bench.db").exists()


def test_a_file_that_another_takes_the_place_of_meanwhile_is_refused_too(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "bench.db").unlink()
    (tmp_path / "bench.db").write_bytes(b"weights" * 1000)
    refusal(store.query)
    assert (tmp_path / "bench.db").read_bytes() == b"weights" * 1000


# -- no access, no room ----------------------------------------------------------------------------


def as_one_who_needs_permission() -> tuple[str, ...]:
    """Root, too, is kept out by a file's mode once it has lost that privilege."""
    if os.getuid() != 0:
        return ()
    lost = "-dac_override,-dac_read_search"
    return ("setpriv", f"--bounding-set={lost}", f"--inh-caps={lost}")


def told(home: Path, first: int = 20) -> str:
    output, _ = writer(home, first, 1, as_one_who_needs_permission()).communicate(timeout=300)
    (line,) = output.splitlines()
    return line


def test_a_read_only_folder_is_one_line(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "benchmarks").chmod(0o555)
    line = told(tmp_path)
    (tmp_path / "benchmarks").chmod(0o755)
    assert "refused: " in line
    assert "r0020.json could not be written: Permission denied" in line
    assert ids(opened(tmp_path).query()) == numbers(10)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    line = told(tmp_path / "home")
    tmp_path.chmod(0o755)
    assert "Permission denied" in line
    assert "--out" in line


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_database_without_access_is_one_line_and_the_record_enters_later(
    tmp_path: Path, mode: int
) -> None:
    filled(tmp_path)
    for path in tmp_path.glob("bench.db*"):
        path.chmod(mode)
    line = told(tmp_path)
    assert "refused: " in line
    assert "r0020.json is kept" in line
    assert "make " in line
    for path in tmp_path.glob("bench.db*"):
        path.chmod(0o644)
    assert ids(opened(tmp_path).query()) == [*numbers(10), "r0020"]


def test_a_folder_in_place_of_the_database_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bench.db").mkdir()
    refused = refusal(lambda: opened(tmp_path).add(record()))
    assert "Is a directory" in refused.what
    assert "r0000.json is kept" in refused.what


def test_a_full_disk_is_one_line_and_loses_nothing_that_was_kept(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "writer.py").write_text(WRITER)
    command = '"$0" writer.py home 0 5000 > ../said; cp -r home ..'
    done = on_a_small_disk(tmp_path, clean_environment, command, kilobytes=400)
    assert done.returncode == 0, done.stderr.decode()
    *kept, last = (tmp_path / "said").read_text().splitlines()
    assert len(kept) > 3
    assert last.startswith("refused: ")
    assert "make room" in last
    found = ids(opened(tmp_path / "home").query())
    assert found[: len(kept)] == numbers(len(kept))


# -- the URL ---------------------------------------------------------------------------------------


def test_a_store_may_be_another_sqlite_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    open_store(tmp_path / "home", url, notice=print).add(record())
    assert (tmp_path / "elsewhere.db").is_file()
    assert not (tmp_path / "home" / "bench.db").exists()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bench.db",
        "ada:secret@host/db",
        "mysql://ada:secret@host/db",
        "postgresql+asyncpg://ada:secret@host/db",
        "postgresql://ada:secret@host:port/db",
        "postgresql://ada:secr@et@host/db",
        "postgresql://ada:se@cr?et@host/db",
        "postgresql://ada:secret",
        "sqlite://",
        "sqlite://secret.db",
    ],
)
def test_a_url_that_cannot_be_read_is_one_line_without_a_password(tmp_path: Path, url: str) -> None:
    refused = refusal(lambda: open_store(tmp_path, url, notice=print))
    assert "secr" not in refused.what + refused.todo


def test_a_missing_driver_is_named_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    refused = refusal(lambda: open_store(tmp_path, "postgresql://host/db", notice=print))
    assert "psycopg" in refused.what
    assert refused.todo == 'pip install "gpurun-torch[postgres]"'
