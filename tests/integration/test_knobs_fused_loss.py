"""The loss of half-precision logits, compiled: the training is the one that autocast alone does.

The script has a processor that emulates bfloat16 pass for one that computes in it, and small logits
for large ones. It trains each model twice: as the knob has it, and with the knob out of the way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs.applied.padded_logits import LINE
from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under

SCRIPT = """
import collections, json, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpurun.knobs.applied import root_outputs
from gpurun.knobs import device_requirements
from gpurun.knobs.applied import fused_cross_entropy
from gpurun.knobs.applied import padded_logits

device_requirements.native_on_cpu = lambda: True
fused_cross_entropy.LEAST_ELEMENTS = 2000
padded_logits.MOST_COLUMNS = 1.0
torch.set_num_threads(1)
VOCABULARY = 97
WEIGHT = torch.linspace(0.5, 2, VOCABULARY)

class Output(collections.OrderedDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 16)
        self.head = torch.nn.Linear(16, VOCABULARY)
        self.kind = kind
    def forward(self, x):
        logits = self.head(torch.tanh(self.tokens(x)))
        if self.kind == "gaps":
            return torch.nn.functional.pad(logits, (0, 7))[..., :VOCABULARY]
        if self.kind == "tuple":
            return logits, logits.flip(1) * 2, x
        return Output(logits=logits, shape=tuple(x.shape)) if self.kind == "dict" else logits

class Critic(torch.nn.Module):
    given = torch.Tensor
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(VOCABULARY, VOCABULARY)
    def forward(self, x):
        if not torch.compiler.is_compiling():
            self.given = type(x)
        return self.last(x.sin())

def flat(logits, y):
    return F.cross_entropy(logits.view(-1, logits.size(-1)), y.view(-1))

def penalised(logits, y):
    loss = flat(logits, y)
    twice = True  # a source that asks for it by the literal is not compiled
    return loss + torch.autograd.grad(loss, logits, create_graph=twice)[0].pow(2).sum()

def twice(loss):
    loss.backward(retain_graph=True)
    loss.backward()

WAYS = [
    flat,
    lambda x, y: torch.nn.CrossEntropyLoss(WEIGHT, ignore_index=-1, reduction="sum",
                                           label_smoothing=0.1)(x.transpose(1, 2), y) / 128,
    lambda x, y: flat(x[:, :-1].contiguous().float(), y[:, 1:].contiguous()),
    lambda x, y: -x.float().log_softmax(-1).gather(-1, y[..., None]).mean(),
    penalised,
]

def train(kind):
    torch.manual_seed(0)
    model = Net(kind)
    if kind == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(model)
    critic = Critic() if kind == "fed back" else None
    parameters = [*model.parameters(), *(critic.parameters() if critic else ())]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    figures, seen, kept, lengths = [], [], [], set()

    def step(x, loss_of, backward=lambda loss: loss.backward()):
        y = (x + 1) % VOCABULARY
        y = y.where(y > 9, -1) if loss_of is WAYS[1] else y
        out = model(x)
        logits = out[0] if kind == "tuple" else out.logits if kind == "dict" else out
        loss = loss_of(logits, y)
        if kind == "tuple":
            loss = loss + flat(out[1], y)
        if critic is not None:
            loss = loss + flat(critic(logits), y)
            assert critic.given is torch.Tensor, critic.given
        seen.append([type(loss) is torch.Tensor, str(loss.dtype), str(logits.dtype)])
        optimizer.zero_grad()
        backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        hits = (logits.argmax(-1) == y).float().mean()
        figures.extend([loss.item(), norm.item(), hits.item()])
        kept.append(logits)
        if type(logits).__name__ == "Uncast":
            lengths.add(logits._numbers.data.stride(-2))

    draw = lambda *shape: torch.randint(0, VOCABULARY, shape)
    if kind == "every way":
        for _ in range(3):
            for way in WAYS:
                step(draw(8, 16), way)
            step(draw(8, 16), flat, twice)
            for rows in (8, 7, 5, 6, 3, 4, 2, 1):  # and the last is too small
                step(draw(rows, 16), flat)
            model.eval()
            with torch.no_grad():
                logits = model(x := draw(8, 16))
                seen.append([type(logits) is torch.Tensor, str(logits.dtype)])
                figures.append(flat(logits, x).item())
            model.train()
        for part in draw(3, 8, 16):  # accumulated
            flat(model(part), part).backward()
        optimizer.step()
    else:
        for _ in range(5):
            step(draw(8, 16), flat)
    figures.append(sum(p.detach().abs().sum().item() for p in model.parameters()))
    assert all(bool(x.isfinite().all()) for x in kept)
    if kind == "ddp":
        dist.destroy_process_group()
    kinds = [type(x).__name__ for x in kept]
    return {"figures": figures, "seen": seen, "kept": kinds, "rows": sorted(lengths)}

