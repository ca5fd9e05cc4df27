"""Some launches of a benchmark in the user's own tree, measured one after the other."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpurun.bench.benchmark_launcher import Launch, Launcher, Tell
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.record_of_launches import Version, record_of
from gpurun.bench.trees.git import without_redirection
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import CURRENT, Side
from gpurun.isolation.isolation_mode import Mode
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.trials.stop_rules import first_rule, later_rule

DEFAULT_LAUNCHES = 5
"""Launches differ by more than the steps of one do; fewer say little of how much."""


def measure(
    benchmark: Benchmark, folder: Path, mode: Mode, launches: int, tell: Tell, version: Version
) -> BenchmarkRecord:
    """The record of so many launches, after one that warms up; it ends at one that fails.

    Interrupted, it is that of the launches until then; KeyboardInterrupt where there is none.
    `folder` receives their run folders; `version` is what is measured. Nothing is set up: the
    user's environment is measured.
    """
    start = users_side(benchmark)
    launcher = Launcher(benchmark, folder, mode, tell)
    measured: list[Launch] = []
    interrupted = False
    try:
        tell(f"first launch of {benchmark.name}, to warm it up")
        first = launcher.run(start, first_rule(benchmark.steps), first=True)
        rule = later_rule(benchmark.steps, [first.result])
        if first.error:
            measured.append(first)
        while len(measured) < launches and not (measured and measured[-1].error):
            measured.append(launcher.run(start, rule))
            tell(f"launch {len(measured)}: {_shown(measured[-1])}")
    except KeyboardInterrupt:
        if not measured:
            raise
        interrupted = True
    finally:
        launcher.close()
    if measured[-1].error:
        for line in measured[-1].printed:
            tell(f"output: {line}")
    return record_of(benchmark, measured, version, BenchmarkPurpose.BENCH, interrupted=interrupted)


def users_side(benchmark: Benchmark) -> Side:
    """The user's own tree, as it is."""
    folder = benchmark.folder
    variables = {**without_redirection(os.environ), **benchmark.env, "PWD": str(folder)}
    return Side(CURRENT, "", Tree(folder.resolve()), folder, Path(sys.executable), variables)


def _shown(launch: Launch) -> str:
    rate, steps = launch.result.samples_per_second, launch.steps_per_second or 0.0
    return launch.error or (f"{steps:.4g} steps/s" if rate is None else f"{rate:.4g} samples/s")
