"""The benchmarks that a command line chooses, and the folder of their records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.arguments.bench_flags import BenchOptions
from gpurun.arguments.gpurun_toml import load_config
from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.bench.compare.pair_runner import BY_TURNS
from gpurun.bench.trees.worktrees import WORKTREES, remove_abandoned
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric
from gpurun.rundir import find_home, no_records


def chosen(
    script: str | None, args: tuple[str, ...], steps: int | None = None
) -> tuple[Benchmark, ...]:
    """The script's benchmark, or all in gpurun.toml; `GpurunError` if there is none.

    `steps`: what a launch measures, where the command line says it.
    """
    config = load_config(Path.cwd())
    if script is None:
        found = benchmarks(config)
    else:
        found = (named(config, script, args, Path.cwd()),)
    if not found:
        raise GpurunError(
            "there is no benchmark",
            'name a script, or write [bench] script = "train.py" into gpurun.toml',
        )
    for benchmark in found:
        if not (benchmark.folder / benchmark.script).is_file():
            raise GpurunError(
                f"there is no script {benchmark.folder / benchmark.script}", "check the path"
            )
    return found if steps is None else tuple(replace(one, steps=steps) for one in found)


def chosen_by(options: BenchOptions) -> tuple[Benchmark, ...]:
    """The benchmarks of a command line, with its metrics and thresholds."""
    found = chosen(options.script, options.args, options.steps)
    return tuple(gated(benchmark, options) for benchmark in found)


def gated(benchmark: Benchmark, options: BenchOptions) -> Benchmark:
    """The benchmark with the metrics and thresholds of the command line."""
    thresholds = dict(benchmark.thresholds)
    metrics = benchmark.metrics
    if options.metrics is not None:
        metrics = tuple(Metric(name) for name, _ in options.metrics)
        thresholds = {m: thresholds.get(m, m.default_threshold) for m in metrics}
    if options.threshold is not None:
        thresholds |= {m: options.threshold for m in BY_TURNS if m in thresholds}
    own = {Metric(name): share for name, share in options.metrics or () if share is not None}
    return replace(benchmark, metrics=metrics, thresholds={**thresholds, **own})


def records_home(out: str | None) -> Path:
    """The folder of records, `out` or that of the configuration, without what killed comparisons
    left in it; `GpurunError` where it cannot be written.
    """
    try:
        home = find_home(Path.cwd(), out or load_config(Path.cwd()).out)
        if (home / WORKTREES).is_dir():
            remove_abandoned(home.resolve() / WORKTREES)
        return home
    except OSError as error:
        raise no_records(error) from None
