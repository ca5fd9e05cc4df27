"""How often does `--optimize` claim a speedup where there is none?

Tunes a small, already well-tuned script again and again, with placebo knobs (turned, they do
nothing) beside the real pipeline knobs, so that every run screens changes without effect, takes the
luckiest to the proof, and may claim. Prints the share of runs that did, with its 95 % interval.

    python scripts/false_claims.py --runs 40 [--launch-noise 0.03]

On a quiet machine hardly a launch is lucky enough to reach the proof, so each launch is made slower
or faster by a factor of its own, with this standard deviation, beside what the machine adds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

SCRIPT = """
import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(4096, 64)
y = (x[:, :8].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
layers = [nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step_seconds = 0.004 * max(0.5, random.SystemRandom().gauss(1.0, float(sys.argv[1])))
for epoch in range(100):
    for inputs, targets in loader:
        ends = time.perf_counter() + step_seconds
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        while time.perf_counter() < ends:
            pass
        optimizer.step()
"""

PLACEBO = '''
"""A knob that does nothing."""
from gpurun.knobs.api import Effect, Knob


class Placebo{number}(Knob):
    """Nothing, number {number}."""

    name = "placebo_{number}"
    effect = Effect.PIPELINE
    order = {number}

    def candidates(self, facts):
        return [1, 2]

    def apply(self, value, hooks):
        hooks.applied("nothing")
'''


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--launch-noise", type=float, default=0.03)
    options = parser.parse_args()
    verdicts: Counter[str] = Counter()
    pairs = []
    began = time.monotonic()
    for run in range(options.runs):
        report = tune_once(options.budget, options.launch_noise)
        verdicts[report["verdict"]] += 1
        proof = report["proof"]
        pairs.append(len(proof["pairs"]) if proof else 0)
        print(
            f"run {run + 1}: {report['verdict']}, {pairs[-1]} pairs, {proof_text(proof)}",
            flush=True,
        )
    claims = verdicts["faster"]
    low, high = wilson(claims, options.runs)
    print(f"verdicts: {dict(verdicts)}; proofs started: {sum(p > 0 for p in pairs)}")
    print(f"false claims: {claims} of {options.runs} ({low:.1%} to {high:.1%}, bar 5 %)")
    print(f"{(time.monotonic() - began) / options.runs:.0f} s a run")


def tune_once(budget: str, noise: float) -> dict[str, object]:
    """One tuning in a folder of its own; its report."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        for number in (1, 2):
            (folder / f"placebo_{number}.py").write_text(PLACEBO.format(number=number))
        (folder / "gpurun.toml").write_text('knobs = ["placebo_1.py", "placebo_2.py"]\n')
        command = [
            sys.executable, "-m", "gpurun", "--optimize", "--tune-only", "--quiet",
            "--allow", "pipeline", "--max-trials", "7", "--budget", budget,
            "--json", "report.json", "train.py", str(noise),
        ]  # fmt: skip
        subprocess.run(command, cwd=folder, check=False)
        return json.loads((folder / "report.json").read_text())


def proof_text(proof: dict[str, object] | None) -> str:
    """The estimate of a proof, in short."""
    if proof is None:
        return "no proof"
    if proof["speedup_confidence_interval"] is None:
        return f"×{proof['speedup']:.3f}, not settled"
    low, high = proof["speedup_confidence_interval"]
    return f"×{proof['speedup']:.3f} ({low:.3f}–{high:.3f})"


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a proportion."""
    share = count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * ((share * (1 - share) + z * z / (4 * total)) / total) ** 0.5 / (1 + z * z / total)
    return max(0.0, middle - half), min(1.0, middle + half)


if __name__ == "__main__":
    main()
