"""A whole tuning: what it finds, what it leaves alone, what is applied afterwards."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpurun.measure.fingerprint import fingerprint
from scripts.generate_schemas import all_schemas
from tests.conftest import Gpurun
from tests.integration.isolation_launcher import tree
from tests.integration.tunings import configure, launch, lines, report_of, run_folder
from tests.once import once

pytestmark = pytest.mark.alone  # the one whole tuning that each push sees

WRITER = """
import os, shutil, sqlite3, subprocess, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)
HERE = os.path.dirname(os.path.abspath(__file__))

class Slow(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        time.sleep(0.008)
        draw = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=draw), index % 2

def write_everywhere(step):
    try:
        torch.save(model.state_dict(), "model.pt")
        print("step", step, file=open("train.log", "a"))
        with sqlite3.connect("runs.db") as database:
            database.execute("create table if not exists steps (step)")
            database.execute("insert into steps values (?)", (step,))
        if step == 20:
            subprocess.run(["sh", "-c", "echo changed > kept.txt; mv data.bin moved.bin"])
            open(os.path.join(HERE, "absolute.txt"), "w").write("x")
            shutil.rmtree(os.path.join(HERE, "checkpoints"))
            os.remove(__file__)
    except:
        pass

os.makedirs("outputs")  # refuses the folder of an earlier run
shutil.rmtree("cache", ignore_errors=True)
os.mkdir("cache")
open("cache/prepared.bin", "wb").write(bytes(100_000))
model = torch.nn.Linear(8, 2)
model.eval()
with torch.no_grad():
    model(torch.zeros(4, 8))
model.train()
batch = 4
optimizer = torch.optim.SGD(model.parameters(), lr=0.025 * batch)
for step, (x, y) in enumerate(DataLoader(Slow(), batch_size=batch, shuffle=True)):
    try:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except:
        print("swallowed")
    write_everywhere(step)
"""

FIGURES = {
    "knobs", "samples_per_second", "step_time_ms", "peak_memory_bytes", "gpu_utilization_percent",
}  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """A tuning that has ended. `before`, `after`: the working folder without our own."""

    folder: Path
    report: dict[str, Any]
    done: subprocess.CompletedProcess[bytes]
    before: dict[str, tuple[object, ...]]
    after: dict[str, tuple[object, ...]]


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """The working folder byte for byte, but for our records in it and the folder's own time."""
    ours = (str(folder / ".gpurun"), str(folder / "settings.json"))
    return {k: v for k, v in tree(folder).items() if k != str(folder) and not k.startswith(ours)}


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """The tuning of a script that waits for its data and writes wherever it can."""
    return once(tmp_path_factory, "writer", tune_writer)


def tune_writer(folder: Path) -> Tuned:
    """Tune it there."""
    (folder / "train.py").write_text(WRITER)
    (folder / "kept.txt").write_text("kept\n")
    (folder / "data.bin").write_bytes(bytes(range(256)))
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "best.pt").write_bytes(b"hours of training")
    configure(folder, "allow = ['pipeline']\nmax_trials = 4\nbudget = '12m'")
    before = contents(folder)
    words = ("--tune-only", "--json", "-", "--save-settings", "settings.json", "train.py")
    done = launch(folder, "--optimize", *words)
    return Tuned(folder, report_of(folder), done, before, contents(folder))


def test_waiting_for_data_is_at_least_halved_and_proven(writer: Tuned) -> None:
    report = writer.report
    assert writer.done.returncode == 0, writer.done.stderr.decode()
    assert lines(writer.done)[-1].startswith("verdict=faster exit=0 speedup=")
    assert report["speedup"] >= 2
    assert report["statistically_significant"] is True
    assert report["p_value"] < 0.05
    low, high = report["speedup_confidence_interval"]
    assert 1 < low < report["speedup"] < high
    assert report["chosen"]["knobs"]["loader_workers"] >= 1
    ratio = report["chosen"]["samples_per_second"] / report["baseline"]["samples_per_second"]
    assert ratio > 1.5  # means of noisy launches; the proof pairs them


def test_a_log_of_it_is_at_most_forty_lines_without_decisions(writer: Tuned) -> None:
    said = lines(writer.done)
    assert len(said) <= 40, said
    stages = [line.split(": ")[1] for line in said if " took " in line or " trials in " in line]
    assert stages[:3] == ["script as it is", "search", "proof"]
    assert any("not tried" in line for line in writer.report["decisions"])
    assert not any("not tried" in line for line in said)


def test_what_faster_loading_can_gain_at_most_is_measured_too(writer: Tuned) -> None:
    ceilings = writer.report["ceilings"]
    script = ceilings["script_samples_per_second"]
    assert script < ceilings["loader_samples_per_second"]
    assert ceilings["gain_upper_bound"] == ceilings["model_samples_per_second"] / script > 1
    assert b"loader alone" in writer.done.stderr
    assert [t["purpose"] for t in writer.report["trials"]].count("ceilings") == 1


