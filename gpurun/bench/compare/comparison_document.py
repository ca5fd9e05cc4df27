"""The document of a comparison, from what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.pair_runner import BY_TURNS, Findings
from gpurun.bench.record_of_launches import Version
from gpurun.bench.trees.git import short
from gpurun.bench.unfinished import Unfinished
from gpurun.errors import ExitCode
from gpurun.pairs.estimate import assumed_sd
from gpurun.pairs.gate import MetricResult, Verdict
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.records.bench.comparison import (
    ComparedSide,
    Comparison,
    MetricComparison,
    PairMethod,
    TrainingComparison,
)
from gpurun.records.bench.metrics import Metric
from gpurun.records.script_arguments import masked

EXIT_CODES = {
    "pass": ExitCode.OK,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "training_differs": ExitCode.TRAINING_DIFFERS,
    "interrupted": ExitCode.INTERRUPTED,
}
WORST_FIRST = (ExitCode.BENCHMARK_FAILED, ExitCode.REGRESSION, ExitCode.TRAINING_DIFFERS)
WORST_LAST = (ExitCode.INCONCLUSIVE, ExitCode.OK)
"""The exit code of several benchmarks: the first of these, then errors such as a missing baseline,
then the first of those. A signal comes before all of them."""
SPEED = (Metric.THROUGHPUT, Metric.STEP_TIME)
"""The losses of these are the same figure, the throughput lost."""


@dataclass(frozen=True)
class LabelledSettings:
    """The settings of a side, and the name that they have for the user."""

    label: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """Both versions with their records (None if no launch was completed), and the commits after the
    baseline up to the current one.

    `settings`: those of both, by the name of their file, where the tree is the same.
    """

    baseline: Version
    current: Version
    records: tuple[BenchmarkRecord | None, BenchmarkRecord | None] = (None, None)
    commits: tuple[str, ...] = ()
    settings: tuple[LabelledSettings, LabelledSettings] | None = None


def comparison(
    benchmark: Benchmark,
    findings: Findings,
    compared: Compared,
    seconds: float,
    unfinished: Unfinished | None = None,
    training: TrainingComparison | None = None,
    fail_on_training_change: bool = False,
) -> Comparison:
    """The document; `unfinished` where something else than the gate ended it.

    `training`: what the loss curves say, by default those of the pairs. It counts as a verdict only
    where its losses stop to be finite, or the user asks for that (`fail_on_training_change`).
    """
    training = training or findings.training()
    speed_verdict = findings.verdict.value
    verdict = _verdict(speed_verdict, training, fail_on_training_change)
    if unfinished is not None:
        verdict = unfinished.verdict
    result = findings.result
    metrics = result.metrics if result is not None else ()
    speed = next((m for m in metrics if m.metric in SPEED), None)
    loss = None if speed is None else speed.slowdown
    threshold = next((benchmark.thresholds[m] for m in SPEED if m in benchmark.thresholds), None)
    culprit = _culprit(compared) if verdict == Verdict.REGRESSION.value else None
    return Comparison(
        benchmark=benchmark.name,
        command=masked((benchmark.script, *benchmark.args)),
        verdict=verdict,
        exit_code=int(EXIT_CODES[verdict] if unfinished is None else unfinished.exit_code),
        regression_detected=verdict == Verdict.REGRESSION.value,
        slowdown=loss,
        slowdown_confidence_interval=None if speed is None else speed.interval,
        performance_delta=None if loss is None else -100 * loss,
        threshold=threshold,
        pairs=len(findings.pairs),
        p_value=None if speed is None else speed.p_value,
        metrics=tuple(_metric(m, findings) for m in metrics),
        baseline=_side(compared, 0),
        current=_side(compared, 1),
        likely_culprit_commit=culprit,
        recommendation=_recommendation(
            verdict, metrics, compared, culprit, findings, unfinished, training
        ),
        seconds=seconds,
        notes=tuple(findings.notes),
        error=None if unfinished is None else unfinished.error,
        training_differs=training.differs,
        training=training,
        method=_method(findings, speed),
    )


def _method(findings: Findings, speed: MetricResult | None) -> PairMethod | None:
    """The way pairs were launched; None without pairs."""
    if not findings.pairs:
        return None
    live = all(pair.ratio is not None for pair in findings.pairs)
    pair_sd = None if speed is None else speed.pair_sd
    why = None if live else findings.in_turn or None
    return PairMethod(live, why, assumed_sd(Metric.THROUGHPUT, live=live), pair_sd)


def _verdict(speed: str, training: TrainingComparison, fail_on_change: bool) -> str:
    """Regression before training_differs before inconclusive before pass."""
    if training.nonfinite_from_step is not None:
        return Verdict.REGRESSION.value
    if training.differs and fail_on_change and speed != Verdict.REGRESSION.value:
        return "training_differs"
    return speed


def worst_with_others(documents: Sequence[Comparison]) -> Comparison:
    """Several benchmarks as one document: that of the worst, which holds the others."""
    worst = min(documents, key=_rank)
    return replace(worst, others=tuple(one for one in documents if one is not worst))


def _rank(found: Comparison) -> int:
    if found.verdict == "interrupted":
        return -1
    for codes, start in ((WORST_FIRST, 0), (WORST_LAST, len(WORST_FIRST) + 1)):
        if found.exit_code in codes:
            return start + codes.index(ExitCode(found.exit_code))
    return len(WORST_FIRST)


def _metric(result: MetricResult, findings: Findings) -> MetricComparison:
    undecided = result.verdict is Verdict.MORE
    return MetricComparison(
        metric=result.metric.value,
        verdict=Verdict.INCONCLUSIVE.value if undecided else result.verdict.value,
        threshold=result.threshold,
        slowdown=result.slowdown,
        slowdown_confidence_interval=result.interval,
        p_value=result.p_value,
        pairs=tuple(findings.figures(result.metric)),
    )


def _side(compared: Compared, number: int) -> ComparedSide:
    """One side, with the record's figures of the same names; None without a record."""
    version = (compared.baseline, compared.current)[number]
    record = compared.records[number]
    labelled = None if compared.settings is None else compared.settings[number]
    own = ("commit", "dirty", "record", "launches", "label", "settings")
    names = [field.name for field in fields(ComparedSide) if field.name not in own]
    return ComparedSide(
        commit=version.commit,
        dirty=bool(version.dirty),
        record=None if record is None else record.id,
        launches=() if record is None else record.launches,
        label=None if labelled is None else labelled.label,
        settings=None if labelled is None else dict(labelled.settings),
        **{name: None if record is None else getattr(record, name) for name in names},
    )


