"""`scripts/record_run.py`: a recording holds what was measured and no path of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure.run_summary import summarise_run
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json
from scripts.record_run import NotRecorded, record
from tests.recordings import RECORDED, unpacked
from tests.unit import recorded_runs as made

HOME, SCRIPTS = "/home/somebody/work", "/srv/scripts"


def run_folder(tmp_path: Path, **result: Any) -> Path:
    folder = tmp_path / "run"
    (folder / "control").mkdir(parents=True)
    (folder / "control" / "run_spec.json").write_text("{}")
    spec = RunSpec(f"{HOME}/.gpurun/runs/20260102-030405-abcdef", 1)
    write_json(folder / "spec.json", to_json(spec))
    made.write_events(folder, [made.loader(), made.root(), made.steady(40), made.end()])
    summary = to_json(summarise_run(folder, exit_code=0, wall_seconds=3.0))
    summary |= {"command": [f"{SCRIPTS}/train.py", "--lr", "0.1"], **result}
    write_json(folder / "result.json", summary)
    (folder / "output.log").write_text("x" * 10_000 + "the end")
    return folder


def packed_again(monkeypatch: pytest.MonkeyPatch, archive: Path, place: Path) -> Path:
    monkeypatch.setattr("tests.recordings.RECORDED", archive.parent)
    return unpacked(archive.name.removesuffix(".tar.xz"), place)


def test_the_recording_of_a_run_sums_up_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path)
    archive = record(folder, "one", tmp_path / "into")
    again = packed_again(monkeypatch, archive, tmp_path / "out")
    figures = [summarise_run(f, exit_code=0, wall_seconds=3.0) for f in (folder, again)]
    assert figures[0] == figures[1]
    assert figures[0].samples_per_second is not None
    assert not (again / "control").exists()
    assert (again / "output.log").read_text().endswith("the end")
    assert len((again / "output.log").read_text()) < 10_000


def test_no_path_of_the_machine_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = [f"read {HOME}/data/images.npy and {SCRIPTS}/other.py", "1/2 of 30 samples/s"]
    archive = record(run_folder(tmp_path, notes=notes), "one", tmp_path / "into")
    again = packed_again(monkeypatch, archive, tmp_path / "out")
    told = json.loads((again / "result.json").read_text())
    assert told["command"][0] == "/recorded/train.py"
    assert told["notes"] == ["read /recorded/data/images.npy and /recorded/other.py", notes[1]]
    assert "/recorded/.gpurun/runs/" in (again / "spec.json").read_text()
    whole = "".join(path.read_text() for path in again.iterdir())
    assert not any(part in whole for part in (HOME, SCRIPTS, "somebody"))


def test_a_path_that_it_does_not_know_is_named_and_nothing_written(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, notes=["/data/sets/secret/images.npy is slow"])
    with pytest.raises(NotRecorded, match="/data/sets/secret/"):
        record(folder, "one", tmp_path / "into")
    assert not (tmp_path / "into").exists()
    assert record(folder, "one", tmp_path / "into", ["/data/sets/secret"]).exists()


def test_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    first = record(folder, "one", tmp_path / "a").read_bytes()
    (folder / "spec.json").touch()
    assert record(folder, "one", tmp_path / "b").read_bytes() == first


def test_what_is_in_the_repository_is_small_and_names_no_machine(tmp_path: Path) -> None:
    archives = sorted(RECORDED.glob("*.tar.xz"))
    assert len(archives) >= 4
    for archive in archives:
        assert archive.stat().st_size < 420_000
        name = archive.name.removesuffix(".tar.xz")
        assert record(unpacked(name, tmp_path), name, tmp_path / "again").read_bytes() == (
            archive.read_bytes()
        )
