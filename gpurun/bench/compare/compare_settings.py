"""Two settings of one script in the same tree, compared with each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_commits import CompareRequest, ComparisonPlan, compare_sides
from gpurun.bench.compare.comparison_document import Compared, LabelledSettings
from gpurun.bench.record_of_launches import version_here
from gpurun.bench.single_tree import users_variables
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Side, Sides
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.comparison import Comparison
from gpurun.records.tuning import SavedSettings
from gpurun.trials.applied_settings import AppliedSettings, applied_settings
from gpurun.trials.signal_guard import SignalGuard

NONE = "none"
"""In place of a settings file: the script as it is."""
AS_IT_IS = SavedSettings({}, (), None, {}, ())


@dataclass(frozen=True)
class Settings:
    """One settings file, by the name it was given on the command line; "none": no settings."""

    label: str
    saved: SavedSettings


def read_settings(name: str) -> Settings:
    """The settings in a file; `GpurunError` says what is wrong with it."""
    return Settings(name, AS_IT_IS if name == NONE else settings_file.load(Path(name)))


def compare_settings(
    benchmark: Benchmark,
    both: tuple[Settings, Settings],
    asked: CompareRequest,
    interruption: SignalGuard,
    knob_paths: Sequence[str],
    allow: Sequence[str],
) -> Comparison:
    """Compare the second settings with the first, as trees are compared.

    `GpurunError` for a knob that there is not, that is not among the effects in `allow`, or cannot
    take its value. Batches of unequal size are compared only where "training" is allowed.
    """
    done = [
        applied_settings(one.saved, one.label, benchmark.args, knob_paths, allow) for one in both
    ]
    may_train = "training" in allow
    plan = _comparison_plan(
        benchmark, (both[0].label, both[1].label), (done[0], done[1]), may_train
    )
    for side, one in zip((BASELINE, CURRENT), both, strict=True):
        asked.tell(f"{side}: {one.label}, {_shown(one)}")
    return compare_sides(benchmark, asked, interruption, lambda: plan)


def _comparison_plan(
    benchmark: Benchmark,
    labels: tuple[str, str],
    both: tuple[AppliedSettings, AppliedSettings],
    may_train: bool,
) -> ComparisonPlan:
    version = version_here(benchmark.folder)
    tree = Tree(benchmark.folder.resolve())
    baseline, current = (
        Side(
            name,
            version.commit or "",
            tree,
            benchmark.folder,
            Path(sys.executable),
            users_variables(benchmark),
            applied=one,
        )
        for name, one in zip((BASELINE, CURRENT), both, strict=True)
    )
    settings = (s.settings for s in both)
    labelled = [LabelledSettings(*pair) for pair in zip(labels, settings, strict=True)]
    return ComparisonPlan(
        Compared(version, version, settings=(labelled[0], labelled[1])),
        lambda _: nullcontext(Sides(baseline, current, tree)),
        BenchmarkPurpose.SETTINGS,
        batch_may_differ=may_train,
    )


def _shown(settings: Settings) -> str:
    words = [f"{name}={value}" for name, value in settings.saved.settings.items()]
    return ", ".join(words) or "the script as it is"
