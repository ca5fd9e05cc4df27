"""The document of `gpurun bench selftest --json FILE`."""

from __future__ import annotations

from gpurun.records.bench.comparison import Comparison
from gpurun.records.record import record

SELFTEST_SCHEMA = "gpurun/selftest@2"


@record
class SelftestPart:
    """One comparison of HEAD with itself.

    `part`: "unchanged", "slower" (the current side sleeps in each step) or "faster" (the baseline
    side does). `expected` and `answer`: "green" (the gate passes) or "red" (it finds the throughput
    lost). The answer may also be "undecided", or None if the comparison came to no verdict.

    `planted_slowdown`: the `slowdown` that the comparison should find, negative in "faster".
    `step_seconds`: the sleep in each step; the launches of `comparison` say how long they slept.
    Both are 0 where nothing differs. `right`: None where it is undecided. `wrong`: what is wrong,
    in one line.
    """

    part: str
    expected: str
    answer: str | None
    right: bool | None
    planted_slowdown: float
    step_seconds: float
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
    max_pairs: int
    commit: str | None = None
    dirty: bool | None = None
    threshold: float | None = None
    parts: tuple[SelftestPart, ...] = ()
    recommendation: str = ""
    notes: tuple[str, ...] = ()
    error: str | None = None
    others: tuple[Selftest, ...] = ()
    schema: str = SELFTEST_SCHEMA
