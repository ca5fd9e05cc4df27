"""How often does `--optimize` prove a speedup that is there, and claim one that is not?

    python scripts/tuning_error_rates.py --gain 1.15 [--runs 20] [--budget 2m] [--disturbed]
    python scripts/tuning_error_rates.py --gain 1 [--launch-noise 0.03]

Tunes a small script again and again. A step burns 8 ms of one core. With `--gain`, the script waits
so long for each batch that a loader worker makes it that much faster. With a gain of 1 nothing
helps: there are placebo knobs (turned, they do nothing) beside the real ones, so that each tuning
screens changes without effect, takes the luckiest to the proof, and may claim. Prints the share of
tunings that claim a speedup, with its 95 % interval.

On a quiet machine hardly a launch is lucky enough to reach the proof, so each launch is made slower
or faster by a factor of its own, with the standard deviation `--launch-noise`. `--disturbed`:
beside a process that burns a core in bursts of 1 to 20 s, half of the time.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.disturbance import burning
from scripts.simulate_gate import wilson

STEP_SECONDS = 0.008
WORKER_SECONDS = 0.0003
"""About what a step costs that takes its batch from a worker: measured where it was written."""

SCRIPT = """
import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)
step_seconds, wait_seconds, noise = map(float, sys.argv[1:])


class Stored(Dataset):
    x = torch.randn(4096, 64)
    y = (x[:, :8].sum(1) > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitems__(self, rows):
        if wait_seconds:
            time.sleep(wait_seconds)
        return [(self.x[row], self.y[row]) for row in rows]


loader = DataLoader(Stored(), batch_size=64, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step_seconds *= max(0.5, random.SystemRandom().gauss(1.0, noise))
for epoch in range(1000):
    for inputs, targets in loader:
        ends = time.thread_time() + step_seconds
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        while time.thread_time() < ends:
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gain", type=float, default=1.0, help="what a loader worker brings")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--launch-noise", type=float, default=0.0)
    parser.add_argument("--disturbed", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the first disturbance")
    options = parser.parse_args()
    verdicts: Counter[str] = Counter()
    began = time.monotonic()
    for run in range(options.runs):
        with burning(options.disturbed, seed=options.seed + run):
            report = tune_once(options)
        verdicts[report["verdict"]] += 1
        print(f"run {run + 1}: {told(report)}", flush=True)
    claims = verdicts["faster"]
    low, high = wilson(claims, options.runs)
    print(f"verdicts: {dict(verdicts)}")
    print(f"claims: {claims} of {options.runs} ({low:.1%} to {high:.1%})")
    print(f"{(time.monotonic() - began) / options.runs:.0f} s a run")


def tune_once(options: argparse.Namespace) -> dict[str, Any]:
    """One tuning in a folder of its own; its report."""
    wait = max(0.0, (options.gain - 1) * (STEP_SECONDS + WORKER_SECONDS) + WORKER_SECONDS)
    wait = wait if options.gain > 1 else 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        knobs = [f"placebo_{number}.py" for number in (1, 2)] if options.gain == 1 else []
        for number, file in enumerate(knobs, 1):
            (folder / file).write_text(PLACEBO.format(number=number))
        (folder / "gpurun.toml").write_text(f"knobs = {json.dumps(knobs)}\n")
        command = [
            sys.executable, "-m", "gpurun", "--optimize", "--tune-only", "--quiet",
            "--allow", "pipeline", "--budget", options.budget, "--json", "report.json",
            "train.py", str(STEP_SECONDS), str(wait), str(options.launch_noise),
        ]  # fmt: skip
        subprocess.run(command, cwd=folder, check=False)
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        return report


def told(report: dict[str, Any]) -> str:
    """The verdict, the estimate of a proof, and the seconds, in short."""
    proof = report["proof"]
    seconds = f"{report['tuning_seconds']:.0f} s"
    if proof is None:
        return f"{report['verdict']}, no proof, {seconds}"
    pairs = f"{len(proof['pairs'])} pairs"
    if proof["speedup_confidence_interval"] is None:
        return f"{report['verdict']}, {pairs}, ×{proof['speedup']:.3f}, not settled, {seconds}"
    low, high = proof["speedup_confidence_interval"]
    found = f"×{proof['speedup']:.3f} ({low:.3f}–{high:.3f})"
    return f"{report['verdict']}, {pairs}, {found}, {seconds}"


if __name__ == "__main__":
    main()
