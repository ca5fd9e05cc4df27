"""The document of a comparison, from what was found."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.pair_runner import BY_TURNS, Findings
from gpurun.bench.record_of_launches import Version
from gpurun.bench.trees.git import short
from gpurun.bench.unfinished import AGAIN, Unfinished
from gpurun.errors import ExitCode
from gpurun.pairs.estimate import assumed_sd, is_loose
from gpurun.pairs.gain import NOTHING, Look
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
from gpurun.records.tuning import SavedSettings

EXIT_CODES = {
    "pass": ExitCode.OK,
    "regression": ExitCode.REGRESSION,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "training_differs": ExitCode.TRAINING_DIFFERS,
}


@dataclass(frozen=True)
class LabelledSettings:
    """The settings of a side by the name that the user gave them: a file, or "none"."""

    label: str
    saved: SavedSettings


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
    nothing = MetricResult(BY_TURNS[0], Verdict.MORE, 0.0)
    speed = next((m for m in metrics if m.metric in BY_TURNS), nothing)
    gain = NOTHING if compared.settings is None else findings.gain()
    if gain.speedup is not None and gain.interval is not None:  # the figures that are shown
        bounds = 1 - gain.interval[1], 1 - gain.interval[0]
        known = replace(speed, slowdown=1 - gain.speedup, interval=bounds)
        metrics, speed = tuple(known if m is speed else m for m in metrics), known
    threshold = next((benchmark.thresholds[m] for m in BY_TURNS if m in benchmark.thresholds), None)
    advice = _recommendation(verdict, compared, findings, training)
    if unfinished is not None:
        advice = unfinished.todo or AGAIN
    return Comparison(
        benchmark=benchmark.name,
        command=masked((benchmark.script, *benchmark.args)),
        verdict=verdict,
        exit_code=int(EXIT_CODES[verdict] if unfinished is None else unfinished.exit_code),
        regression_detected=verdict == Verdict.REGRESSION.value,
        slowdown=speed.slowdown,
        slowdown_confidence_interval=speed.interval,
        performance_delta=None if speed.slowdown is None else -100 * speed.slowdown,
        threshold=threshold,
        pairs=len(findings.pairs),
        p_value=speed.p_value,
        metrics=tuple(_metric(m, findings) for m in metrics),
        baseline=_side(compared, 0),
        current=_side(compared, 1),
        likely_culprit_commit=_culprit(compared) if verdict == "regression" else None,
        recommendation=advice,
        seconds=seconds,
        notes=tuple(findings.notes),
        error=None if unfinished is None else unfinished.error,
        training_differs=training.differs,
        training=training,
        method=_method(findings, speed),
        **({} if compared.settings is None else _gain(compared, gain)),
    )


def _gain(compared: Compared, found: Look) -> dict[str, Any]:
    """The second settings over the first; what was not measured is left out."""
    gain: dict[str, Any] = {}
    if found.speedup is not None:
        gain["speedup"] = found.speedup
        gain["speedup_confidence_interval"] = found.interval
        gain["statistically_significant"] = found.significant
    peaks = [None if one is None else one.peak_memory_bytes for one in compared.records]
    if peaks[0] is not None and peaks[1] is not None:
        gain["memory_saved_bytes"] = peaks[0] - peaks[1]
    return gain


def _method(findings: Findings, speed: MetricResult) -> PairMethod | None:
    """The way pairs were launched; None without pairs."""
    if not findings.pairs:
        return None
    live = all(pair.ratio is not None for pair in findings.pairs)
    why = next((pair.in_turn for pair in findings.pairs if pair.in_turn), None)
    loose = any(is_loose(pair.first.result, pair.second.result) for pair in findings.pairs)
    prior_sd = assumed_sd(Metric.THROUGHPUT, live=live, loose=loose)
    return PairMethod(live, why, prior_sd, speed.pair_sd)


def _verdict(speed: str, training: TrainingComparison, fail_on_change: bool) -> str:
    """Regression before training_differs before inconclusive before pass."""
    if training.nonfinite_from_step is not None:
        return Verdict.REGRESSION.value
    if training.differs and fail_on_change and speed != Verdict.REGRESSION.value:
        return "training_differs"
    return speed


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
        settings=None if labelled is None else dict(labelled.saved.settings),
        **{name: None if record is None else getattr(record, name) for name in names},
    )


def _culprit(compared: Compared) -> str | None:
    """The one change between the sides; with uncommitted ones it may be they."""
    if compared.current.dirty or len(compared.commits) != 1:
        return None
    return compared.commits[0]


def _recommendation(
    verdict: str, compared: Compared, findings: Findings, training: TrainingComparison
) -> str:
    if verdict == Verdict.PASS.value:
        return training.told if training.differs else "nothing to do"
    if verdict == Verdict.REGRESSION.value:
        return _about_regression(compared, findings, training)
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


def _about_regression(compared: Compared, findings: Findings, training: TrainingComparison) -> str:
    worse = [m.metric for m in findings.result.regressed] if findings.result is not None else []
    why = [f"{' and '.join(metric.value for metric in worse)} got worse"] if worse else []
    told = "; ".join([training.told, *why] if training.nonfinite_from_step is not None else why)
    if compared.settings is not None:
        kept, left = (one.label for one in compared.settings)
        return f"keep {kept}: under {left} {told}"
    culprit = _culprit(compared)
    if culprit is not None:
        return f"look at commit {short(culprit)}: {told}"
    # bisect compares steps by turns: it sees neither memory nor energy
    ends = compared.baseline.commit, compared.current.commit
    if len(compared.commits) > 1 and all(ends) and any(metric in BY_TURNS for metric in worse):
        told += f"; gpurun bench bisect {short(ends[0] or '')}..{short(ends[1] or '')} searches"
    return f"look at the changes since the baseline: {told}"
