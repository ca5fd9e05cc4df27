"""The audit of a trial looks at training without changing it, whatever the data look like."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from gpurun.knobs.api import Effect
from gpurun.measure.run_events import read_run
from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from gpurun.runtime.trial.bf16_rounding import _round_root
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.same.sameness_table import Kind
from gpurun.same.verdict import judge
from tests.forked import run_recorded
from tests.run_events import events

REPOSITORY = Path(__file__).resolve().parents[2]

TRAINING = """
import random, numpy, torch
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        noise = torch.randn(6) + random.random() + numpy.random.rand()
        return noise.float() + i, float(i % 3)
torch.manual_seed(1); random.seed(1); numpy.random.seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
losses = []
for _ in range(2):
    for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True):
        loss = (model(x).squeeze(1) - y).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        losses.append(loss.item().hex())
weights = [p.sum().item().hex() for p in model.parameters()]
print(losses, weights, torch.rand(1).item(), random.random(), numpy.random.rand())
"""

ODD = {
    "embedding with sparse gradients": """
model = torch.nn.EmbeddingBag(50, 4, sparse=True)
optimizer = torch.optim.SparseAdam(list(model.parameters()))
def batches():
    for _ in range(12): yield (torch.randint(50, (4, 3)),)
""",
    "complex parameters": """
class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__(); self.w = torch.nn.Parameter(torch.randn(4, dtype=torch.cfloat))
    def forward(self, x): return (x * self.w).abs()
