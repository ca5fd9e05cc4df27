"""The end of the work on a benchmark that a failure or an interruption cut short."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.errors import ExitCode, GpurunError

ANSWERS = (ExitCode.BENCHMARK_FAILED, ExitCode.NO_BASELINE)
"""Exit codes that a document tells. Other errors are gpurun's own or of the command line."""


@dataclass(frozen=True)
class Unfinished:
    """The work ended early: `verdict` is "failed" or "interrupted"."""

    verdict: str
    exit_code: int
    error: str
    todo: str = ""


def failure(error: GpurunError | OSError, benchmark: str) -> Unfinished:
    """The end by an error. An error of the system (a full disk) fails the benchmark."""
    if isinstance(error, GpurunError):
        return Unfinished("failed", int(error.code), error.what, error.todo)
    what = f"the benchmark {benchmark} could not go on: {error}"
    return Unfinished("failed", int(ExitCode.BENCHMARK_FAILED), what)


def ended_by(
    error: BaseException, benchmark: str, exit_code: int, interrupted: str, todo: str = ""
) -> Unfinished:
    """The end that a document tells; any other error is raised again.

    `exit_code`: of an interruption. `interrupted`: how far the work came.
    """
    if isinstance(error, KeyboardInterrupt):
        return Unfinished("interrupted", exit_code, interrupted, todo)
    if isinstance(error, OSError) or (isinstance(error, GpurunError) and error.code in ANSWERS):
        return failure(error, benchmark)
    raise error