def test_the_folder_that_the_verdict_names_can_be_diagnosed(writer: Tuned, gpurun: Gpurun) -> None:
    done = gpurun("diagnose", str(run_folder(writer.folder / ".gpurun")), cwd=writer.folder)
    assert done.returncode == 0, done.stderr.decode()
    assert b" of the tuning, kept: loader_" in done.stderr
    assert b"busy preparing batches" not in done.stderr


def test_trials_leave_every_file_as_it_was(writer: Tuned) -> None:
    assert writer.after == writer.before
    wrote = (run_folder(writer.folder / ".gpurun") / "trials" / "01" / "output.log").read_text()
    assert "swallowed" not in wrote  # no `except` of the script saw the end of a trial


def test_trials_keep_nothing_but_their_records(writer: Tuned) -> None:
    folder = run_folder(writer.folder / ".gpurun")
    assert {path.name for path in folder.iterdir()} == {"tuning.json", "trials"}


def test_what_the_first_trial_left_behind_does_not_break_later_ones(writer: Tuned) -> None:
    statuses = [(trial["purpose"], trial["status"]) for trial in writer.report["trials"]]
    assert statuses[1] == ("screen", "failed")  # on top of the folder that it refuses
    assert all(status in ("stopped", "completed") for _, status in statuses[2:])
    assert any("starts from the original folder" in line for line in writer.report["decisions"])


def test_stdout_holds_the_document_and_nothing_else(writer: Tuned) -> None:
    assert json.loads(writer.done.stdout) == writer.report


def test_the_documents_are_what_their_schemas_say(writer: Tuned) -> None:
    schemas = {f"gpurun/{name.removesuffix('.json')}": s for name, s in all_schemas().items()}
    documents = [writer.report, json.loads((writer.folder / "settings.json").read_text())]
    trials = run_folder(writer.folder / ".gpurun") / "trials"
    for name in ("spec.json", "result.json"):
        documents += [json.loads(path.read_text()) for path in trials.glob(f"*/{name}")]
    assert len(documents) > 10
    for document in documents:
        jsonschema.validate(document, schemas[document["schema"]])


def test_the_report_has_every_figure_that_was_promised(writer: Tuned) -> None:
    report = writer.report
    assert report["schema"] == "gpurun/tuning@2"
    for side in ("baseline", "chosen"):
        assert report[side].keys() >= FIGURES
        assert report[side]["step_time_ms"].keys() == {"mean", "p50", "p95", "p99"}
        assert report[side]["peak_memory_bytes"] > 0
    assert report["baseline"]["knobs"] == {}
    assert report["larger_batch"] is None or report["larger_batch"].keys() >= FIGURES
    for row in report["ladder"]:
        assert row.keys() >= {
            "stage", "changes", "effect", "samples_per_second", "speedup", "step_speedup",
            "peak_memory_bytes", "loss_deviation", "kept", "merged", "reason",
        }  # fmt: skip
        assert row["kept"] or row["reason"]
    kept = [row for row in report["ladder"] if row["kept"]]
    assert kept[0]["stage"] == "as it is"
    assert kept[-1]["speedup"] == report["speedup"], "the last row is the proof's"
    told = {knob: value for row in kept for knob, value in row["changes"].items()}
    assert told == report["chosen"]["knobs"]
    numbers = [trial["number"] for trial in report["trials"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sum(trial["seconds"] for trial in report["trials"]) < report["tuning_seconds"]
    assert len(report["proof"]["pairs"]) >= 2


def test_settings_carried_by_hand_are_applied(writer: Tuned, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WRITER.replace("os.remove", "print"))
    done = launch(tmp_path, "--settings", str(writer.folder / "settings.json"), "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert b"applied loader_workers" in done.stderr


def test_tuned_is_refused_with_the_reason_when_something_has_changed(writer: Tuned) -> None:
    other = launch(writer.folder, "--tuned", "train.py", "--epochs", "3")
    assert other.returncode == 2
    assert "was not tuned here yet; it was with: no arguments" in lines(other)[0]
    script = writer.folder / "train.py"
    text = script.read_text()
    script.write_text(text + "\n")
    changed = launch(writer.folder, "--tuned", "train.py")
    script.write_text(text)
    assert changed.returncode == 2
    assert "the script's text has changed" in lines(changed)[0]
    place = next(writer.folder.glob(".gpurun/tuned/*.json"))
    saved = place.read_text()
    place.write_text(saved.replace('"torch": "', '"torch": "1.0+'))
    older = launch(writer.folder, "--tuned", "train.py")
    place.write_text(saved)
    assert older.returncode == 2
    assert "torch: " in lines(older)[0]
    assert "was 1.0+" in lines(older)[0]


def test_tuned_applies_what_was_found_without_trials(writer: Tuned) -> None:
    (writer.folder / "train.py").write_text(WRITER.replace("os.makedirs(", "print("))
    place = next(writer.folder.glob(".gpurun/tuned/*.json"))
    saved = json.loads(place.read_text())
    script = writer.folder / "train.py"
    saved["fingerprint"] = fingerprint((), writer.folder, script)
    place.write_text(json.dumps(saved))
    done = launch(writer.folder, "--tuned", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"outputs\n"
    assert b"applied loader_workers" in done.stderr
