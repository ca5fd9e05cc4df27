"""Settings that no trial has compared: a loader gets workers only if these hand out its samples."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments import settings_file
from gpurun.arguments.main_flags import parse
from gpurun.commands import saved_settings
from gpurun.measure.fingerprint import command_fingerprint
from gpurun.records.spec import RunSpec, Setting
from gpurun.records.tuning import SavedSettings
from tests.forked import run_recorded
from tests.integration.knob_runs import bare
from tests.run_events import Event, events, run_in

SETTINGS = {"loader_workers": 2, "loader_persistent": True, "loader_prefetch": 3}

TRAINING = """
import collections, json, os, random, time
import numpy, torch
from torch.utils.data import DataLoader, Dataset, default_collate

torch.manual_seed(3), random.seed(3), numpy.random.seed(3)

class Plain(Dataset):
    def __init__(self):
        self.transform = float
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.tensor([self.transform(index)]), index

loaded = 0
def counting(samples):
    global loaded
    loaded += 1
    x, index = default_collate(samples)
    return x + loaded, index

def counting_beside_the_samples():
    stage = 0
    def collate(samples):
        nonlocal stage
        stage += 1
        x, index = default_collate(samples)
        return {"x": x, "index": index, "stage": stage}
    return collate

def cycling():
    turns = collections.deque([1.0, 2.0, 3.0])
    def turned(index):
        turns.rotate()
        return index + turns[0]
    return turned

class OneScratchFile(Plain):
    def __getitem__(self, index):
        with open("scratch", "w") as file:
            file.write(str(index))
        time.sleep(0.002)
        with open("scratch") as file:
            return torch.tensor([float(file.read() or -1)]), index

class RunningPosition(Plain):
    position = 0
    def __getitem__(self, index):
        self.position += 1
        return torch.tensor([float(self.position)]), index

class OwnGenerator(Plain):
    def __init__(self):
        self.dice = torch.Generator().manual_seed(1)
    def __getitem__(self, index):
        return torch.rand(1, generator=self.dice), index

class NotesBadSamples(Plain):
    def __init__(self):
        self.rejected, self.dice, self.transform = [], random.Random(1), float
    def __getitem__(self, index):
        if index % 7 == 3:
            self.rejected.append(index)
        self.dice.random()
        return super().__getitem__(index)

class Augmented(Plain):
    def __getitem__(self, index):
        return torch.tensor([random.random(), numpy.random.rand(), float(torch.rand(()))]), index

class Slow(Plain):
    seconds = 0.15
    def __getitem__(self, index):
        time.sleep(self.seconds if os.getpid() != SCRIPT else 0)
        return torch.tensor([float(index)]), index

class HangsInWorkers(Plain):
    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            time.sleep(600)
        return super().__getitem__(index)

class SlowCounter(Slow):
    def __init__(self):
        self.transform = cycling()
    def __getitem__(self, index):
        return super().__getitem__(index)[0] + self.transform(index), index

class ByName(Plain):
    def __getitem__(self, name):
        return torch.tensor([float(name.removeprefix("sample "))]), name

SCRIPT = os.getpid()
dataset, words = Plain(), {}
FORM
loader = DataLoader(dataset, batch_size=4, shuffle="sampler" not in words, **words)
model = torch.nn.LazyLinear(1)
optimizer = None
told = {"seen": [], "order": [], "draws": []}
for epoch in range(2):
    begun = time.monotonic()
    for batch in loader:
        x, index = (batch["x"], batch["index"]) if isinstance(batch, dict) else batch
        model(x).mean().backward()
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-9)
        optimizer.step()
        told["seen"].append([x.tolist(), batch["stage"] if isinstance(batch, dict) else 0])
        told["order"].append(list(index) if isinstance(index, (list, tuple)) else index.tolist())
    told["seconds"] = time.monotonic() - begun + told.get("seconds", 0)
    told["draws"].append([float(torch.rand(())), random.random(), numpy.random.rand()])
