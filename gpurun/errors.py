"""Errors of ours: one line saying what, one saying what to do. And the exit codes, in one table."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of gpurun itself; a plain run exits with the script's own."""

    OK = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    NO_BASELINE = 4
    BENCHMARK_FAILED = 5
    TRAINING_DIFFERS = 6
    INTERNAL = 70
    INTERRUPTED = 130


class GpurunError(Exception):
    """Something is wrong that the user can mend. `what` and `todo` are one line each."""

    verdict = "error"

    def __init__(self, what: str, todo: str = "", code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what)
        self.what = what
        self.todo = todo
        self.code = code


class Refused(GpurunError):
    """The script cannot be run as it was asked to; nothing has run yet."""

    verdict = "refused"


class ScriptFailed(GpurunError):
    """The script failed by itself. Its output was shown; `exit_code` is its own."""

    verdict = "failed"

    def __init__(self, what: str, exit_code: int) -> None:
        super().__init__(what)
        self.exit_code = exit_code
