"""Two settings of one script in the same tree, compared with each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_commits import CompareRequest, ComparisonPlan, compare_sides
from gpurun.bench.compare.comparison_document import Compared, LabelledSettings
from gpurun.bench.record_of_launches import users_side, version_here
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.comparison import Comparison
from gpurun.records.tuning import SavedSettings
from gpurun.trials.applied_settings import applied_settings
from gpurun.trials.signal_guard import SignalGuard

NONE = "none"
"""In place of a settings file: the script as it is."""
AS_IT_IS = SavedSettings({}, (), None, {}, ())


def read_settings(name: str) -> LabelledSettings:
    """The settings in a file; `GpurunError` says what is wrong with it."""
    return LabelledSettings(name, AS_IT_IS if name == NONE else settings_file.load(Path(name)))


def compare_settings(
    benchmark: Benchmark,
    both: tuple[LabelledSettings, LabelledSettings],
    asked: CompareRequest,
    interruption: SignalGuard,
    knob_paths: Sequence[str],
    allow: Sequence[str],
) -> Comparison:
    """Compare the second settings with the first, as trees are compared.

    `GpurunError` for a knob that there is not, that is not among the effects in `allow`, or cannot
    take its value. Batches of unequal size are compared only where "training" is allowed.
    """
    applied = [
        applied_settings(one.saved, one.label, benchmark.args, knob_paths, allow) for one in both
    ]
    version = version_here(benchmark.folder)
    side = replace(users_side(benchmark), commit=version.commit or "")
    baseline, current = (
        replace(side, name=name, applied=one)
        for name, one in zip((BASELINE, CURRENT), applied, strict=True)
    )
    for name, one in zip((BASELINE, CURRENT), both, strict=True):
        words = ", ".join(f"{knob}={value}" for knob, value in one.saved.settings.items())
        asked.tell(f"{name}: {one.label}, {words or 'the script as it is'}")
    plan = ComparisonPlan(
        Compared(version, version, settings=both),
        lambda _: nullcontext(Sides(baseline, current, side.tree)),
        BenchmarkPurpose.SETTINGS,
        batch_may_differ="training" in allow,
    )
    return compare_sides(benchmark, asked, interruption, lambda: plan)
