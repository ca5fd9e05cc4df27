"""The document of `gpurun bench selftest --json FILE`."""

from __future__ import annotations

from gpurun.records.bench.comparison import Comparison
from gpurun.records.record import record

SELFTEST_SCHEMA = "gpurun/selftest@1"


@record
class SelftestPart:
    """One comparison of HEAD with itself.

    `part`: "unchanged", "runtime" (gpurun's runtime delays each step of the current side) or
    "module" (a line in `file`, relative to that side's tree, does). `expected` and `answer`:
    "green" (the gate passes), "red" (it finds the throughput lost); The answer may also be
    "undecided", or None if the comparison came to no verdict.

    `planted_slowdown`: the fraction of throughput that the planted delay costs. `step_seconds`: the
    delay that was asked for in each step; `planted_step_seconds`: the least and the most that a
    launch recorded; None where nothing was planted. `right`: None where it is undecided. `wrong`:
    what is wrong, in one line.
    """

    part: str
    expected: str
    answer: str | None
    right: bool | None
    planted_slowdown: float | None
    step_seconds: float | None
    planted_step_seconds: tuple[float, float] | None
    file: str | None
    wrong: str | None
    comparison: Comparison


@record
class Selftest:
    """Can the gate fail, on this machine and with this benchmark?

    `verdict`: "pass" (every part is right), "wrong" (the gate must not be trusted here: at least
    one part is not right), "inconclusive", "failed" (`error` says why) or "interrupted".
    `commit`: both sides of every part; `dirty`: the user's tree differs from it, which is left out.
    `threshold`: what is gated, a fraction of throughput; `max_pairs`: after so many the gate gives
    up. `others`: further benchmarks of the same configuration; this one then has the worst verdict.
    """

    benchmark: str
    command: tuple[str, ...]
    verdict: str
    exit_code: int
    commit: str | None
    dirty: bool | None
    threshold: float | None
    max_pairs: int
    parts: tuple[SelftestPart, ...]
    recommendation: str
    seconds: float
    notes: tuple[str, ...] = ()
    error: str | None = None
    others: tuple[Selftest, ...] = ()
    schema: str = SELFTEST_SCHEMA
