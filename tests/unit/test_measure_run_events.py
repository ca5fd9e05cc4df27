"""Event files are read whatever state a killed or newer writer left them in."""

from __future__ import annotations

import json
from pathlib import Path

from gpurun.measure.run_events import read_run
from gpurun.records.events import StepRow
from tests.unit.recorded_runs import end, loader, row, steady, steps, write_events


def test_everything_a_process_wrote_is_in_its_log(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), steady(5), end()], rank=1)
    (log,) = read_run(tmp_path).processes
    assert log.process.rank == 1
    assert log.loaders[0].key == "train.py:10#0"
    assert len(log.steps["optimizer"]) == 5
    assert log.end is not None
    assert read_run(tmp_path).notes == ()


def test_step_rows_of_several_events_make_one_table_a_clock(tmp_path: Path) -> None:
    write_events(tmp_path, [steps([row(1), row(2)], "backward"), steady(3), steady(4)])
    (log,) = read_run(tmp_path).processes
    assert len(log.steps["backward"]) == 2
    assert len(log.steps["optimizer"]) == 7
    assert log.steps["optimizer"][StepRow.DEVICE_NS][0] == -1


def test_a_file_cut_at_any_byte_still_gives_what_came_before(tmp_path: Path) -> None:
    path = write_events(tmp_path, [loader(), steps([row(1)]), end()])
    whole = path.read_bytes()
    first_line = whole.index(b"\n") + 1
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        run = read_run(tmp_path)
        if length > first_line:
            assert run.processes[0].process.pid == 100
        elif 0 < length < first_line - 1:
            assert run.processes == ()
            assert "torn" in run.notes[0]


def test_fields_and_events_of_a_newer_writer_do_not_stop_the_reader(tmp_path: Path) -> None:
    path = write_events(tmp_path, [loader(), end()])
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    for document in documents:
        document["invented_later"] = 1
    documents.insert(1, {"event": "hologram", "depth": 3})
    path.write_text("".join(json.dumps(d) + "\n" for d in documents))
    run = read_run(tmp_path)
    assert len(run.processes[0].loaders) == 1
    assert run.processes[0].end is not None
    assert run.notes == ("events-100.jsonl: unknown event 'hologram'",)


def test_a_spoilt_row_is_left_out_and_said(tmp_path: Path) -> None:
    good = row(1)
    rows = [good, good[:5], (*good[:9], "no map", *good[10:]), good]
    write_events(tmp_path, [steps(rows)])
    run = read_run(tmp_path)
    assert len(run.processes[0].steps["optimizer"]) == 2
    assert run.notes == ("events-100.jsonl: a step row is unreadable (2 times)",)


def test_figures_and_kinds_that_no_writer_writes_are_left_out_and_said(tmp_path: Path) -> None:
    path = write_events(tmp_path, [steady(3)])
    huge = list(row(2000))
    huge[StepRow.DATA_NS] = 10**30
    odd = [{"event": "steps", "clock": "optimizer", "rows": [huge]}, {"event": ["steps"]}]
    path.write_text(path.read_text() + "".join(f"{json.dumps(line)}\n" for line in odd))
    run = read_run(tmp_path)
    table = run.processes[0].steps["optimizer"]
    assert len(table) == 3
    assert {len(column) for column in table.columns.values()} == {3}
    assert run.notes == (
        "events-100.jsonl: a step row is unreadable",
        "events-100.jsonl: unknown event ['steps']",
    )


def test_a_process_that_replaced_itself_has_a_log_for_each_life(tmp_path: Path) -> None:
    first = write_events(tmp_path, [steady(3)]).read_text()
    second = write_events(tmp_path, [steady(5)], start_ms=50).read_text()
    (tmp_path / "events-100.jsonl").write_text(first + second)
    lives = read_run(tmp_path).processes
    assert [len(log.steps["optimizer"]) for log in lives] == [3, 5]


def test_processes_come_in_the_order_they_started(tmp_path: Path) -> None:
    write_events(tmp_path, [], pid=7, start_ms=20)
    write_events(tmp_path, [], pid=9, start_ms=10)
    assert [log.process.pid for log in read_run(tmp_path).processes] == [9, 7]


def test_a_folder_without_events_is_an_empty_run(tmp_path: Path) -> None:
    assert read_run(tmp_path).processes == ()
