"""The store of benchmarks finds what was added, and moves it elsewhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpurun.bench.store import open_store
from gpurun.bench.store.benchmark_store import BenchmarkStore
from gpurun.bench.store.record_files import read_records
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import (
    BenchmarkExport,
    BenchmarkPurpose,
    BenchmarkRecord,
    new_id,
    utc_moment,
)
from gpurun.records.codec import from_json, to_json
from scripts.generate_schemas import FOLDER
from tests.unit.benchmark_records import CRASHED, FINGERPRINT, START, record


def silent(notice: str) -> None:
    pytest.fail(f"nothing was to be said: {notice}")


def opened(home: Path) -> BenchmarkStore:
    return open_store(home, notice=silent)


def ids(records: list[BenchmarkRecord]) -> list[str]:
    return [found.id for found in records]


def refusal(call: Callable[[], object]) -> GpurunError:
    with pytest.raises(GpurunError) as refused:
        call()
    assert "\n" not in refused.value.what + refused.value.todo
    assert refused.value.todo
    return refused.value


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    failed = record(1, status="failed", samples_per_second=None, step_time_ms=None, error="exit 1")
    for kept in (record(), failed):
        opened(tmp_path).add(kept)
        assert opened(tmp_path).get(kept.id) == kept
    assert opened(tmp_path).get("r0002") is None


def test_what_was_not_measured_is_null_for_whoever_asks_the_database(tmp_path: Path) -> None:
    opened(tmp_path).add(record(energy_joules=float("nan"), branch=None))
    with sqlite3.connect(tmp_path / "bench.db") as database:
        asked = "SELECT energy_joules, branch, samples_per_second FROM gpurun_benchmarks"
        assert database.execute(asked).fetchall() == [(None, None, 1000.0)]
    (found,) = opened(tmp_path).query()
    assert found.energy_joules is None


def test_a_history_is_asked_for_by_benchmark_purpose_and_time(tmp_path: Path) -> None:
    store = opened(tmp_path)
    other_gpu = replace(FINGERPRINT, device="NVIDIA H100")
    for kept in (
        *map(record, range(5)),
        record(5, benchmark="text"),
        record(6, fingerprint=other_gpu),
        record(7, branch="topic"),
        record(8, purpose=BenchmarkPurpose.SELFTEST),
    ):
        store.add(kept)
    plain = [BenchmarkPurpose.BENCH]
    history = store.query("vision", purposes=plain)
    assert ids(history) == ["r0000", "r0001", "r0002", "r0003", "r0004", "r0006", "r0007"]
    assert ids(store.query("text")) == ["r0005"]
    assert ids(store.query(purposes=[BenchmarkPurpose.SELFTEST])) == ["r0008"]
    from_1_to_3 = {"since": START + timedelta(hours=1), "until": START + timedelta(hours=3)}
    assert ids(store.query(**from_1_to_3)) == ["r0001", "r0002"]


def test_times_of_other_zones_are_put_in_order(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(record(1, time="2026-11-01T14:30:00+02:00"))  # 12:30 UTC
    store.add(record(2, time="2026-11-01T12:10:00Z"))
    assert ids(store.query()) == ["r0002", "r0001"]
    assert ids(store.query(since=START + timedelta(minutes=20))) == ["r0001"]


def test_a_fingerprint_has_the_same_key_however_its_settings_were_written_down() -> None:
    one = replace(FINGERPRINT, settings={"a": 1, "b": [2, 3]})
    other = replace(FINGERPRINT, settings={"b": (2, 3), "a": 1})
    assert one.key == other.key
    keys = {one.key, *(replace(one, **{name: None}).key for name in ("device", "driver", "torch"))}
    assert len(keys) == 4


def test_a_record_whose_id_is_there_is_not_added_twice(tmp_path: Path) -> None:
    for speed in (1000.0, 2000.0):
        opened(tmp_path).add(record(samples_per_second=speed))
    assert [found.samples_per_second for found in opened(tmp_path).query()] == [1000.0]


def test_ids_of_one_moment_differ() -> None:
    assert len({new_id(START) for _ in range(100)}) == 100


@pytest.mark.parametrize("name", ["branch", "benchmark", "device"])
def test_names_that_no_database_takes_are_kept(tmp_path: Path, name: str) -> None:
    odd = record(**{name: "caf\udce9\0ü"})
    opened(tmp_path).add(odd)
    assert opened(tmp_path).query() == [odd]
    if name == "benchmark":
        assert opened(tmp_path).query("caf\udce9\0ü") == [odd]


def test_each_run_has_a_json_file_that_fits_its_schema(tmp_path: Path) -> None:
    opened(tmp_path).add(record())
    document = json.loads((tmp_path / "benchmarks" / "r0000.json").read_text())
    jsonschema.validate(document, json.loads((FOLDER / "benchmark@1.json").read_text()))
    assert document["energy_joules"] is None
    assert from_json(BenchmarkRecord, document) == record()


def test_a_store_is_made_again_from_the_files(tmp_path: Path) -> None:
    store = opened(tmp_path)
    kept = [record(number) for number in range(3)]
    for one in kept:
        store.add(one)
    accepted = store.accept("r0001", "Ada", "why")
    (tmp_path / "bench.db").unlink()
    again = opened(tmp_path)
    assert again.query() == kept
    assert again.baselines() == [accepted]


def test_a_link_in_place_of_the_folder_of_records_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "benchmarks").symlink_to("../elsewhere")
    error = refusal(lambda: opened(tmp_path / "home").add(record(1)))
    assert "is a link" in error.what
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_file_that_cannot_be_read_is_told_and_keeps_nobody_out(tmp_path: Path) -> None:
    opened(tmp_path).add(record(1))
    (tmp_path / "benchmarks" / "r0002.json").write_text("{")
    (tmp_path / "benchmarks" / "caf\udce9.json").write_text("no record's name")
    (tmp_path / "benchmarks" / "r0003.json").write_text(json.dumps(to_json(record(4))))
    (tmp_path / "bench.db").unlink()
    said: list[str] = []
    assert open_store(tmp_path, notice=said.append).query() == [record(1)]
    (line,) = said
    assert "r0002.json" in line
    assert "and 1 more" in line


# -- accepted baselines ----------------------------------------------------------------------------


def test_a_baseline_is_moved_by_whom_when_where_and_why(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for number in range(3):
        store.add(record(number))
    first = store.accept("r0001", "Ada", "the loader is worth it")
    second = store.accept("r0002", "Grace", "another torch")
    again = opened(tmp_path)
    assert again.baselines("vision") == [first, second]
    assert again.baselines("text") == []
    assert (second.record, second.commit) == ("r0002", record(2).commit)
    assert (second.accepted_by, second.reason) == ("Grace", "another torch")
    assert utc_moment(first.time) <= utc_moment(second.time)


def test_only_a_record_with_a_speed_becomes_a_baseline(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(record(samples_per_second=None, status="failed", error="exit code 1"))
    assert "exit code 1" in refusal(lambda: store.accept("r0000", "Ada", "why")).what
    assert "no record r0009" in refusal(lambda: store.accept("r0009", "Ada", "why")).what
    assert store.baselines() == []
    store.add(record(1, samples_per_second=None))  # samples that cannot be counted: steps are
    assert store.accept("r0001", "Ada", "why").record == "r0001"


# -- records from files ----------------------------------------------------------------------------


def test_copied_files_of_records_and_baselines_enter_another_store(tmp_path: Path) -> None:
    here = opened(tmp_path / "here")
    kept = [record(0), record(1, launches=(CRASHED,)), record(2, purpose=BenchmarkPurpose.BISECT)]
    for one in kept:
        here.add(one)
    accepted = here.accept("r0000", "Ada", "why")
    there = opened(tmp_path / "there")
    there.add(kept[0])
    files = shutil.copytree(
        tmp_path / "here" / "benchmarks", tmp_path / "there" / "benchmarks", dirs_exist_ok=True
    )
    there = opened(tmp_path / "there")
    assert there.query() == kept
    assert there.baselines() == [accepted]
    assert [one for name in ids(kept) for one in read_records(files / f"{name}.json")] == kept


def test_several_records_in_one_document_are_read(tmp_path: Path) -> None:
    path = tmp_path / "several.json"
    document = to_json(BenchmarkExport((record(0), record(1)), ()))
    jsonschema.validate(document, json.loads((FOLDER / "benchmarks@1.json").read_text()))
    path.write_text(json.dumps(document))
    assert read_records(path) == [record(0), record(1)]


def broken(**changes: Any) -> str:
    """A document of which the last record is off."""
    export = to_json(BenchmarkExport((record(0), record(1)), ()))
    export["records"][1].update(changes)
    return json.dumps(export)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1 column 1"),
        (broken()[:-20], "line "),
        ("[]", "schema is None"),
        ('{"schema": "gpurun/result@1"}', "gpurun/result@1"),
        ('{"schema": ["gpurun/result@1"]}', "gpurun/result@1"),
        ("[" * 100_000, "nested too deeply"),
        (broken(invented=1), "records[1]: unknown field 'invented'"),
        (broken(samples_per_second="fast"), "records[1].samples_per_second"),
        (broken(id="../../outside"), "is no id"),
        (broken(id=""), "is no id"),
        (broken(time="yesterday"), "yesterday"),
        (broken(time="2026-11-01T12:00:00"), "offset from UTC"),
        (broken(time="0001-01-01T00:00:00+10:00"), "calendar"),
        (broken(benchmark="v" * 300), "benchmark"),
        (broken(schema="gpurun/benchmark@2"), "schema"),
        (broken(peak_memory_bytes=10**30), "peak_memory_bytes"),
        (broken(batch_size=10**400), "batch_size: the number has more than 64 bits"),
        (
            broken(step_time_ms={"mean": float("nan"), "p50": 1, "p95": 1, "p99": 1}),
            "NaN is no finite number",
        ),
    ],
)
def test_a_malformed_file_is_named_with_its_fault(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "records.json"
    path.write_text(text)
    refused = refusal(lambda: read_records(path))
    assert complaint in refused.what
    assert str(path) in refused.what


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    refused = refusal(lambda: read_records(tmp_path / "none.json"))
    assert "No such file" in refused.what


# -- cost ------------------------------------------------------------------------------------------


def test_sqlalchemy_is_imported_when_a_store_is_opened_and_not_before(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from gpurun.bench.store import open_store;"
        "assert 'sqlalchemy' not in sys.modules;"
        "open_store(pathlib.Path(sys.argv[1]), notice=print);"
        "assert 'sqlalchemy' in sys.modules; assert 'psycopg' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "home")], check=True)
    assert not (tmp_path / "home").exists()  # and it touches nothing before something is asked


def test_nothing_is_left_beside_the_file(tmp_path: Path) -> None:
    opened(tmp_path).add(record())
    with sqlite3.connect(tmp_path / "bench.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.db", "benchmarks"]


def test_a_name_that_no_file_can_have_is_refused_in_one_line(tmp_path: Path) -> None:
    error = refusal(lambda: read_records(tmp_path / ("x" * 400)))
    assert "cannot be read: File name too long" in error.what