model = Waves(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    yield from DataLoader(TensorDataset(torch.randn(48, 4, dtype=torch.cfloat)), batch_size=4)
""",
    "dicts, strings and None": """
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [{"x": torch.randn(4), "name": str(i), "extra": None, "boxes": [1, 2]} for i in range(48)]
def collate(samples):
    return {"x": torch.stack([s["x"] for s in samples]), "name": [s["name"] for s in samples],
            "extra": [s["extra"] for s in samples], "n": None,
            "boxes": [s["boxes"] for s in samples]}
def batches():
    for b in DataLoader(data, batch_size=4, collate_fn=collate): yield (b["x"],)
""",
    "an iterable data set": """
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Stream(IterableDataset):
    def __iter__(self): return iter(torch.randn(48, 4))
def batches():
    for x in DataLoader(Stream(), batch_size=4): yield (x,)
""",
    "no automatic batching": """
model = torch.nn.Linear(4, 1); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def batches():
    yield from DataLoader(TensorDataset(torch.randn(12, 5, 4)), batch_size=None)
""",
    "bfloat16 and integer buffers": """
model = torch.nn.Linear(4, 4).bfloat16()
model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
def batches():
    yield from DataLoader(TensorDataset(torch.randn(48, 4).bfloat16()), batch_size=4)
""",
}
LOOP = """
for _ in range(2):
    for args in batches():
        loss = model(*args).float().sum()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def trial(
    tmp_path: Path,
    script: str,
    audit_steps: int,
    *,
    rounded: bool = False,
    draw: int = 0,
    still: bool = False,
) -> tuple[str, Path]:
    """What the script printed as a trial that ends by itself, and the folder of the run."""
    folder = tmp_path / f"audit{audit_steps}{rounded}{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    rule = StopRule(10_000, 60, 10_000, 2, audit_steps)
    how = TrialSpec(
        rule, seed=3, rounded=rounded, rounding_draw=draw, still=still, load_again=not still
    )
    spec = RunSpec(str(folder), os.getpid(), trial=how)
    (folder / "train.py").write_text(script)
    done = run_recorded(["train.py"], folder, spec)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Warning" not in done.stderr, done.stderr.decode()
    return done.stdout.decode(), folder


def test_an_audited_training_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    """But for the draws of samples, which are by index there."""
    script = TRAINING.replace("return noise.float() + i", "return torch.full((6,), 0.1 * i)")
    still = script.replace("noise = torch.randn(6) + random.random() + numpy.random.rand()", "pass")
    plain, _ = trial(tmp_path, still, audit_steps=0)
    audited, run = trial(tmp_path, still, audit_steps=8)
    assert audited == plain
    assert len(events(run, "audit")) == 8


def test_rounded_parameters_differ_by_one_rounding_error_and_train_on(tmp_path: Path) -> None:
    plain, rounded = (
        events(trial(tmp_path, TRAINING, audit_steps=8, rounded=x)[1], "audit")
        for x in (False, True)
    )
    for one, other in zip(plain, rounded, strict=True):
        assert other["loss"] != one["loss"]
        assert other["loss"] == pytest.approx(one["loss"], rel=0.02)
        assert sum(other["gradient_counts"]) == len(other["gradient_values"])
    assert all(rounded[-1]["update_norms"].values()), "they are float32 and move"


ZERO_BRANCH = """
import sys, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.branch = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
        self.end = torch.nn.Linear(8, 8)
        torch.nn.init.zeros_(self.end.weight)
    def forward(self, x):
        x = self.stem(x)
        return x + self.end(self.branch(x))
model = Net().to(DTYPE)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
for step in range(12):
    loss = model(torch.randn(16, 8, dtype=DTYPE)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(("dtype", "rate"), [("float32", 1e-3), ("bfloat16", 0.2)])
def test_the_least_update_that_a_type_can_hold_is_named(
    tmp_path: Path, dtype: str, rate: float
) -> None:
    script = ZERO_BRANCH.replace("DTYPE", f"torch.{dtype}").replace("RATE", str(rate))
    audits = events(trial(tmp_path, script, audit_steps=8)[1], "audit")
    weight = "0.branch.weight"
    near = [a for a in audits if weight in a["updates_near_zero"]]
    assert near, "ones move by a spacing"
    assert all(0 < a["update_norms"][weight] < 0.1 for a in near)
    assert not any("0.branch.bias" in a["updates_near_zero"] for a in audits), "zeros hold it"
    assert not any("0.stem.weight" in a["updates_near_zero"] for a in audits)
    assert weight not in audits[0]["updates_near_zero"], "it did not move"


def test_each_draw_rounds_in_its_own_way_and_comes_out_alike_when_repeated(tmp_path: Path) -> None:
    losses = [
        [a["loss"] for a in events(trial(tmp_path, TRAINING, 8, rounded=True, draw=x)[1], "audit")]
        for x in (0, 1, 2, 2)
    ]
    assert losses[2] == losses[3]
    assert len({tuple(one) for one in losses}) == 3
    for one in losses:
        assert one == pytest.approx(losses[0], rel=0.03)


def test_a_draw_rounds_float32_to_numbers_of_bfloat16_and_nothing_else() -> None:
    root = torch.nn.Linear(40, 40)
    root.register_parameter("wide", torch.nn.Parameter(torch.rand(9, dtype=torch.float64)))
    before = {name: value.detach().clone() for name, value in root.named_parameters()}
    _round_root(1, root)
    weight = root.weight.detach()
    assert torch.equal(weight, weight.bfloat16().float())
    assert not torch.equal(weight, before["weight"].bfloat16().float()), "not to the nearest"
    assert torch.allclose(weight, before["weight"], rtol=2.0**-7)
    assert torch.equal(root.get_parameter("wide"), before["wide"])


def test_what_layers_return_is_rounded_in_training_and_nothing_is_copied() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)
            self.flat, self.loss = torch.nn.Flatten(0), torch.nn.MSELoss()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shown.append(self.first(x))
            shown.append(self.flat(self.norm(shown[0])))
            return self.loss(shown[1], target)

    shown: list[torch.Tensor] = []
    torch.manual_seed(0)
    root, x, target = Net(), torch.randn(16, 8), torch.randn(128)
    given = x.clone()
    root(x).backward()
    plain, exact = [t.detach().clone() for t in shown], root.first.weight.grad
    root.zero_grad()
    shown.clear()
    _round_root(0, root)
    loss = root(x)
    loss.backward()
    for rounded, before in zip(shown, plain, strict=True):
        values = rounded.detach()
        assert torch.equal(values, values.bfloat16().float())
        assert torch.allclose(values, before, atol=0.05)
    assert not torch.equal(loss.detach(), loss.detach().bfloat16().float()), "a loss is float32"
    assert torch.equal(x, given)
    assert exact is not None
    assert root.first.weight.grad is not None
    off = (root.first.weight.grad - exact).norm() / exact.norm()
    assert 1e-4 < off < 0.05


def test_a_model_that_is_rounded_can_be_saved_and_copied(tmp_path: Path) -> None:
    root = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True))
    _round_root(0, root)
    torch.save(root, tmp_path / "model.pt")
    for again in (torch.load(tmp_path / "model.pt", weights_only=False), copy.deepcopy(root)):
        out = again(torch.randn(3, 4))
        assert torch.equal(out, out.bfloat16().float())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_draws_the_same_numbers_whoever_loads_it(tmp_path: Path, workers: int) -> None:
    def samples(count: int) -> list[dict[str, Any]]:
        script = TRAINING.replace("shuffle=True", f"shuffle=True, num_workers={count}")
        return events(trial(tmp_path, script, audit_steps=8)[1], "samples")

    alone, loaded = samples(0)[0], samples(workers)[0]
    assert alone["drawn"]
    assert loaded["drawn"]
    assert len(alone["checksums"]) == 64
    assert alone["checksums"] == loaded["checksums"]
    assert alone["order"] == loaded["order"]


def test_samples_of_audited_batches_are_loaded_again(tmp_path: Path) -> None:
    _, run = trial(tmp_path, TRAINING, audit_steps=8)
    (first, _) = events(run, "samples")
    assert [len(one) - 1 for one in first["again"][:2]] == [64, 64]
    assert len(first["again"]) == 3


STREAM = """
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
class Stream(IterableDataset):
    def __init__(self):
        self.own = torch.Generator().manual_seed(1)
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (SAMPLE + number for number in range(first, 64, step))
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = DataLoader(Stream(), batch_size=4, num_workers=WORKERS)
for _ in range(2):
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize(
    ("sample", "workers", "same"),
    [
        ("torch.randn(6)", 1, True),
        ("torch.randn(6)", 2, False),
        ("torch.randn(6, generator=self.own)", 1, False),
    ],
    ids=["one worker", "a part each", "own generator"],
)
def test_one_worker_keeps_a_stream_that_keeps_no_state(
    tmp_path: Path, sample: str, workers: int, same: bool
) -> None:
    def launched(count: int) -> LaunchAudit:
        script = STREAM.replace("SAMPLE", sample).replace("WORKERS", str(count))
        found = audit_of(read_run(trial(tmp_path, script, audit_steps=8)[1]).processes[0], seed=0)
        assert found is not None
        return found

    plain = launched(0)
    found = judge([plain, plain], [launched(workers)], Effect.PIPELINE)
    assert (Kind.SAMPLES not in found.failing) is same, found.reasons
    assert len(plain.again[0]) == 3


def test_a_trial_without_dropout_draws_nothing_in_its_model(tmp_path: Path) -> None:
    audits = [
        events(trial(tmp_path, TRAINING, audit_steps=8, still=still)[1], "audit")
        for still in (False, True)
    ]
    assert [{audit["draws"] for audit in each} for each in audits] == [{True}, {False}]


def test_samples_that_draw_nothing_are_told_from_others(tmp_path: Path) -> None:
    script = TRAINING.replace("noise.float() + i", "torch.full((6,), 0.1 * i)")
    quiet = script.replace("noise = torch.randn(6) + random.random() + numpy.random.rand()", "pass")
    assert not events(trial(tmp_path, quiet, audit_steps=8)[1], "samples")[0]["drawn"]


@pytest.mark.parametrize("kind", ODD)
def test_unusual_data_and_parameters_are_audited(tmp_path: Path, kind: str) -> None:
    head = "import torch\nfrom torch.utils.data import *\ntorch.manual_seed(0)\n"
    _, run = trial(tmp_path, head + ODD[kind] + LOOP, audit_steps=8)
    assert events(run, "hook") == []
    audits = events(run, "audit")
    assert len(audits) == 8
    assert all(a["update_norms"] and all(a["update_norms"].values()) for a in audits)
    assert all(a["gradient_norms"] and all(a["gradient_norms"].values()) for a in audits)
