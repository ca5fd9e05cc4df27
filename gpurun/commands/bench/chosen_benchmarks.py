"""The benchmarks that a command line chooses, run one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from gpurun.arguments.bench_flags import BenchOptions
from gpurun.arguments.gpurun_toml import load_config
from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.bench.compare.pair_runner import BY_TURNS
from gpurun.bench.trees.worktrees import WORKTREES, remove_abandoned
from gpurun.bench.unfinished import Unfinished, failure
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.rundir import find_home, no_records
from gpurun.trials.signal_guard import SignalGuard


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


class Document(Protocol):
    """The result of one benchmark."""

    @property
    def verdict(self) -> str:
        """ "interrupted" where a signal ended it."""


Found = TypeVar("Found", bound=Document)


def of_each(
    wanted: Sequence[Benchmark],
    interruption: SignalGuard,
    find: Callable[[Benchmark], Found],
    without: Callable[[Benchmark, Unfinished], Found],
    shown: Callable[[Found], Sequence[str]],
    tell: Callable[[str], None],
) -> list[Found]:
    """The document of each benchmark, by `find`, which holds signals back at its end.

    An error ends only the benchmark that it befell, and is raised where that is the only one; a
    signal ends all that follow. Both leave a document, by `without`. `shown`: lines for the
    terminal, of each as soon as it is there.
    """
    documents: list[Found] = []
    for benchmark in wanted:
        if len(wanted) > 1:
            tell(f"benchmark {benchmark.name}")
        if documents:
            try:
                interruption.release()
            except KeyboardInterrupt:
                break
        try:
            document = find(benchmark)
        except GpurunError as error:
            if len(wanted) == 1:
                raise
            document = without(benchmark, failure(error, benchmark.name))
        documents.append(document)
        write_plain([f"{PREFIX}{line}" for line in shown(document)])
        if document.verdict == "interrupted":
            break
    for benchmark in wanted[len(documents) :]:
        unfinished = Unfinished(
            "interrupted", interruption.exit_code, "interrupted before its first pair"
        )
        documents.append(without(benchmark, unfinished))
    return documents