def _culprit(compared: Compared) -> str | None:
    """The one change between the sides; with uncommitted ones it may be they."""
    if compared.current.dirty or len(compared.commits) != 1:
        return None
    return compared.commits[0]


def _recommendation(
    verdict: str,
    metrics: Sequence[MetricResult],
    compared: Compared,
    culprit: str | None,
    findings: Findings,
    unfinished: Unfinished | None,
    training: TrainingComparison,
) -> str:
    if unfinished is not None:
        return unfinished.todo or "run it again"
    if verdict == Verdict.PASS.value:
        return training.told if training.differs else "nothing to do"
    if verdict == Verdict.REGRESSION.value:
        worse = [m.metric for m in metrics if m.verdict is Verdict.REGRESSION]
        losses = training.nonfinite_from_step is not None
        why = [f"{' and '.join(metric.value for metric in worse)} got worse"] if worse else []
        told = "; ".join([training.told, *why] if losses else why)
        if compared.settings is not None:
            kept, left = (one.label for one in compared.settings)
            return f"keep {kept}: under {left} {told}"
        if culprit is not None:
            return f"look at commit {short(culprit)}: {told}"
        ends = [side.commit for side in (compared.baseline, compared.current)]
        search = ""
        # bisect compares steps by turns: it sees neither memory nor energy
        seen = any(metric in BY_TURNS for metric in worse)
        if seen and len(compared.commits) > 1 and None not in ends:
            search = f"; gpurun bench bisect {'..'.join(short(end or '') for end in ends)} searches"
        return f"look at the changes since the baseline: {told}{search}"
    if verdict == "training_differs":
        return (
            "look for the change of the training since the baseline; if you meant it, leave out "
            "--fail-on-training-change"
        )
    if findings.ended is not None:
        return f"{findings.ended}: allow more with --budget"
    return (
        "the launches differ too much to decide: use a quieter machine, more steps (--steps), "
        "or more pairs (--max-pairs)"
    )
