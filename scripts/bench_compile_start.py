"""The start of a compiled training: the whole model, and its repeated blocks alone.

    python scripts/bench_compile_start.py [--models vit gpt llama] [--layers 12]

For each model the values "default" and "regional" of `compile` start at the same time, with empty
caches of kernels, and again with what these launches left ("warm"). Beside them, in its own time,
runs the model as it is. Printed: seconds from the launch to the end of the first steady step, CPU
seconds of the whole launch with its compilers, the step, and the step at which the compiled
training has overtaken the one that is not. Bar: "regional" in at most 40 % of the time. On a GPU
the models have the size of ViT-S, GPT-2 and a small Llama, in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
VALUES = ("default", "regional")
TRAIN = """
import json, statistics, sys, time
import torch
from torch import nn
from torch.nn import functional as F

kind, layers, started = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
width, heads, batch = {"vit": (384, 6, 64), "gpt": (768, 12, 8), "llama": (768, 12, 8)}[kind]
length, vocabulary = (196 if kind == "vit" else 1024), (1000 if kind == "vit" else 32000)
if not gpu:
    torch.set_num_threads(1)
    width, heads, batch, length, vocabulary = 64, 4, 4, 32, 256

class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight

class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer_idx = number

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        if kind == "llama":
            q, k = rotated(q), rotated(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=kind != "vit")
        return self.out(y.transpose(1, 2).flatten(2))

def rotated(x):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2], device=x.device)[:, None] * 10000 ** (
        -torch.arange(half, device=x.device) / half)
    a, b = x[..., :half], x[..., half:]
    turned = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.cat(turned, -1).to(x)

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        norm = Norm if kind == "llama" else lambda: nn.LayerNorm(width)
        self.before, self.after, self.attention = norm(), norm(), Attention(number)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gate = nn.Linear(width, 4 * width) if kind == "llama" else None

    def forward(self, x):
        x = x + self.attention(self.before(x))
        y = self.after(x)
        y = F.gelu(self.up(y)) if self.gate is None else F.silu(self.gate(y)) * self.up(y)
        return x + self.down(y)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(768, width) if kind == "vit" else nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList([Block(number) for number in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x):
        x = self.stem(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters())
shape = (batch, length)
x = torch.randn(*shape, 768) if kind == "vit" else torch.randint(vocabulary, shape)
x, y, ends = x.to(device), torch.randint(vocabulary, shape, device=device), []
for step in range(40):
    with torch.autocast(device, torch.bfloat16, enabled=gpu):
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    ends.append(time.time())
steps = [after - before for before, after in zip(ends, ends[1:])]
usual = statistics.median(steps[-20:])
steady = next(n for n, seconds in enumerate(steps) if seconds < 1.5 * usual)
print(json.dumps({"start": ends[steady + 1] - started, "step": usual}))
"""


@dataclass(frozen=True)
class Started:
    """`start`: seconds to the first steady step; `cpu`: CPU seconds of the launch; `step`: seconds
    of a step."""

    start: float
    cpu: float
    step: float


def launches(values: Sequence[str], model: str, layers: int, caches: Path) -> dict[str, Started]:
    """Start a training under each value of `compile` ("": none) at the same time."""
    running = {}
    for value in values:
        folder = Path(tempfile.mkdtemp(prefix="start-"))
        (folder / "train.py").write_text(TRAIN)
        settings = {"compile": value} if value else {}
        document = {
            "settings": settings, "training_loaders": [], "speedup": None, "fingerprint": {},
            "command": [], "schema": "gpurun/settings@1",
        }  # fmt: skip
        (folder / "settings.json").write_text(json.dumps(document))
        flags = ("--settings", "settings.json", "--quiet") if value else ("--quiet",)
        script = ("train.py", model, str(layers), str(time.time()))
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / (value or "none")),
        }
        running[value] = _launch(
            (sys.executable, "-m", "gpurun", *flags, *script), folder, environment
        )
    return {value: _ended(child) for value, child in running.items()}


def _launch(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    with open(folder / "errors", "w") as errors:
        return subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=errors
        )


def _ended(child: subprocess.Popen[str]) -> Started:
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the training ended with code {child.returncode}")
    said = json.loads(printed.splitlines()[-1])
    return Started(said["start"], usage.ru_utime + usage.ru_stime, said["step"])


def overtakes(compiled: Started, plain: Started) -> str:
    """The step at which the compiled training has done as many steps as the other."""
    saved = plain.step - compiled.step
    return "never" if saved <= 0 else str(math.ceil((compiled.start - plain.start) / saved))


def report(model: str, layers: int) -> None:
    """Measure one model and print its table."""
    with tempfile.TemporaryDirectory() as caches:
        plain = launches([""], model, layers, Path(caches))[""]
        print(f"{model} as it is: start {plain.start:.1f} s, step {plain.step * 1e3:.1f} ms")
        for state in ("cold", "warm"):
            found = launches(VALUES, model, layers, Path(caches))
            whole, regional = (found[value] for value in VALUES)
            for value, it in found.items():
                print(
                    f"{model} {state} {value}: start {it.start:.1f} s, CPU {it.cpu:.1f} s, "
                    f"step {it.step * 1e3:.1f} ms, repaid at step {overtakes(it, plain)}"
                )
            part, cpu = regional.start / whole.start, regional.cpu / whole.cpu
            speed = whole.step / regional.step
            print(f"{model} {state}: {part:.0%} of the start, {cpu:.0%} of the CPU, ×{speed:.2f}")
            sys.stdout.flush()


def main() -> None:
    """Measure each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["vit", "gpt", "llama"])
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    for model in options.models:
        report(model, options.layers)


if __name__ == "__main__":
    main()
