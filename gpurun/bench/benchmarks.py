"""The benchmarks that the configuration lists, each with what `[bench]` says for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpurun.arguments.gpurun_toml import BenchConfig, BenchmarkConfig, Config
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric

GATED = (Metric.THROUGHPUT, Metric.PEAK_MEMORY)
"""Metrics that can fail a comparison unless the configuration names others."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as configured. `folder`: where launches start; `script` is relative to it.

    `base`: the folder of the configuration file, where `setup` runs and which `needed` (globs) is
    relative to; None, or outside of the repository, where it is `folder`. `env`: variables of setup
    and launches. `steps`: training steps to measure, None for as many as it takes.
    `thresholds`: a fraction for each of `metrics`.
    """

    name: str
    folder: Path
    script: str
    args: tuple[str, ...]
    steps: int | None
    setup: str | None
    env: Mapping[str, str]
    needed: tuple[str, ...]
    metrics: tuple[Metric, ...]
    thresholds: Mapping[Metric, float]
    base: Path | None = None


def benchmarks(config: Config) -> tuple[Benchmark, ...]:
    """The benchmarks of the configuration, none where it has none; `GpurunError` for a bad one."""
    if config.source is None or config.bench == BenchConfig():
        return ()
    listed = config.bench.benchmark or (BenchmarkConfig(),)
    found = tuple(_configured(one, config.bench, config.source) for one in listed)
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise GpurunError(
                f"{config.source}: two benchmarks are named {name!r}",
                "give each [[bench.benchmark]] a name of its own",
            )
    return found


def named(config: Config, script: str, args: tuple[str, ...], folder: Path) -> Benchmark:
    """The benchmark of a script named on the command line, launched in `folder`.

    Values of `[bench]` hold for it, too, in the folder of the configuration file.
    """
    own = BenchmarkConfig(name=Path(script).stem, script=os.path.relpath(folder / script, folder))
    own = replace(own, args=args)
    found = _configured(own, replace(config.bench, benchmark=()), folder / "gpurun.toml")
    base = folder if config.source is None else config.source.parent
    return found if base.resolve() == folder.resolve() else replace(found, base=base)


def _configured(one: BenchmarkConfig, common: BenchConfig, source: Path) -> Benchmark:
    own = {f.name: getattr(one, f.name) for f in fields(BenchmarkConfig)}
    both = replace(common, **{name: value for name, value in own.items() if value is not None})
    if both.script is None:
        where = f"[[bench.benchmark]] {one.name or ''}".strip() if common.benchmark else "[bench]"
        raise GpurunError(f"{source}: {where} names no script", 'add script = "train.py"')
    metrics = both.metrics or GATED
    thresholds = {**(common.thresholds or {}), **(one.thresholds or {})}
    return Benchmark(
        name=both.name or Path(both.script).stem,
        folder=source.parent,
        script=both.script,
        args=both.args or (),
        steps=both.steps,
        setup=both.setup,
        env={**(common.env or {}), **(one.env or {})},
        needed=both.needed or (),
        metrics=metrics,
        thresholds={m: thresholds.get(m.value, m.default_threshold) for m in metrics},
    )
