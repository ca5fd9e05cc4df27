"""What ended the work on one benchmark before its question was answered."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.errors import ExitCode, GpurunError

ANSWERS = (ExitCode.BENCHMARK_FAILED, ExitCode.NO_BASELINE)
"""What a pipeline must tell from a regression; other errors are ours or of the command line."""


@dataclass(frozen=True)
class Unfinished:
    """How it ended: `verdict` is "failed" or "interrupted"."""

    verdict: str
    exit_code: int
    error: str
    todo: str = ""


def failure(error: GpurunError | OSError, benchmark: str) -> Unfinished:
    """That of an error; what the system refuses (a full disk) fails the benchmark."""
    if isinstance(error, GpurunError):
        return Unfinished("failed", int(error.code), error.what, error.todo)
    what = f"the benchmark {benchmark} could not go on: {error}"
    return Unfinished("failed", int(ExitCode.BENCHMARK_FAILED), what)
