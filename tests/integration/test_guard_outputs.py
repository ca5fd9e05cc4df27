"""What root modules return without gradients is compared: inference, and evaluation in training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs import find
from gpurun.knobs.api import Effect
from gpurun.measure.run_events import read_run
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.records.tuning import GuardVerdict
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.tuner.training_judge import TrainingJudge
from tests.conftest import REPOSITORY
from tests.forked import run_recorded

KNOBS = tuple(str(REPOSITORY / "tests" / "data" / f"knobs_{kind}") for kind in ("outputs", "sound"))
STOP = StopRule(min_steps=30, min_seconds=0, max_steps=40, warmup_steps=2, audit_steps=8)

MODEL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(8), Block(8))
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Linear(8, 5)
    def forward(self, x):
        x = self.blocks(self.first(x).mean((2, 3)))
        scores = self.last(self.dropout(x))
        return {"scores": scores, "pair": (x, scores.argmax(1)), "kind": "net"}

torch.manual_seed(0)
model = Net()
data = TensorDataset(torch.randn(90, 3, 6, 6))
"""

INFERENCE = (
    MODEL
    + """
model.eval()
kept = []
with torch.no_grad():
    for _ in range(5):
        for x, in DataLoader(data, batch_size=8):
            kept.append(model(x)["scores"].softmax(1))
"""
)

RANDOM = INFERENCE.replace("x = self.blocks", "x = x + torch.randn(x.shape, generator=fresh)\n"
    "        x = self.blocks").replace("model = Net()", "model = Net()\nfresh = torch.Generator()\n"
    "fresh.seed()")  # fmt: skip


class Trials:
    """Launches trials of one script and judges candidates against the baseline's two."""

    def __init__(self, folder: Path, script: str, stop: StopRule = STOP) -> None:
        self.folder, self.stop = folder, stop
        (folder / "script.py").write_text(script)
        launches: Any = self
        self.judge = TrainingJudge([self.launch(), self.launch()], launches)

    def repeated(self) -> list[LaunchAudit]:
        return [self.launch()]

    def reseeded(self) -> list[LaunchAudit]:
        return []

    def rounded(self, *_: object) -> list[LaunchAudit]:
        return [self.launch(rounded=True)]

    def still(self, settings: Mapping[str, Any] | None, rounded: bool = False) -> list[LaunchAudit]:
        return [self.launch(rounded, True, **(settings or {}))]

    def launch(self, rounded: bool = False, still: bool = False, **settings: Any) -> LaunchAudit:
        run = self.folder / f"run{len(list(self.folder.glob('run*')))}"
        run.mkdir()
        spec = RunSpec(
            str(run), os.getpid(), knob_paths=KNOBS,
            settings=tuple(Setting(k, v) for k, v in settings.items()),
            trial=TrialSpec(self.stop, seed=3, rounded=rounded, still=still),
        )  # fmt: skip
        done = run_recorded([str(self.folder / "script.py")], run, spec)
        assert done.returncode == 0, done.stderr.decode()
        log = read_run(run).processes[0]
        assert not log.hooks, log.hooks
        assert {k.knob for k in log.knobs if k.outcome == "applied"} >= settings.keys(), log.knobs
        shown = audit_of(log, 0, rounded, still)
        assert shown is not None
        return shown

    def judge_training(self, **settings: Any) -> GuardVerdict:
        """As a tuning does: a trial that only rounds is asked where that may be all."""
        effects = [find(knob, KNOBS).effect for knob in settings]
        effect = Effect.NUMERICS if Effect.NUMERICS in effects else Effect.PIPELINE
        shown = self.launch(**settings)
        return self.judge.judge([shown], effect, (), settings)


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("inference"), INFERENCE)


BROKEN = {
    "zeros": "is zero",
    "stale": "deviates",
    "reused": "held other numbers after the next call",
    "permuted": "deviates",
    "half": "is bfloat16 instead of float32",
    "scaled": "deviates",
    "late": "deviates",
    "partial": "deviates",
    "nan": "is not finite",
    "classes": "agrees in",
    "one more": "instead of",
    "skipped": "deviates",
}


QUICK = {"zeros", "reused", "half", "late", "skipped"}
"""One of each way in which outputs can be wrong; what is alike is slow."""


@pytest.mark.parametrize(
    "value",
    [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in BROKEN],
)
def test_falsified_outputs_are_rejected_with_what_is_wrong(inference: Trials, value: str) -> None:
    verdict = inference.judge_training(returned=value)
    assert not verdict.accepted
    assert any(BROKEN[value] in reason for reason in verdict.reasons), verdict.reasons
    assert verdict.forward_only


SOUND: list[Any] = [
    {"returned": "as it is"},
    {"low_precision_forward": True},
    {"loader_workers": 2},
    pytest.param({"channels_last": True}, marks=pytest.mark.slow),
    pytest.param({"cpu_threads": 2}, marks=pytest.mark.slow),
    pytest.param({"compile": "default"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("settings", SOUND, ids=str)
def test_sound_changes_of_inference_are_accepted_and_compared(
    inference: Trials, settings: dict[str, Any]
) -> None:
    verdict = inference.judge_training(**settings)
    assert verdict.accepted, verdict.reasons
    assert "outputs" in verdict.compared
    assert verdict.output_deviation is not None
    rounds = "low_precision_forward" in settings
    assert (1e-4 < verdict.output_deviation < 0.03) if rounds else verdict.output_deviation < 1e-4
    assert verdict.output_agreement is not None
    assert verdict.output_agreement > 0.97


def test_outputs_that_repeats_do_not_share_are_not_compared(tmp_path: Path) -> None:
    trials = Trials(tmp_path, RANDOM)
    numerics = trials.judge_training(returned="as it is")
    assert not numerics.accepted
    assert "outputs not compared: they are random" in numerics.reasons[0]
    pipeline = trials.judge_training(loader_workers=2)
    assert pipeline.accepted, pipeline.reasons
    assert "outputs" not in pipeline.compared
    assert "random" in (pipeline.outputs_not_compared or "")


TRAINING = (
    MODEL
    + """
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
held_out = DataLoader(TensorDataset(torch.randn(40, 3, 6, 6)), batch_size=16)
for epoch in range(4):
    model.train()
    for x, in DataLoader(data, batch_size=8, shuffle=True):
        loss = (model(x)["scores"] - x.mean((1, 2, 3))[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, in held_out:
            model(x)
"""
)


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(tmp_path_factory.mktemp("training"), TRAINING)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        pytest.param("evaluation", "output", marks=pytest.mark.slow),
        ("evaluation dropout", "draws random numbers in calls without"),
    ],
)
def test_what_is_wrong_in_evaluation_alone_is_rejected(
    training: Trials, value: str, said: str
) -> None:
    verdict = training.judge_training(returned=value)
    assert not verdict.accepted
    assert any(said in reason for reason in verdict.reasons), verdict.reasons


@pytest.mark.parametrize(
    "settings",
    [
        {"low_precision_forward": True},
        pytest.param({"loader_workers": 2}, marks=pytest.mark.slow),
        pytest.param({"fused_optimizer": "fused"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_sound_changes_of_training_keep_their_evaluations(
    training: Trials, settings: dict[str, Any]
) -> None:
    verdict = training.judge_training(**settings)
    assert verdict.accepted, verdict.reasons
    assert {"losses", "gradients", "outputs"} <= set(verdict.compared)
