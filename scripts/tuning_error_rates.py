"""How often does `--optimize` prove a speedup that is there, and claim one that is not?

    python scripts/tuning_error_rates.py --gain 1.15 [--runs 20] [--budget 2m] [--disturbed]
    python scripts/tuning_error_rates.py --gain 1 [--launch-noise 0.03]

Tunes a small script again and again. A step burns 8 ms of one core, and so much more as `--gain`
says unless a knob of the script's own takes that away: what it brings is known on any machine. Two
placebo knobs (turned, they do nothing) and the real pipeline knobs stand beside it, so that each
tuning also screens changes without effect. With a gain of 1 there is nothing to find: the tuning
takes the luckiest to the proof, and may claim. Prints the share of tunings that claim a speedup,
with its 95 % interval.

On a quiet machine hardly a launch is lucky enough to reach the proof, so each launch is made slower
or faster by a factor of its own, with the standard deviation `--launch-noise`. `--disturbed`:
beside a process that burns a core in bursts of 1 to 20 s, half of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.disturbance import burning
from scripts.simulate_pairs import wilson

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_SECONDS = 0.008
FASTER = "TUNING_ERROR_RATES_FASTER"

SCRIPT = f"""
import os
import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
gain, noise = map(float, sys.argv[1:])
step_seconds = {STEP_SECONDS} * max(0.5, random.SystemRandom().gauss(1.0, noise))
if "{FASTER}" not in os.environ:
    step_seconds *= gain
x = torch.randn(4096, 64)
y = (x[:, :8].sum(1) > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(1000):
    ends = time.thread_time()
    for inputs, targets in loader:
        ends += step_seconds
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


GAIN = f'''
"""A knob that takes away what makes the script slow."""
from gpurun.knobs.api import Effect, Knob


class Faster(Knob):
    """A step burns less."""

    name = "faster"
    effect = Effect.PIPELINE
    order = 3

    def candidates(self, facts):
        return [True]

    def environment(self, value):
        return {{"{FASTER}": "1"}}

    def apply(self, value, hooks):
        hooks.applied("a step burns less")
'''


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gain", type=float, default=1.0, help="what the knob brings")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--launch-noise", type=float, default=0.0)
    parser.add_argument("--disturbed", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the first disturbance")
    parser.add_argument("--keep", type=Path, help="a folder for reports and outputs")
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        knobs = {f"placebo_{n}.py": PLACEBO.format(number=n) for n in (1, 2)}
        if options.gain > 1:
            knobs["faster.py"] = GAIN
        for file, text in knobs.items():
            (folder / file).write_text(text)
        (folder / "gpurun.toml").write_text(f"knobs = {json.dumps(list(knobs))}\n")
        command = [
            sys.executable, "-m", "gpurun", "--optimize", "--tune-only",
            "--allow", "pipeline", "--budget", options.budget, "--json", "report.json",
            "train.py", str(options.gain), str(options.launch_noise),
        ]  # fmt: skip
        with (folder / "output.log").open("w") as output:
            environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
            subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output)
        if not (folder / "report.json").exists():
            raise SystemExit(f"no tuning was made:\n{(folder / 'output.log').read_text()}")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            for file in ("report.json", "output.log"):
                shutil.copy(folder / file, options.keep / f"{time.time_ns()}-{file}")
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
