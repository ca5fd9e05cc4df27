"""`gpurun bench --results FILE`: judge what was measured elsewhere, or before."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.bench_flags import BenchOptions
from gpurun.arguments.gpurun_toml import Config, load_config
from gpurun.bench.benchmarks import GATED, Benchmark, benchmarks
from gpurun.bench.compare.compare_sides import CompareRequest, not_compared
from gpurun.bench.compare.compare_with_records import compare_stored, read_results
from gpurun.commands.bench.bench_outputs import conclude, shown
from gpurun.commands.bench.chosen_benchmarks import gated
from gpurun.commands.bench.each_benchmark import of_each
from gpurun.commands.written_outputs import teller
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.trials.signal_guard import SignalGuard

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore


def judge_results(options: BenchOptions, home: Path, store: BenchmarkStore) -> int:
    """Judge each benchmark of the file; the exit codes are those of a comparison."""
    assert options.results is not None
    records = {one.benchmark: one for one in read_results(Path(options.results))}
    config = load_config(Path.cwd())
    wanted = [gated(_benchmark(record, config), options) for record in records.values()]
    baseline = None if options.baseline is None else Path(options.baseline)
    asked = CompareRequest(
        ref="HEAD",
        home=home,
        plan=GatePlan(),
        deadline=math.inf,
        in_place=False,
        keep=store.add,
        tell=teller(options.quiet),
        fail_on_training_change=options.fail_on_training_change,
    )
    with SignalGuard() as interruption:
        documents = of_each(
            wanted,
            interruption,
            find=lambda benchmark: compare_stored(
                benchmark, records[benchmark.name], baseline, asked, store, interruption
            ),
            without=not_compared,
            shown=lambda found: shown(found, options),
            tell=asked.tell,
        )
        return conclude(documents, options)


def _benchmark(record: BenchmarkRecord, config: Config) -> Benchmark:
    """The benchmark of a record, gated as the configuration here says where it has that one."""
    known = {one.name: one for one in benchmarks(config)}
    if record.benchmark in known:
        return replace(known[record.benchmark], script=record.script, args=record.args)
    return Benchmark(
        name=record.benchmark,
        folder=Path.cwd(),
        script=record.script,
        args=record.args,
        steps=None,
        setup=None,
        env={},
        needed=(),
        metrics=GATED,
        thresholds={metric: metric.default_threshold for metric in GATED},
    )
