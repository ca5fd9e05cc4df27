"""Small files made to fill the memory or to take hours are refused in one clear line."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline import from_nsys, limits
from tests.conftest import Gpurun

MIB = 1 << 20
BEGIN = '{"traceEvents": ['
KERNEL = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}}'
KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId,"
    " globalPid, demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread,"
    " staticSharedMemory, dynamicSharedMemory)"
)
NAMES = "CREATE TABLE StringIds (id, value)"


def zipped(path: Path, begin: str, filling: str, times: int, end: str = "") -> None:
    path.write_bytes(
        gzip.compress(begin.encode())
        + gzip.compress(filling.encode()) * times
        + gzip.compress(end.encode())
    )


def export(path: Path, names: Iterable[tuple[int, str]], processes: Iterable[int]) -> None:
    """An export of Nsight Systems with a kernel for each of the processes."""
    with closing(sqlite3.connect(path)) as database, database:
        for statement in ("CREATE TABLE META_DATA_EXPORT (name, value)", NAMES, KERNELS):
            database.execute(statement)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", names)
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL"
            " VALUES (?, 1, 0, 7, 0, ? << 24, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)",
            ((-begin, process) for begin, process in enumerate(processes)),
        )


def blanks(path: Path) -> None:
    zipped(path, BEGIN + KERNEL, " " * MIB, 300, "]}")


def one_long_name(path: Path) -> None:
    zipped(path, BEGIN + '{"ph": "X", "name": "', "a" * MIB, 400, '"}]}')


def blanks_after_a_fault(path: Path) -> None:
    zipped(path, BEGIN + KERNEL + ", {x", " " * MIB, 400, "]}")


def a_long_end(path: Path) -> None:
    zipped(path, BEGIN + KERNEL + '], "list": [1', ",1" * MIB, 400, "]}")


def deep_brackets(path: Path) -> None:
    path.write_text(BEGIN + "[" * MIB)


def one_name_twice(path: Path) -> None:
    export(path, ((1, f"name {number}") for number in range(20_000)), [5] * 20_000)


def many_processes(path: Path) -> None:
    export(path, [(1, "name")], range(20_000))


def one_endless_line(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)


def a_run_folder_with_a_pipe(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "events-1.jsonl")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("trace.json.gz", blanks, "expands to over 200 times its size"),
        ("trace.json.gz", one_long_name, "begins a text of 16 MiB without an end"),
        ("trace.json.gz", blanks_after_a_fault, "begins a text of 16 MiB without an end"),
        ("trace.json.gz", a_long_end, "begins a text of 16 MiB without an end"),
        ("trace.json", deep_brackets, "nested too deeply"),
        ("report.sqlite", one_name_twice, "an id stands twice in its table StringIds"),
        ("report.sqlite", many_processes, "names over 1,000 processes"),
        ("kernels.csv", one_endless_line, "line 1 begins a text of 16 MiB without an end"),
        ("run", a_run_folder_with_a_pipe, "events-1.jsonl is no regular file"),
        ("trace.json", os.mkfifo, "is no regular file"),
        ("kernels.csv", lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
    ],
)
def test_a_file_that_would_take_all_memory_or_hours_is_refused_in_two_lines(
    tmp_path: Path, in_process: Gpurun, name: str, make: Callable[[Path], None], said: str
) -> None:
    make(tmp_path / name)
    done = in_process("diagnose", name)
    what, todo, verdict = done.stderr.decode().splitlines()
    assert (done.returncode, verdict) == (2, "verdict=error exit=2")
    assert what.startswith(f"gpurun: {name}")
    assert said in what
    assert todo.startswith("gpurun: ")


def test_a_page_about_a_run_that_would_take_hours_is_refused_in_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Gpurun
) -> None:
    monkeypatch.setattr(limits, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(limits, "SECONDS_A_MB", 0.0)
    (tmp_path / "run").mkdir()
    row = '{"event": "step", "x": [' + "1," * 1000 + "1]}\n"
    (tmp_path / "run" / "events-1.jsonl").write_text(row * 20_000)
    done = in_process("report", "run")
    what, todo, verdict = done.stderr.decode().splitlines()
    assert (done.returncode, verdict) == (2, "verdict=error exit=2")
    assert what == "gpurun: run takes far more time to read than a recording of its size"
    assert todo.startswith("gpurun: ")


def test_operators_that_are_nested_deeply_are_diagnosed(tmp_path: Path, in_process: Gpurun) -> None:
    """The time grew with the square of the depth."""
    deep = 100_000
    shared = {"ph": "X", "cat": "cpu_op", "tid": 1}
    nested = [{**shared, "name": f"op {n}", "ts": n, "dur": 4 * deep - 2 * n} for n in range(deep)]
    with gzip.open(tmp_path / "trace.json.gz", "wt") as file:
        json.dump({"traceEvents": nested}, file)
    done = in_process("diagnose", "trace.json.gz")
    assert done.returncode == 0, done.stderr.decode()


def test_short_rows_below_a_long_header_take_no_room(tmp_path: Path, in_process: Gpurun) -> None:
    header = ",".join(f'"metric__{number}"' for number in range(200_000))
    rows = "".join(f'"{number}","kernel"\n' for number in range(400))
    (tmp_path / "kernels.csv").write_text(f'"ID","Kernel Name",{header}\n{rows}')
    done = in_process("diagnose", "kernels.csv")
    assert done.returncode == 0, done.stderr.decode()


def test_work_without_an_end_is_ended_after_a_time_for_the_size_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FREE_SECONDS", 0.5)
    (tmp_path / "trace.json").touch()

    def work() -> None:
        until = time.process_time() + 60
        while time.process_time() < until:
            pass

    def work_on() -> None:
        with suppress(GpurunError):  # as a callback would
            work()
        work()

    with pytest.raises(GpurunError, match=r"trace\.json takes far more time") as error:
        within_limits(tmp_path / "trace.json", work_on)
    assert error.value.todo


def test_memory_that_no_recording_of_the_size_takes_ends_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FREE_MEMORY", 50 * MIB)
    (tmp_path / "trace.json").touch()

    def work() -> None:
        held: list[list[int]] = []
        held.extend([number] for number in range(10_000_000))

    with pytest.raises(GpurunError, match=r"trace\.json takes far more memory"):
        within_limits(tmp_path / "trace.json", work)


def within_limits(path: Path, work: Callable[[], object]) -> None:
    with limits.limited([path]):
        work()


def test_a_query_that_computes_for_hours_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FREE_SECONDS", 0.5)
    path = tmp_path / "report.sqlite"
    export(path, ((number, "name") for number in range(60_000)), [5])
    with closing(sqlite3.connect(path)) as database:
        slow = "GENERATED ALWAYS AS (size + length(hex(zeroblob(7000000 + size)))) VIRTUAL"
        database.execute("ALTER TABLE StringIds RENAME id TO size")
        database.execute(f"ALTER TABLE StringIds ADD id {slow}")
    with pytest.raises(GpurunError, match="takes far more time"):
        within_limits(path, lambda: from_nsys.read(path))


def test_without_a_proc_file_system_a_recording_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATM", tmp_path / "not" / "there")
    trace = tmp_path / "trace.json"
    trace.write_text(BEGIN + KERNEL + "]}")
    with limits.limited([trace]):
        assert json.loads(trace.read_text())
