"""The end of the work on benchmarks: cut short by a failure or an interruption, or the worst of
several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.bench.comparison import Comparison, Selftest

Document = TypeVar("Document", Comparison, BisectionReport, Selftest)

WORST_FIRST = (
    "interrupted", "wrong", ExitCode.BENCHMARK_FAILED, "regression", "training_differs",
    ExitCode.INTERNAL, ExitCode.USAGE, ExitCode.NO_BASELINE, "found", "narrowed", "inconclusive",
    "no_drop", "pass",
)  # fmt: skip
"""Verdicts of all documents; of one that failed, its exit code."""
AGAIN = "run it again"
ANSWERS = (ExitCode.BENCHMARK_FAILED, ExitCode.NO_BASELINE)
"""Exit codes that a document tells. Other errors are gpurun's own or of the command line."""


@dataclass(frozen=True)
class Unfinished:
    """The work ended early: `verdict` is "failed" or "interrupted"."""

    verdict: str
    exit_code: int
    error: str
    todo: str = ""

    def ending(self, found: Document) -> Document:
        """The document so far with this end."""
        found = replace(found, verdict=self.verdict, exit_code=self.exit_code, error=self.error)
        return replace(found, recommendation=self.todo or AGAIN)


def failure(error: GpurunError | OSError, benchmark: str) -> Unfinished:
    """The end by an error. An error of the system (a full disk) fails the benchmark."""
    if isinstance(error, GpurunError):
        return Unfinished("failed", int(error.code), error.what, error.todo)
    what = f"the benchmark {benchmark} could not go on: {error}"
    return Unfinished("failed", int(ExitCode.BENCHMARK_FAILED), what)


def ended_by(
    error: BaseException, benchmark: str, exit_code: int, interrupted: str, todo: str = ""
) -> Unfinished:
    """The end that a document tells: an interruption, a benchmark that fails, nothing to compare
    with, a refusal of the system (a full disk). Any other error is raised again.

    `exit_code`: of an interruption. `interrupted`: how far the work came.
    """
    if isinstance(error, KeyboardInterrupt):
        return Unfinished("interrupted", exit_code, interrupted, todo)
    if isinstance(error, OSError) or (isinstance(error, GpurunError) and error.code in ANSWERS):
        return failure(error, benchmark)
    raise error


def worst_with_others(documents: Sequence[Document]) -> Document:
    """Several benchmarks as one document: that of the worst, which holds the others."""
    places = [
        WORST_FIRST.index(ExitCode(one.exit_code) if one.verdict == "failed" else one.verdict)
        for one in documents
    ]
    worst = documents[places.index(min(places))]
    return replace(worst, others=tuple(one for one in documents if one is not worst))
