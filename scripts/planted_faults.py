"""Scripts with one planted fault each, and their repaired twins, under `gpurun profile`.

    python scripts/planted_faults.py [--only NAME ...] [--repeats 2] [--keep DIR]

Printed for each script of `tests/data/planted` (and, with a GPU, `tests/data/planted_gpu`): the
first finding with its severity and line, the most severe finding of the repaired twin (at most 0.4
is asked for), and the gain of the repair beside the one that the finding gives: a bound, or a
replayed one, with the error of the saved time as a share of it. The measured gain is the ratio of
the times of a sample, by the median steps of plain runs, which take turns; with its 95 % interval
(Student's t over `--repeats` pairs).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gpurun.records.finding import WARNING  # noqa: E402
from scripts.bench_overhead import interval  # noqa: E402

DATA = REPOSITORY / "tests" / "data"
KERNELS = {"low_occupancy": ("--sources", "steps,host,kineto,allocator,ncu")}
"""Faults that only Nsight Compute sees."""
RANKS = {"uneven_ranks": ("--nproc-per-node", "2")}


def main() -> None:
    """Run all, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=2, help="at least 2")
    parser.add_argument("--keep", type=Path, default=None, help="keep the run folders here")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error("--repeats: an interval needs two pairs")
    scripts = sorted((DATA / "planted").glob("*.py"))
    if has_gpu():
        scripts += sorted((DATA / "planted_gpu").glob("*.py"))
    scripts = [path for path in scripts if "main(" in path.read_text()]
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        for path in scripts:
            if not options.only or path.stem in options.only:
                print(row(path, folder, options.repeats), flush=True)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def row(path: Path, folder: Path, repeats: int) -> str:
    """What the two profiles say, and what the repair gained."""
    faulty, clean = (profiled(path, folder, *flag) for flag in ((), ("--clean",)))
    first = faulty[0] if faulty else None
    found = "nothing" if first is None else f"{first['type']} {first['severity']:.2f}{line(first)}"
    worst = max((f["severity"] for f in clean), default=0.0)
    loud = [f["type"] for f in clean if f["severity"] > WARNING]
    logs = [pair(path, folder, number) for number in range(repeats)]
    mean, low, high = (math.exp(x) for x in interval(logs))
    bound, replayed = (first and first[key] for key in ("gain_upper_bound", "replayed_gain"))
    told = "no bound" if bound is None else f"bound {bound:.2f}, wide {width(bound, mean):.2f}"
    if replayed is not None:
        told = f"replayed {replayed:.2f}, off by {deviation(replayed, mean):.0%} of what is saved"
    return (
        f"{path.stem}: {found}; clean {worst:.2f} {' '.join(loud)}; "
        f"gain {mean:.2f} ({low:.2f} to {high:.2f}), {told}"
    )


def width(bound: float, gain: float) -> float:
    """The bound's promise over the gain's; infinite where the repair gained nothing."""
    return (bound - 1) / (gain - 1) if gain > 1 else math.inf


def deviation(replayed: float, gain: float) -> float:
    """Between the saved time as replayed and as measured; infinite where nothing was saved."""
    return abs(1 / replayed - 1 / gain) / (1 - 1 / gain) if gain > 1 else math.inf


def line(finding: dict[str, Any]) -> str:
    place = finding["location"]
    return f" {Path(place['file']).name}:{place['line']}" if place else ""


def profiled(path: Path, folder: Path, *flag: str) -> list[dict[str, Any]]:
    """The findings of one profile."""
    document = folder / "profile.json"
    more = (*KERNELS.get(path.stem, ()), *RANKS.get(path.stem, ()))
    launch(["profile", "--stop", "--json", str(document), *more, str(path), *flag], folder)
    findings: list[dict[str, Any]] = json.loads(document.read_text())["findings"]
    return findings


def pair(path: Path, folder: Path, number: int) -> float:
    """The log of the fault's time for a sample, by the median step, over its twin's."""
    sides = [(), ("--clean",)]
    times, batches = {}, {}
    for flag in sides if number % 2 else reversed(sides):
        document = folder / "run.json"
        more = (*RANKS.get(path.stem, ()), "--json", str(document))
        launch([*more, str(path), *flag], folder)
        told = json.loads(document.read_text())
        times[flag] = told["step_time_ms"]["p50"]
        batches[flag] = told["batch_size"]
    if None not in batches.values():
        times = {flag: time / batches[flag] for flag, time in times.items()}
    return math.log(times[()] / times["--clean",])


def launch(words: list[str], cwd: Path) -> None:
    cwd.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", *words], cwd=cwd, env=env, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"gpurun {' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
