"""`gpurun eject`: the settings as a patch with which the script runs as fast without gpurun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun

DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def loader(n, **more):
    x = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=8, **more)
"""
TRAIN = '''
"""Trains a small model."""
import torch
import torch.nn.functional as F

from data import loader

class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        layers = torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(p for p in self.model.parameters())

    def fit(self, batches):
        for x, y in batches:
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        print(f"{loss.item():.3f}")

if __name__ == "__main__":
    Trainer().fit(loader(STEPS * 8, shuffle=True))
'''
KNOB = """
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.knobs.source_forms import AfterImport, AfterOptimizer, AroundCalls

class Told(Knob):
    \"\"\"Forms of every kind.\"\"\"

    name = "told"
    effect = Effect.PIPELINE

    def candidates(self, facts):
        return Skip("set by hand")

    def apply(self, value, hooks):
        hooks.applied()

    def source_forms(self, value):
        source = "def called(module, *args):\\n    return module(*args)\\n"
        return [
            AfterImport("torch.set_num_interop_threads(1)"),
            AfterOptimizer("{model}.told = True"),
            AroundCalls("called", source, ("import torch",)),
        ]
"""
SETTINGS = {
    "told": True,
    "loader_workers": 1,
    "loader_buffers": "reuse",
    "fused_optimizer": "fused",
    "cpu_threads": 1,
}


def prepare(folder: Path, steps: int, **settings: Any) -> None:
    (folder / "data.py").write_text(DATA)
    (folder / "train.py").write_text(TRAIN.replace("STEPS", str(steps)))
    (folder / "told.py").write_text(KNOB)
    (folder / "gpurun.toml").write_text('knobs = ["told.py"]\n')
    (folder / "s.json").write_text(json.dumps({"settings": settings or SETTINGS}))


def printed(folder: Path) -> float:
    """The last loss of the script, run by python alone."""
    words = [sys.executable, "train.py"]
    return float(subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout)


def test_the_patch_holds_the_settings_and_needs_no_gpurun(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, 40)
    before = printed(tmp_path)
    sources = {name: (tmp_path / name).read_bytes() for name in ("train.py", "data.py")}
    words = ("--no-check", "--output", "tuned.patch", "--json", "eject.json", "train.py")
    done = gpurun("eject", "--settings", "s.json", *words)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr.splitlines()[-1].startswith(b"verdict=ejected exit=0")
    report = json.loads((tmp_path / "eject.json").read_text())
    assert report["written"] == ["told", "loader_workers", "fused_optimizer", "cpu_threads"]
    assert [one["knob"] for one in report["left_out"]] == ["loader_buffers"]
    assert report["command"] == "OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 python train.py"
    assert report["diff"] == (tmp_path / "tuned.patch").read_text()
    assert {name: (tmp_path / name).read_bytes() for name in sources} == sources
    subprocess.run(["git", "apply", "tuned.patch"], cwd=tmp_path, check=True)
    patched = (tmp_path / "train.py").read_text()
    assert "AdamW((p for p in self.model.parameters()), fused=True)\n" in patched
    assert "        self.model.told = True\n" in patched
    assert "F.cross_entropy(called(self.model, x), y)" in patched
    assert 'batch_size=8, **{**more, "num_workers": 1})' in (tmp_path / "data.py").read_text()
    assert printed(tmp_path) == pytest.approx(before, abs=0.002)


@pytest.mark.slow
def test_the_patched_script_is_run_beside_the_tuned_one(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, 200_000, fused_optimizer="fused", cpu_threads=1)
    done = gpurun("eject", "--settings", "s.json", "--json", "eject.json", "train.py")
    report = json.loads((tmp_path / "eject.json").read_text())
    assert (done.returncode, report["verdict"]) == (0, "ejected"), done.stderr.decode()
    assert report["comparison"]["training_differs"] is False
    assert report["comparison"]["pairs"] >= 1
    assert done.stdout.decode() == report["diff"]


@pytest.mark.slow
def test_a_patched_script_that_is_slower_is_exit_code_1(tmp_path: Path, gpurun: Gpurun) -> None:
    prepare(tmp_path, 200_000, told=True)
    slow = KNOB.replace("return module", "import time; time.sleep(0.05); return module")
    (tmp_path / "told.py").write_text(slow)
    done = gpurun("eject", "--settings", "s.json", "--json", "eject.json", "train.py")
    assert done.returncode == 1, done.stderr.decode()
    assert json.loads((tmp_path / "eject.json").read_text())["verdict"] == "slower"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("-m", "train"), b"eject patches a script that runs as one process"),
        (("--nproc-per-node", "2", "train.py"), b"eject patches a script that runs as one process"),
        (("train.py",), b"this command was not tuned here yet"),
        (("--scale", "1,2", "train.py"), b"--scale"),
    ],
)
def test_what_cannot_be_ejected_is_one_line(
    tmp_path: Path, in_process: Gpurun, words: tuple[str, ...], line: bytes
) -> None:
    prepare(tmp_path, 1)
    given = () if words == ("train.py",) else ("--settings", "s.json")
    done = in_process("eject", *given, *words)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stdout == b""


def test_a_script_that_fails_under_the_settings_is_exit_code_5(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    prepare(tmp_path, 1)
    (tmp_path / "train.py").write_text("raise RuntimeError('no data')\n")
    done = gpurun("eject", "--settings", "s.json", "train.py")
    assert done.returncode == 5
    assert b"the script fails under the settings" in done.stderr
    assert done.stdout == b""
