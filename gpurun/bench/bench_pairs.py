"""The pairs of a benchmark: trees or settings under the pair engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.trees.prepared_sides import Side
from gpurun.isolation.isolation_mode import Mode
from gpurun.measure.optional_figures import known
from gpurun.pairs.engine import PairEngine
from gpurun.pairs.obstacle import live_pair_obstacle, peaks_of
from gpurun.records.spec import StopRule

BenchEngine = PairEngine[Side, Launch]

Tell = Callable[[str], None]
"""Hears what happens, a line each."""


def bench_engine(
    launcher: Launcher,
    rule: StopRule,
    note: Callable[[str], None],
    refuse: Callable[[Launch], None] = lambda launch: None,
    late: Callable[[], bool] = lambda: False,
) -> BenchEngine:
    """The engine of one comparison or search. `rule`: of launches in turn.

    `note` hears what disturbed pairs; `late`: whether there is no time to measure one again.
    `refuse` is given each launch that ended alone, and may raise: then no other one follows.
    """

    def alone(start: Side) -> Launch:
        launch = launcher.run(start, rule)
        refuse(launch)
        return launch

    return PairEngine(
        lambda first, second: launcher.run_pair((first, second), rule), alone, note, late
    )


def obstacle(first: Sequence[Launch], mode: Mode) -> str:
    """Why launches like these cannot be live pairs, "" if they can."""
    if mode is Mode.IN_PLACE:
        return "launches work on the real files"
    if any(launch.whole for launch in first):
        return "the script is over too soon to take turns"
    results = [launch.result for launch in first]
    gpus = known(d.memory_total_bytes for result in results for d in result.devices)
    return live_pair_obstacle(results, list(map(peaks_of, results)), min(gpus, default=None))
