"""What in-run profiling costs a run: seconds lost around the profiled window.

    python scripts/bench_profiling.py [--seconds 125] [--sources kineto,host,allocator host ...]

One run of `gpurun profile` for each set of recorders. The script notes when each of its steps
ended. What steps take longer from the first profiled one until two seconds after the last than the
median of the steps before and after is lost. Of that the profilers' own start and stop are told in
seconds, as the report tells them; the rest is given as a part of the run. Bar: 5 %.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from bisect import bisect_left
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.profilers import chosen_profilers
from gpurun.profilers.recorded_profiles import recorded_profiles
from scripts.bench_watching import REPOSITORY, TRAIN

AROUND = 400
"""Steps before and after that tell how long a step usually takes."""
AFTER_SECONDS = 2.0


def main() -> None:
    """Run once for each set, and print what was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=125.0)
    usual = ",".join(each.name for each in chosen_profilers(None))
    parser.add_argument("--sources", nargs="*", default=[usual])
    options = parser.parse_args()
    for sources in options.sources:
        with tempfile.TemporaryDirectory() as folder:
            print(profiled(Path(folder), sources, options.seconds))


def profiled(folder: Path, sources: str, seconds: float) -> str:
    """One line about a run with these recorders."""
    (folder / "train.py").write_text(TRAIN)
    words = ["profile", "--quiet", "--sources", sources, "train.py", str(seconds)]
    subprocess.run(
        [sys.executable, "-m", "gpurun", *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    ends = [float(line) for line in (folder / "ends").read_text().split()]
    (run_dir,) = (folder / ".gpurun" / "runs").iterdir()
    (profile,) = recorded_profiles(run_dir)
    window = profile.log.profile
    assert window is not None
    lost, usual = lost_seconds(ends, window.begin_ns / 1e9, window.end_ns / 1e9)
    run = ends[-1] - ends[0]
    rest = max(0.0, lost - profile.profiler_seconds)
    return (
        f"{sources}: {profile.steps} of {len(ends):,} steps of {1000 * usual:.2f} ms profiled, "
        f"{lost:.2f} s lost; start and stop {profile.profiler_seconds:.2f} s, "
        f"the rest {rest / run:.2%} of {run:.0f} s"
    )


def lost_seconds(ends: list[float], begin: float, end: float) -> tuple[float, float]:
    """Seconds that steps took longer in and right behind the window, and a usual step's."""
    first = max(1, bisect_left(ends, begin))
    last = min(len(ends) - 1, bisect_left(ends, end + AFTER_SECONDS))
    steps = [b - a for a, b in itertools.pairwise(ends)]
    usual = statistics.median(steps[max(0, first - AROUND) : first - 1] + steps[last:][:AROUND])
    return sum(step - usual for step in steps[first - 1 : last]), usual


if __name__ == "__main__":
    main()
