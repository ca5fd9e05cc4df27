"""The documents of `gpurun bench --compare` and of `gpurun bench selftest`."""

from __future__ import annotations

from typing import Any

from gpurun.records.bench.benchmark import BenchmarkLaunch
from gpurun.records.record import record
from gpurun.records.result import StepTime

COMPARISON_SCHEMA = "gpurun/comparison@1"


@record
class ComparedSide:
    """One side: the figures of its launches put together, and the raw values of each.

    `commit` is that of its tree; `dirty`: the tree differs from it. `record`: the id of its record
    in the store, None where nothing was measured. A figure is None where nothing was measured.
    `launches` are in the order of the pairs, without the one that warmed up. `label` and
    `settings`: the file and what it turns, where two settings of one tree are compared.
    """

    commit: str | None
    dirty: bool
    record: str | None
    samples_per_second: float | None
    step_time_ms: StepTime | None
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    joules_per_sample: float | None
    batch_size: float | None
    launches: tuple[BenchmarkLaunch, ...]
    label: str | None = None
    settings: dict[str, Any] | None = None


@record
class MetricComparison:
    """One gated metric: `verdict` is "pass", "regression" or "inconclusive".

    `slowdown` and its interval are losses as fractions: of the throughput what is lost, of memory
    and energy the growth. `pairs`: (baseline, current) in samples/s (steps/s where samples cannot
    be counted), seconds, bytes or joules. The current throughput and step time of a live pair are
    the baseline's times the ratio that the turns measured.
    """

    metric: str
    verdict: str
    threshold: float
    slowdown: float | None
    slowdown_confidence_interval: tuple[float, float] | None
    p_value: float | None
    pairs: tuple[tuple[float, float], ...]


@record
class PairMethod:
    """The launches of the pairs of a comparison.

    `live`: both sides of a pair took turns of a few steps, one frozen while the other trained. Else
    they were launched one after the other, and `why_in_turn` gives the reason. `prior_sd`: the
    assumed standard deviation of ln(ratio of speeds) between pairs of equal launches
    (`gpurun/pairs/estimate.py`), which counts as one pair; the largest of all pairs. `pair_sd`: of
    an average pair, by what is assumed, the errors of the turns and the scatter of this
    comparison's own pairs; None before the first look.
    """

    live: bool
    why_in_turn: str | None
    prior_sd: float | None = None
    pair_sd: float | None = None


@record
class TrainingComparison:
    """The loss curves of both sides' launches, which are all seeded alike.

    `differs`: the curves of the sides are further apart than repeats of one side; None where that
    could not be judged. `launches`: how many curves each side has. `from_step`: the first step in
    which they differ. `loss_deviation`: how far the sides are apart. `repeat_deviation`: how far
    repeats of one side are. Both are fractions of the loss in the quarter of the curve where they
    are largest. `nonfinite_from_step`: where every loss curve of the current side ends in NaN or
    infinity and none of the baseline does, the first such step. `told`: all this in one line.
    """

    differs: bool | None
    launches: tuple[int, int]
    told: str
    from_step: int | None = None
    loss_deviation: float | None = None
    repeat_deviation: float | None = None
    nonfinite_from_step: int | None = None


@record
class Comparison:
    """The result of a comparison.

    `verdict`: "pass", "regression", "inconclusive", "failed" (the benchmark itself, or no usable
    baseline; `error` says why), "training_differs" (only with --fail-on-training-change) or
    "interrupted". A loss that is not finite where the baseline's is counts as a regression.
    `training_differs`: as in `training`, None where nothing is known of the training. `slowdown`:
    fraction of throughput lost. Its interval's lower bounds hold together at 99 %, its upper bound
    at 95 %. `performance_delta`: the same in percent, negative is slower. These, `threshold` and
    `p_value` are those of the throughput (of the step time, where that is gated instead); None
    where neither is. `pairs`: how many were judged. `likely_culprit_commit`: the only commit
    between the sides of a regression, or the one that a search for it has found; None where there
    is neither. `others`: further benchmarks of the same configuration; this one then has the worst
    verdict. `baseline_records`: with --from-history, the number of records that stand for the
    baseline. Its side holds all of them under the newest one's id and commit. None if the baseline
    was launched. `method`: None where no pair was launched. `launched`: False where the commit
    passes because it changes no file that the benchmark opens; a note says so.

    Of two settings (`--ab A B`) also, None else: `speedup` of B over A, a factor, with the same
    interval; `statistically_significant`: the interval does not hold 1.0; `memory_saved_bytes`: how
    much lower the peak is under B, negative where it is higher.

    >>> import json
    >>> from gpurun.records.codec import from_json
    >>> with open("comparison.json") as file:
    ...     found = from_json(Comparison, json.load(file))
    >>> found.verdict, found.exit_code
    ('regression', 1)
    >>> f"{found.slowdown:.1%} of the throughput is lost"
    '5.0% of the throughput is lost'
    """

    benchmark: str
    command: tuple[str, ...]
    verdict: str
    exit_code: int
    regression_detected: bool
    slowdown: float | None
    slowdown_confidence_interval: tuple[float, float] | None
    performance_delta: float | None
    threshold: float | None
    pairs: int
    p_value: float | None
    metrics: tuple[MetricComparison, ...]
    baseline: ComparedSide
    current: ComparedSide
    likely_culprit_commit: str | None
    recommendation: str
    seconds: float
    notes: tuple[str, ...] = ()
    error: str | None = None
    others: tuple[Comparison, ...] = ()
    baseline_records: int | None = None
    training_differs: bool | None = None
    training: TrainingComparison | None = None
    method: PairMethod | None = None
    speedup: float | None = None
    speedup_confidence_interval: tuple[float, float] | None = None
    statistically_significant: bool | None = None
    memory_saved_bytes: int | None = None
    launched: bool = True
    schema: str = COMPARISON_SCHEMA


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
