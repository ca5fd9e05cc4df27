"""Runs benchmarks one after another; a failure of one does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.unfinished import Unfinished, failure
from gpurun.errors import GpurunError
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.trials.signal_guard import SignalGuard


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
