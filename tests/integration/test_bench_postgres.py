"""The store of benchmarks in a real PostgreSQL server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun.bench.store import open_store
from gpurun.bench.store.benchmark_store import BenchmarkStore
from gpurun.records.bench.benchmark import BenchmarkPurpose
from tests.conftest import REPOSITORY
from tests.integration.postgres_server import PASSWORD, Server, binaries, free_port, running
from tests.unit.benchmark_records import START, record
from tests.unit.test_bench_store import ids, opened, refusal, silent

WRITER = """
import sys
from pathlib import Path
from gpurun.bench.store import open_store
from tests.unit.benchmark_records import record
home, url, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = open_store(home, url, notice=print)
for number in range(first, first + 5):
    store.add(record(number))
"""


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found = binaries()
    if found is None:
        missing = "no PostgreSQL server is installed (Debian: apt-get install postgresql)"
        if request.config.getoption("--require-postgres"):
            pytest.fail(missing)
        pytest.skip(missing)
    with running(found) as server:
        yield server


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """The name of a database that is new and empty."""
    server.execute("CREATE DATABASE bench")
    yield "bench"
    server.execute("DROP DATABASE bench WITH (FORCE)")


def at(server: Server, home: Path, database: str = "bench") -> BenchmarkStore:
    return open_store(home, server.url(database), notice=silent)


@pytest.mark.usefixtures("database")
def test_records_and_baselines_are_found_by_another_machine(server: Server, tmp_path: Path) -> None:
    here, there = at(server, tmp_path / "here"), at(server, tmp_path / "there")
    kept = [record(number) for number in range(4)]
    kept.append(record(4, purpose=BenchmarkPurpose.SELFTEST, energy_joules=float("nan")))
    kept.append(record(5, branch="caf\udce9\0", samples_per_second=None, step_time_ms=None))
    for one in kept:
        here.add(one)
    accepted = here.accept("r0002", "Ada", "why")
    assert there.query("vision", purposes=[BenchmarkPurpose.BENCH]) == [*kept[:4], kept[5]]
    hour = {"since": START + timedelta(hours=1), "until": START + timedelta(hours=2)}
    assert ids(there.query(**hour)) == ["r0001"]
    assert there.get("r0004") is not None
    assert there.baselines("vision") == [accepted]
    here.add(record(0, samples_per_second=1.0))
    assert there.get("r0000") == kept[0]
    null = "SELECT energy_joules, step_time_ms FROM gpurun_benchmarks WHERE id >= 'r0004'"
    assert server.execute(null + " ORDER BY id", "bench") == [(None, 10.0), (None, None)]


@pytest.mark.usefixtures("database")
def test_a_store_moves_from_sqlite_to_postgresql(server: Server, tmp_path: Path) -> None:
    old = opened(tmp_path / "sqlite")
    for number in range(3):
        old.add(record(number))
    old.accept("r0001", "Ada", "why")
    for _ in range(2):
        new = at(server, tmp_path / "sqlite")
        assert (new.query(), new.baselines()) == (old.query(), old.baselines())


@pytest.mark.usefixtures("database")
def test_writers_at_once_lose_nothing_though_each_finds_no_tables_yet(
    server: Server, tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", WRITER, str(tmp_path), server.url("bench")]
    writers = [subprocess.Popen([*words, str(100 * n)], env=environment) for n in range(2)]
    assert [process.wait(300) for process in writers] == [0, 0]
    expected = [record(100 * n + number).id for n in range(2) for number in range(5)]
    assert ids(at(server, tmp_path / "other").query()) == expected


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "change", ["DROP COLUMN purpose", "ADD COLUMN new TEXT", "RENAME COLUMN purpose TO aim"]
)
def test_a_table_of_another_gpurun_is_refused_and_never_changed(
    server: Server, tmp_path: Path, change: str
) -> None:
    at(server, tmp_path).add(record())
    server.execute(f"ALTER TABLE gpurun_benchmarks {change}", "bench")
    before = server.execute("SELECT * FROM gpurun_benchmarks", "bench")
    refused = refusal(lambda: at(server, tmp_path).add(record(1)))
    assert "gpurun_benchmarks is of another version of gpurun" in refused.what
    assert "r0001.json is kept" in refused.what
    assert server.execute("SELECT * FROM gpurun_benchmarks", "bench") == before


@pytest.mark.usefixtures("database")
def test_a_table_of_somebody_elses_that_has_our_name_stays_as_it_is(
    server: Server, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE gpurun_benchmarks (id INTEGER)", "bench")
    refused = refusal(at(server, tmp_path).query)
    assert "or not gpurun's" in refused.what
    assert server.execute("SELECT * FROM gpurun_benchmarks", "bench") == []


@pytest.mark.usefixtures("database")
def test_a_table_that_is_locked_for_too_long_is_one_line(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    at(server, tmp_path).add(record(0))
    with psycopg.connect(server.url("bench")) as holder:
        holder.execute("LOCK TABLE gpurun_benchmarks")
        monkeypatch.setattr("gpurun.bench.store.database.PATIENCE_SECONDS", 0.2)
        refused = refusal(lambda: at(server, tmp_path).add(record(1)))
    assert "lock timeout" in refused.what
    assert "r0001.json is kept" in refused.what
    assert ids(at(server, tmp_path).query()) == ["r0000", "r0001"]


@pytest.mark.usefixtures("database")
def test_a_server_that_ends_in_between_costs_no_record(server: Server, tmp_path: Path) -> None:
    store = at(server, tmp_path)
    store.add(record(0))
    server.stop()
    try:
        refused = refusal(lambda: store.add(record(1)))
    finally:
        server.start()
    assert "r0001.json is kept" in refused.what
    assert PASSWORD not in refused.what
    store.add(record(2))
    assert ids(at(server, tmp_path).query()) == ["r0000", "r0001", "r0002"]


def test_a_wrong_password_is_one_line_that_does_not_repeat_it(
    server: Server, tmp_path: Path
) -> None:
    url = server.url("postgres", "wr0ng-word")
    refused = refusal(open_store(tmp_path, url, notice=print).query)
    assert f"postgresql://ada@127.0.0.1:{server.port}/postgres: " in refused.what
    assert "password authentication failed" in refused.what
    assert "wr0ng-word" not in refused.what + refused.todo
    hidden = f"postgresql://ada@127.0.0.1:{server.port}/postgres?password=wr0ng-word"
    refused = refusal(open_store(tmp_path, hidden, notice=print).query)
    assert "wr0ng-word" not in refused.what + refused.todo


def test_a_missing_database_is_one_line(server: Server, tmp_path: Path) -> None:
    refused = refusal(at(server, tmp_path, "nowhere").query)
    assert 'database "nowhere" does not exist' in refused.what
    assert PASSWORD not in refused.what


def test_a_host_without_a_server_is_one_line_and_the_record_enters_later(
    server: Server, tmp_path: Path, database: str
) -> None:
    url = f"postgresql://ada:{PASSWORD}@127.0.0.1:{free_port()}/{database}"
    refused = refusal(lambda: open_store(tmp_path, url, notice=print).add(record()))
    assert "onnection refused" in refused.what
    assert "r0000.json is kept" in refused.what
    assert PASSWORD not in refused.what + refused.todo
    assert ids(at(server, tmp_path).query()) == ["r0000"]
