"""Live pairs of the GPU workloads: equal sides, and tuned settings beside whole runs.

    python scripts/live_bias_workloads.py SETTINGS.toml ... [--pairs 4] [--runs 2] [--seconds 20]

`SETTINGS.toml` has the name of a workload (`scripts/workloads/gpt124m.py`: `gpt124m.toml`), and
what `gpurun --optimize --save-settings` wrote. Printed are the ratio of step times of the workload
against itself, and with its settings over without, by live pairs; and the latter by launches that
nothing interrupts, in turn, measured for `--seconds` at least. With 95 % intervals (Student's t
over launches, of which there must be two). A name without a file (`gpt124m`) is only held against
itself.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.arguments import settings_file
from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.live_launches import LiveLaunches
from gpurun.records.effects import Effect
from gpurun.records.spec import SEED, StopRule, TrialSpec
from gpurun.records.tuning import SavedSettings
from gpurun.trials.applied_settings import AppliedSettings, applied_settings
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.trial_launcher import TrialLauncher
from scripts.live_bias import told

WORKLOADS = Path(__file__).resolve().parent / "workloads"
WARMUP_STEPS = 30
ALL_EFFECTS = tuple(effect.value for effect in Effect)


@dataclass
class Workload:
    """Launches one workload, with its settings or without."""

    launcher: TrialLauncher
    script: Path
    settings: SavedSettings | None
    seconds: float
    launches: int = 0

    def request(self, tuned: bool) -> LaunchRequest:
        """The next launch."""
        self.launches += 1
        applied = AppliedSettings({}, (), {})
        if tuned and self.settings is not None:
            applied = applied_settings(self.settings, str(self.script), (), (), ALL_EFFECTS)
        rule = StopRule(WARMUP_STEPS + 1, self.seconds, 1 << 60, WARMUP_STEPS, audit_steps=0)
        return LaunchRequest(
            name="tuned" if tuned else "as it is",
            run_dir=self.launcher.folder / str(self.launches),
            target=Target(TargetKind.SCRIPT, str(self.script), applied.args),
            cwd=self.launcher.folder,
            environment=os.environ,
            trial=TrialSpec(rule, SEED),
            settings=applied.turned,
            settings_environment=applied.environment,
            training_loaders=applied.training_loaders,
        )

    def live(self, tuned: Sequence[bool]) -> float:
        """The log ratio of step times, second over first side, of one live pair."""
        pair = LiveLaunches(self.launcher).run_pair(self.request(tuned[0]), self.request(tuned[1]))
        if pair.ratio is None:
            raise SystemExit(f"no ratio: {pair.failure}")
        return pair.ratio.log

    def alone(self, tuned: bool) -> float:
        """The logarithm of seconds a step in a launch that nothing interrupts."""
        found = self.launcher.run(self.request(tuned))
        if found.failure is not None or found.result.step_time_ms is None:
            raise SystemExit(f"not measured: {found.failure}")
        return math.log(found.result.step_time_ms.mean)


def show(workload: Workload, pairs: int, runs: int) -> None:
    """Print the three ratios of one workload."""
    draws = random.Random(0)
    workload.live((False, workload.settings is not None))  # compiles, and fills the page cache
    itself = []
    for _ in range(pairs):
        itself.append(workload.live((False, False)))
        print(f"  ×{math.exp(itself[-1]):.4f}", flush=True)
    told("against itself", itself)
    if workload.settings is None:
        return
    told("live pairs", [workload.live((False, True)) for _ in range(pairs)])
    logs = []
    for _ in range(runs):
        found = {tuned: workload.alone(tuned) for tuned in draws.sample((False, True), 2)}
        logs.append(found[True] - found[False])
    told("whole runs", logs)


def main() -> None:
    """Measure every workload whose settings are given."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("settings", type=Path, nargs="+")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a whole run, at least")
    asked = parser.parse_args()
    for path in asked.settings:
        began = time.monotonic()
        print(path.stem, flush=True)
        with tempfile.TemporaryDirectory() as name:
            launcher = TrialLauncher(Path(name), Mode.OVERLAY)
            saved = settings_file.load(path) if path.suffix else None
            workload = Workload(launcher, WORKLOADS / f"{path.stem}.py", saved, asked.seconds)
            try:
                show(workload, asked.pairs, asked.runs)
            finally:
                launcher.close()
        print(f"  {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
