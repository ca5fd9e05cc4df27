"""What root modules return without gradients is compared: inference, and evaluation in training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs import find
from gpurun.knobs.api import Effect
from gpurun.measure.events import read_run
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.evidence import Evidence, evidence
from gpurun.tuner.guard import judge, may_be_rounding
from tests.conftest import REPOSITORY
from tests.forked import run_recorded

SOUND_KNOBS = str(REPOSITORY / "tests" / "data" / "knobs_sound")
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

KNOB = '''
from __future__ import annotations
from contextlib import nullcontext
from typing import Any, ClassVar
from gpurun.knobs.api import Effect, KnobBase

class Returned(KnobBase):
    """Changes what the model returns."""
    name: ClassVar[str] = "returned"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Any) -> Any:
        return ["zeros"]

    def apply(self, value: Any, hooks: Any) -> None:
        import torch
        from gpurun.knobs.outputs import map_tensors
        hooks.on_root(lambda module: hooks.applied())
        state: dict[str, Any] = {"calls": 0}
        def each(change: Any) -> Any:
            return lambda result: map_tensors(
                result, lambda t: change(t) if t.is_floating_point() else t)
        def stale(result: Any) -> Any:
            before, state["before"] = state.get("before", result), result
            fits = before["scores"].shape == result["scores"].shape
            return before if fits else result
        def reused(t: Any) -> Any:
            return state.setdefault(t.shape, torch.empty_like(t)).copy_(t)
        def late(t: Any) -> Any:
            state["calls"] += 1
            return t * 0 if state["calls"] > 60 else t
        def partial(t: Any) -> Any:
            return t * 0 if len(t) < 8 else t
        changes = {
            "zeros": each(lambda t: t * 0), "stale": stale, "reused": each(reused),
            "permuted": each(lambda t: t.flip(0)), "half": each(lambda t: t.bfloat16()),
            "scaled": each(lambda t: t * 1.05), "late": each(late), "partial": each(partial),
            "nan": each(lambda t: t.masked_fill(t == t.max(), float("nan"))),
            "classes": lambda r: map_tensors(
                r, lambda t: t if t.is_floating_point() else t.flip(0)),
            "as it is": lambda r: r,
            "one more": lambda r: {**r, "more": 1},
        }
        if value == "skipped":
            hooks.on_root(lambda module: setattr(module.blocks, "forward", lambda x: x))
        elif value == "evaluation":
            hooks.around_root_call(
                nullcontext, lambda r: r if torch.is_grad_enabled() else each(lambda t: t * 0)(r))
        elif value == "evaluation dropout":
            hooks.on_root(lambda module: module.dropout.register_forward_pre_hook(
                lambda m, a: (torch.nn.functional.dropout(*a, 0.2, True),)))
        else:
            hooks.around_root_call(nullcontext, changes[value])
'''


class Trials:
    """Launches trials of one script and judges candidates against the baseline's two."""

    def __init__(self, folder: Path, script: str, stop: StopRule = STOP) -> None:
        self.folder, self.stop = folder, stop
        (folder / "script.py").write_text(script)
        (folder / "returned.py").write_text(KNOB)
        self.paths = (str(folder / "returned.py"), SOUND_KNOBS)
        self.baselines = [self.launch(), self.launch()]

    def launch(self, rounded: bool = False, **settings: Any) -> Evidence:
        run = self.folder / f"run{len(list(self.folder.glob('run*')))}"
        run.mkdir()
        spec = RunSpec(
            str(run), os.getpid(), knob_paths=self.paths,
            settings=tuple(Setting(k, v) for k, v in settings.items()),
            trial=TrialSpec(self.stop, seed=3, rounded=rounded),
        )  # fmt: skip
        done = run_recorded([str(self.folder / "script.py")], run, spec)
        assert done.returncode == 0, done.stderr.decode()
        log = read_run(run).processes[0]
        assert not log.hooks, log.hooks
        assert {k.knob for k in log.knobs if k.outcome == "applied"} >= settings.keys(), log.knobs
        shown = evidence(log, 0, rounded)
        assert shown is not None
        return shown

    def judge(self, **settings: Any) -> GuardVerdict:
        """As a tuning does: a trial that only rounds is asked where that may be all."""
        effects = [find(knob, self.paths).effect for knob in settings]
        effect = Effect.NUMERICS if Effect.NUMERICS in effects else Effect.PIPELINE
        shown = self.launch(**settings)
        verdict = judge(self.baselines, [shown], effect)
        if may_be_rounding(verdict, effect):
            if not any(b.rounded for b in self.baselines):
                self.baselines.append(self.launch(rounded=True))
            verdict = judge(self.baselines, [shown], effect)
        return verdict


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


@pytest.mark.parametrize("value", BROKEN)
def test_falsified_outputs_are_rejected_with_what_is_wrong(inference: Trials, value: str) -> None:
    verdict = inference.judge(returned=value)
    assert not verdict.accepted
    assert any(BROKEN[value] in reason for reason in verdict.reasons), verdict.reasons
    assert verdict.forward_only


SOUND: list[dict[str, Any]] = [
    {"returned": "as it is"},
    {"low_precision_forward": True},
    {"channels_last": True},
    {"loader_workers": 2},
    {"cpu_threads": 2},
    {"compile": "default"},
]


@pytest.mark.parametrize("settings", SOUND, ids=str)
def test_sound_changes_of_inference_are_accepted_and_compared(
    inference: Trials, settings: dict[str, Any]
) -> None:
    verdict = inference.judge(**settings)
    assert verdict.accepted, verdict.reasons
    assert "outputs" in verdict.compared
    assert verdict.output_deviation is not None
    rounds = "low_precision_forward" in settings
    assert (1e-4 < verdict.output_deviation < 0.03) if rounds else verdict.output_deviation < 1e-4
    assert verdict.output_agreement is not None
    assert verdict.output_agreement > 0.97