told["workers"] = loader.num_workers
print(json.dumps(told))
"""

UNSOUND = {
    "a counter of calls": "words = {'collate_fn': counting}",
    "a counter in a closure": "words = {'collate_fn': counting_beside_the_samples()}",
    "turns in a closure": "dataset.transform = cycling()",
    "a scratch file of one name": "dataset = OneScratchFile()",
    "a running position": "dataset = RunningPosition()",
    "a generator of its own": "dataset = OwnGenerator()",
    "slow samples": "dataset = SlowCounter()",
}


def under_settings(
    folder: Path, script: str, rehearse: bool = True
) -> tuple[dict[str, Any], list[Event]]:
    """The document that the script prints, and the outcomes of its settings."""
    (folder / "train.py").write_text(script)
    turned = tuple(Setting(name, value) for name, value in SETTINGS.items())
    spec = RunSpec(str(folder / "run"), os.getpid(), turned, rehearse=rehearse)
    done = run_recorded(["train.py"], folder, spec)
    assert done.returncode == 0, done.stderr.decode()
    assert not done.stderr, done.stderr.decode()
    assert events(folder / "run", "hook") == []
    assert len(list((folder / "run").glob("events-*.jsonl"))) == 1
    return json.loads(done.stdout), events(folder / "run", "knob")


def last(told: list[Event], knob: str) -> tuple[str, str]:
    (*_, event) = [event for event in told if event["knob"] == knob]
    return event["outcome"], event["detail"]


def kept(told: list[Event]) -> bool:
    """True if every setting acted to the end; its workers may have been renewed on the way."""
    return {event["outcome"] for event in told} <= {"applied", "runtime_only"}


@pytest.mark.parametrize("form", UNSOUND.values(), ids=UNSOUND.keys())
def test_samples_that_workers_would_change_are_loaded_as_the_script_does(
    tmp_path: Path, form: str
) -> None:
    script = TRAINING.replace("FORM", form)
    alone = bare(tmp_path, script)
    printed, told = under_settings(tmp_path, script)
    assert printed["workers"] == 0
    for name in ("seen", "order", "draws"):
        assert printed[name] == alone[name]
    for knob in SETTINGS:
        outcome, detail = last(told, knob)
        assert outcome == "revoked"
        assert detail.startswith("workers handed out other samples than the script's process: ")
        assert detail.endswith(" batches")


def test_without_a_rehearsal_they_change_in_silence(tmp_path: Path) -> None:
    """What the rehearsal is for; and a form that it refuses shows in these samples."""
    script = TRAINING.replace("FORM", UNSOUND["a counter of calls"])
    printed, told = under_settings(tmp_path, script, rehearse=False)
    assert printed["workers"] == 2
    assert printed["seen"] != bare(tmp_path, script)["seen"]
    assert kept(told)


@pytest.mark.parametrize("words", ["{}", "{'collate_fn': lambda rows: default_collate(rows)}"])
def test_a_sound_data_set_keeps_its_workers_and_the_scripts_order_and_draws(
    tmp_path: Path, words: str
) -> None:
    script = TRAINING.replace("FORM", f"dataset, words = Augmented(), {words}")
    printed, told = under_settings(tmp_path, script)
    assert printed["workers"] == 2
    assert {event["outcome"] for event in told} == {"applied"}
    assert "not compared" not in str(told)
    assert "changes as it is loaded" not in str(told)
    other, _ = under_settings(tmp_path / "run", script, rehearse=False)
    assert (printed["order"], printed["draws"]) == (other["order"], other["draws"])
    still = script.replace("Augmented()", "Plain()")
    alone = bare(tmp_path, still)
    (tmp_path / "still").mkdir()
    printed, _ = under_settings(tmp_path / "still", still)
    assert printed["workers"] == 2
    assert (printed["order"], printed["draws"]) == (alone["order"], alone["draws"])


def test_what_a_data_set_changes_as_it_is_loaded_is_told_by_name(tmp_path: Path) -> None:
    """A list of bad samples, say, which stays empty in the script's process."""
    script = TRAINING.replace("FORM", "dataset = NotesBadSamples()")
    printed, told = under_settings(tmp_path, script)
    assert printed["workers"] == 2
    assert kept(told)
    assert last(told, "loader_workers") == (
        "applied",
        "its data set changes as it is loaded (rejected): "
        "the script does not see what workers change",
    )


@pytest.mark.parametrize(
    ("form", "seconds"),
    [
        ("dataset, Slow.seconds = Slow(), 30.0", 2.0),
        ("words = {'sampler': [f'sample {i}' for i in range(40)]}; dataset = ByName()", 0.0),
    ],
)
def test_samples_that_cannot_be_compared_cost_little_and_are_told_of(
    tmp_path: Path, form: str, seconds: float
) -> None:
    script = TRAINING.replace("FORM", form)
    if seconds:
        script = script.replace("os.getpid() != SCRIPT", "not torch.utils.data.get_worker_info()")
    began = time.monotonic()
    printed, told = under_settings(tmp_path, script)
    assert seconds <= time.monotonic() - began
    assert printed["seconds"] < seconds + 5.0
    assert printed["workers"] == 2
    assert last(told, "loader_workers") == ("applied", "its samples were not compared")


def test_workers_that_hang_are_not_added(tmp_path: Path) -> None:
    began = time.monotonic()
    printed, told = under_settings(tmp_path, TRAINING.replace("FORM", "dataset = HangsInWorkers()"))
    assert time.monotonic() - began < 60.0
    assert printed["workers"] == 0
    assert last(told, "loader_workers") == ("revoked", "workers handed out no samples")


@pytest.mark.forked
def test_the_user_reads_which_setting_was_refused_and_why(
    tmp_path: Path, gpurun: Callable[..., Any]
) -> None:
    script = TRAINING.replace("FORM", UNSOUND["a running position"])
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "by_hand.json").write_text(json.dumps({"settings": SETTINGS}))
    done = gpurun("--settings", "by_hand.json", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["seen"] == bare(tmp_path, script)["seen"]
    said = " ".join(done.stderr.decode().split())
    reason = "workers handed out other samples than the script's process: "
    for knob in SETTINGS:
        assert f"skipped {knob} ({reason}" in said


@pytest.mark.forked
def test_tuned_settings_are_proven_and_not_rehearsed(
    tmp_path: Path, gpurun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This one would be refused."""
    script = TRAINING.replace("FORM", UNSOUND["a running position"])
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    options = parse(["train.py"])
    fingerprint = command_fingerprint(options.typed, options.rank_words, options.knob_paths)
    tuned = SavedSettings(SETTINGS, (), 2.0, fingerprint, ("train.py",))
    home = tmp_path / ".gpurun"
    settings_file.save(saved_settings.settings_path(home, options), tuned)
    done = gpurun("--tuned", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["workers"] == 2
    assert kept(events(run_in(tmp_path), "knob"))
