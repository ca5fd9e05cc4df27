"""Exports of Nsight Systems from an H200 give the totals that plain SQL gives."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline import from_nsys
from gpurun.timeline.model import CopyKind, Group, Timeline
from gpurun.timeline.runtime_calls import host_waits

DATA = Path(__file__).resolve().parents[1] / "data" / "profiles"
EXPORTS = ("h200_nsys2023_mlp.sqlite", "h200_nsys2025_mlp.sqlite")
STRINGS = "JOIN StringIds ON id ="


def only_timeline(path: Path) -> Timeline:
    (timeline,) = from_nsys.read(path)
    return timeline


def query(path: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(text).fetchall()


def changed(tmp_path: Path, *statements: str) -> Path:
    """A copy of the newer export after these statements."""
    path = tmp_path / "changed.sqlite"
    shutil.copy(DATA / EXPORTS[1], path)
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return path


@pytest.mark.parametrize("name", EXPORTS)
def test_kernels_add_up_as_in_sql(name: str) -> None:
    kernels = only_timeline(DATA / name).kernels
    assert kernels is not None
    seconds: Counter[str] = Counter()
    for kernel in kernels:
        seconds[kernel.name] += kernel.end_ns - kernel.begin_ns
    expected = query(
        DATA / name,
        "SELECT value, SUM(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
        f" {STRINGS} demangledName GROUP BY value",
    )
    assert dict(seconds) == dict(expected)
    assert [k.begin_ns for k in kernels] == sorted(k.begin_ns for k in kernels)


@pytest.mark.parametrize("name", EXPORTS)
def test_copies_add_up_as_in_sql(name: str) -> None:
    copies = only_timeline(DATA / name).copies
    assert copies is not None
    for kind, number in ((CopyKind.H2D, 1), (CopyKind.D2H, 2), (CopyKind.D2D, 8)):
        mine = [copy for copy in copies if copy.kind is kind]
        totals = (len(mine), sum(c.bytes for c in mine), sum(c.end_ns - c.begin_ns for c in mine))
        where = f"FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE copyKind = {number}"
        assert query(DATA / name, f"SELECT COUNT(*), SUM(bytes), SUM(end - start) {where}") == [
            totals
        ]
    sets = [copy for copy in copies if copy.kind is CopyKind.SET]
    expected = query(DATA / name, "SELECT COUNT(*), SUM(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET")
    assert expected == [(len(sets), sum(c.bytes for c in sets))]
    assert {copy.pageable for copy in copies if copy.kind is CopyKind.H2D} == {True}
    assert {copy.pageable for copy in copies if copy.kind is CopyKind.D2H} == {False}


@pytest.mark.parametrize("name", EXPORTS)
def test_calls_and_syncs_add_up_as_in_sql(name: str) -> None:
    timeline = only_timeline(DATA / name)
    assert timeline.runtime_calls is not None
    waits = host_waits(timeline)
    assert waits is not None
    launches = sum(call.name == "cudaLaunchKernel" for call in timeline.runtime_calls)
    assert query(
        DATA / name,
        f"SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME {STRINGS} nameId"
        " WHERE value LIKE 'cudaLaunchKernel\\_v%' ESCAPE '\\'",
    ) == [(launches,)]
    table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
    (expected,) = query(DATA / name, f"SELECT COUNT(*), SUM(end - start) FROM {table}")
    waited = sum(wait.end_ns - wait.begin_ns for wait in waits)
    assert len(waits) == expected[0]
    assert waited >= expected[1], "the call, and the copy that it awaits, take longer than the wait"
    assert {wait.name for wait in waits} == {"cudaStreamSynchronize"}


@pytest.mark.parametrize("name", EXPORTS)
def test_the_window_is_that_of_the_steps(name: str) -> None:
    timeline = only_timeline(DATA / name)
    ((begin, end, count),) = query(
        DATA / name, "SELECT MIN(start), MAX(end), COUNT(*) FROM NVTX_EVENTS WHERE text = 'step'"
    )
    assert timeline.steps is not None
    assert (timeline.window_begin_ns, timeline.window_end_ns, len(timeline.steps)) == (
        begin, end, count,
    )  # fmt: skip


def test_a_kernel_has_its_shape_and_its_group() -> None:
    kernels = only_timeline(DATA / EXPORTS[1]).kernels
    assert kernels is not None
    kind = kernels[0].kind
    assert (kind.group, kind.tensor_core) == (Group.MATMUL, False)
    assert (kind.grid, kind.block) == ((4, 32, 1), (128, 1, 1))


def test_without_a_table_of_kernels_they_are_not_measured(tmp_path: Path) -> None:
    timeline = only_timeline(changed(tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"))
    assert timeline.kernels is None
    assert timeline.copies
    assert timeline.notes == ("Nsight Systems recorded calls of CUDA and no kernels",)


def test_the_first_schema_has_another_table_of_metadata(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA",
        "UPDATE EXPORT_META_DATA SET value = '3.0.1' WHERE name = 'EXPORT_SCHEMA_VERSION'",
    )
    assert only_timeline(path).kernels
    assert only_timeline(path).notes == ()


def test_a_newer_schema_is_read_and_noted(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "UPDATE META_DATA_EXPORT SET value = '4.1.0' WHERE name = 'EXPORT_SCHEMA_VERSION'",
    )
    assert "schema 4.1 " in only_timeline(path).notes[0]


def test_each_process_has_a_timeline_of_its_own(tmp_path: Path) -> None:
    other = 77 << 24
    path = changed(
        tmp_path,
        "CREATE TABLE more AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 5",
        f"UPDATE more SET globalPid = {other}",
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM more",
    )
    first, second = from_nsys.read(path)
    assert len(first.kernels or ()) == 5
    assert len(second.kernels or ()) == 1616


def test_no_string_of_the_environment_is_read(tmp_path: Path) -> None:
    path = changed(
        tmp_path, "INSERT INTO StringIds VALUES (999999999, 'WANDB_API_KEY=planted-secret')"
    )
    assert "planted-secret" not in repr(asdict(only_timeline(path)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no export of Nsight Systems"),
        (b"SQLite format 3\x00" + b"\x00" * 200, "is damaged"),
        (b"{}", "is no export of Nsight Systems"),
    ],
)
def test_a_foreign_file_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "foreign.sqlite"
    path.write_bytes(content)
    with pytest.raises(GpurunError) as error:
        from_nsys.read(path)
    assert said in error.value.what
    assert "\n" not in error.value.what


def test_a_truncated_export_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "half.sqlite"
    path.write_bytes((DATA / EXPORTS[1]).read_bytes()[:200_000])
    with pytest.raises(GpurunError, match="is damaged"):
        from_nsys.read(path)


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(GpurunError, match="is no export"):
        from_nsys.read(path)


def test_an_export_of_nothing_is_refused(tmp_path: Path) -> None:
    tables = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
    drops = [f"DROP TABLE CUPTI_ACTIVITY_KIND_{table}" for table in tables]
    with pytest.raises(GpurunError, match="holds no kernel"):
        from_nsys.read(changed(tmp_path, *drops, "DROP TABLE NVTX_EVENTS"))