found = {}
for kind in sys.argv[1].split(","):
    found[kind] = {"fused": train(kind)}
    stand_ins, root_outputs.STAND_INS[:] = root_outputs.STAND_INS[:], []
    found[kind]["plain"] = train(kind)
    root_outputs.STAND_INS[:] = stand_ins
dynamo = sys.modules.get("torch._dynamo.utils")
graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo else 0
print(json.dumps({"found": found, "graphs": graphs}))
"""

FUSED = {"autocast": "bf16", "fused_loss": "cross_entropy"}
APPLIED = [("applied", "cross entropy of bfloat16 logits")]

Train = Callable[..., KnobRun]


@pytest.fixture
def train(tmp_path: Path, gpurun: Gpurun) -> Train:
    """Train models of these kinds under settings, compiling into a folder of the test's own."""

    def run(settings: dict[str, Any], kinds: str, **env: str) -> KnobRun:
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), **env}
        return run_under(gpurun, tmp_path, SCRIPT, settings, arguments=(kinds,), env=env)

    return run


def told(run: KnobRun, knob: str = "fused_loss") -> list[tuple[str, str]]:
    return [(outcome, detail) for name, outcome, detail in run.knobs if name == knob]


def same_training(run: KnobRun) -> None:
    """The same losses, gradient norms, accuracies and final weights, of plain tensors."""
    for kind, found in run.printed["found"].items():
        fused, plain = found["fused"], found["plain"]
        assert fused["figures"] == pytest.approx(plain["figures"], rel=0.02, abs=0.01), kind
        assert fused["seen"] == plain["seen"], kind
        assert set(plain["kept"]) == {"Tensor"}, kind


@pytest.mark.slow
def test_the_training_is_that_of_autocast_alone(train: Train) -> None:
    run = train(FUSED, "every way,tuple,dict,ddp,fed back,gaps")
    assert told(run) == APPLIED
    same_training(run)
    found = run.printed["found"]
    assert found["every way"]["fused"]["kept"].count("Tensor") == 3, "one batch is too small"
    for kind in ("tuple", "dict", "ddp", "fed back", "gaps"):
        assert set(found[kind]["fused"]["kept"]) == {"Uncast"}
    graphs = run.printed["graphs"]
    assert graphs == 2 * 3, "loss and gradient of two kinds and of rows with gaps, for any batch"


def test_what_cannot_be_compiled_is_computed_as_before(train: Train, tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\nexit 1\n')
    compiler.chmod(0o755)
    run = train(FUSED, "flat", CXX=str(compiler))
    ((outcome, reason),) = told(run)
    assert outcome == "skipped"
    assert "could not be compiled" in reason
    found = run.printed["found"]["flat"]
    assert found["fused"]["kept"][1:] == ["Tensor"] * 4
    assert found["fused"]["figures"] == found["plain"]["figures"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "kinds"),
    [("float16", "flat,fed back"), ("bfloat16", "flat,tuple,ddp")],
)
def test_beside_a_compiled_model_and_a_loss_scale(train: Train, precision: str, kinds: str) -> None:
    """Its last layer computes whole cache lines then."""
    autocast = {"float16": "fp16", "bfloat16": "bf16"}[precision]
    run = train({**FUSED, "autocast": autocast, "compile": "default"}, kinds)
    assert told(run) == [("applied", f"cross entropy of {precision} logits")]
    rows = run.printed["found"]["flat"]["fused"]["rows"]
    assert rows == [97, 2 * LINE], "from the second step on"
    assert {outcome for outcome, _ in told(run, "compile")} == {"applied"}
    same_training(run)
