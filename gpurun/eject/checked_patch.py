"""Check a patch by running it: the script under the settings beside the patched script."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.compare_sides import CompareRequest, ComparisonPlan, compare_sides
from gpurun.bench.compare.comparison_document import Compared
from gpurun.bench.record_of_launches import users_side, version_here
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides
from gpurun.eject.patch import Ejected
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.metrics import Metric
from gpurun.trials.applied_settings import AppliedSettings
from gpurun.trials.signal_guard import SignalGuard

MAY_LOSE = 0.1
"""The part of the tuned throughput that settings without a form in torch may cost."""


def benchmark_of(script: str, args: tuple[str, ...], folder: Path) -> Benchmark:
    """The script as a benchmark that gates its throughput."""
    gated = {Metric.THROUGHPUT: MAY_LOSE}
    return Benchmark(
        Path(script).stem, folder, script, args, None, None, {}, (), tuple(gated), gated
    )


def check_patch(
    benchmark: Benchmark,
    settings: AppliedSettings,
    ejected: Ejected,
    within: Path,
    asked: CompareRequest,
    interruption: SignalGuard,
) -> Comparison:
    """Compare the patched script with the script under the settings; see `compare_sides`.

    `within`: the folder that holds all files of the patch.
    """
    version = version_here(benchmark.folder)
    side = replace(users_side(benchmark), commit=version.commit or "")

    @contextmanager
    def sides(run: Path) -> Iterator[Sides]:
        changed = {path: after for path, (_, after) in ejected.files.items()}
        with patched_folder(within, changed, run) as made:
            folder = made / benchmark.folder.relative_to(within)
            command = AppliedSettings({}, ejected.args, ejected.environment)
            patched = replace(
                side,
                name=CURRENT,
                tree=Tree(made),
                folder=folder,
                variables={**side.variables, "PWD": str(folder)},
                applied=command,
            )
            tuned = replace(side, name=BASELINE, applied=settings)
            yield Sides(tuned, patched, side.tree)

    plan = ComparisonPlan(Compared(version, version), sides, BenchmarkPurpose.SETTINGS)
    return compare_sides(benchmark, asked, interruption, lambda: plan)


@contextmanager
def patched_folder(folder: Path, changed: Mapping[Path, bytes], within: Path) -> Iterator[Path]:
    """A copy of `folder`, made of links, with these of its files changed; below `within`.

    `changed`: contents by absolute path, all below `folder`. It is removed at the end of the block.
    """
    files = {path.relative_to(folder): text for path, text in changed.items()}
    with tempfile.TemporaryDirectory(prefix="patched-", dir=within) as made:
        _fill(Path(made), folder, files, within)
        yield Path(made)


def _fill(made: Path, folder: Path, files: Mapping[Path, bytes], within: Path) -> None:
    """Links to the entries of `folder`; a folder that holds a changed file is made anew."""
    below = {path.parts[0] for path in files}
    for entry in os.scandir(folder):
        place = made / entry.name
        if entry.name not in below:
            if not within.is_relative_to(entry.path):  # a link to what holds it has no end
                place.symlink_to(entry.path)
            continue
        inner = {
            path.relative_to(entry.name): text
            for path, text in files.items()
            if path.parts[0] == entry.name
        }
        if entry.is_dir():
            place.mkdir()
            _fill(place, Path(entry.path), inner, within)
        else:
            place.write_bytes(inner[Path(".")])
            place.chmod(entry.stat().st_mode)
