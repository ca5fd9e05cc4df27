"""From what a tuning found to the document behind `--optimize --json`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Knob
from gpurun.knobs.batch_size import side_effects
from gpurun.measure.machine import shared_cores
from gpurun.measure.optional_figures import known, mean, mean_record
from gpurun.records.result import RunResult
from gpurun.records.tuning import (
    Candidate,
    LadderRow,
    LargerBatch,
    OtherLoad,
    Proof,
    TrialRecord,
    TuningReport,
    WaitingLine,
)
from gpurun.stats.descriptive import geometric_mean
from gpurun.tuner.proof.finalist import Finalist, proof_of
from gpurun.tuner.rungs import Stages, batch_row, first_rows, kept_rows, rows_not_kept
from gpurun.tuner.search.changes import BATCH, batch_table
from gpurun.tuner.tuning_findings import TuningFindings, answered_by
from gpurun.tuner.tuning_trial import Trial

SAVED = {
    Objective.THROUGHPUT: ("faster", "speedup"),
    Objective.MEMORY: ("smaller", "memory_reduction"),
    Objective.ENERGY: ("saves_energy", "energy_reduction"),
}
"""The verdict of a proof that was won, and the name of its factor, by objective."""


def tuning_document(
    findings: TuningFindings,
    *,
    options: Options,
    trials: Sequence[TrialRecord],
    isolation: str,
    fingerprint: dict[str, Any],
    invocation: tuple[str, ...],
    seconds: float,
) -> TuningReport:
    """The report; figures of the proof where there was one, else of the first trials.

    `chosen` is what a training would run with: the baseline, unless the proof found better. The
    baseline is the script as it is, or, where it runs out of memory, made to fit ("fits").
    """
    finalist, facts, objective = findings.chosen, findings.facts, options.aim
    shown = None if findings.probe is None else findings.probe.evidence
    proof = None if finalist is None else proof_of(finalist)
    won = finalist if findings.verdict == "faster" else None
    baseline = _baseline(findings)
    chosen = baseline if won is None else _candidate(won)
    if won and proof and objective is Objective.THROUGHPUT:
        baseline, chosen = _rates_of(proof, baseline, chosen)
    open_end = findings.verdict in ("inconclusive", "interrupted")
    return TuningReport(
        verdict=_verdict(findings, objective),
        **_factors(finalist, proof, baseline, objective),
        p_value=proof.p_value if proof else None,
        statistically_significant=bool(won and proof and proof.statistically_significant),
        baseline=baseline,
        chosen=chosen,
        larger_batch=_larger(findings),
        ladder=_ladder(findings, options, baseline, chosen),
        trials=tuple(trials),
        tuning_seconds=seconds,
        proof_seconds=findings.proof_seconds,
        proof=proof if objective is Objective.THROUGHPUT else _of_prices(proof),
        guard=None if finalist is None else finalist.guard,
        rejections=tuple(findings.rejections),
        isolation=isolation,
        decisions=tuple(findings.decisions),
        fingerprint=fingerprint,
        command=options.typed.shown,
        invocation=invocation,
        other_load=_other_load(trials),
        waits=_waits(findings.probe),
        objective=objective.value,
        memory_of="" if facts is None else "main process" if facts.device == "cpu" else "GPU",
        ceilings=findings.ceilings,
        gains_so_far=tuple(b / a for a, b in finalist.pairs) if finalist and open_end else (),
        batches=batch_table(trials, facts),
        findings=findings.seen,
        findings_left=findings.left,
        untried=findings.untried,
        reason=findings.reason,
        loss_nonfinite_from=None if shown is None else shown.nonfinite_from,
        second_epoch_budget=findings.second_epoch_budget,
    )


def _ladder(
    findings: TuningFindings, options: Options, baseline: Candidate | None, chosen: Candidate | None
) -> tuple[LadderRow, ...]:
    """The rows, each with the finding that a change of it answers."""

    def knob_of(name: str) -> Knob:
        return find(name, options.knob_paths, options.tuned_arguments)

    rows = [] if baseline is None else first_rows(baseline)
    rate = None if baseline is None else baseline.samples_per_second
    won = findings.chosen if findings.verdict == "faster" else None
    if won is not None and chosen is not None:
        kept = Stages(findings.base, won.settings, knob_of)
        rows += kept_rows(kept, findings.rungs, chosen, won.look(), rate, won.guard)
    out = Stages({}, findings.left_out, knob_of)
    rows += rows_not_kept(out, lambda knob: findings.objections.get(knob, "not proven"))
    if findings.larger is not findings.chosen:
        why = findings.objections.get(BATCH, "")
        rows += batch_row(findings.larger, won, chosen, rate, why)
    rows += findings.dropped
    knobs = all_knobs(options.knob_paths, options.tuned_arguments)
    told = []
    for row in rows:  # one that failed may name a companion that there is not
        changed = [knob for knob in knobs if knob.name in row.changes]
        seen = [answered_by(knob, findings.seen) for knob in changed]
        answers = next((finding.type for finding in seen if finding is not None), None)
        told.append(replace(row, answers=answers))
    return tuple(told)


def _rates_of(
    proof: Proof, baseline: Candidate | None, chosen: Candidate | None
) -> tuple[Candidate | None, Candidate | None]:
    """Both with the throughput that the proof's pairs compared: their ratio is the speedup."""
    if baseline is None or chosen is None or baseline.samples_per_second is None:
        return baseline, chosen  # the pairs compare steps a second
    rate = geometric_mean([base for base, _ in proof.pairs])
    with_it = rate * proof.speedup
    return replace(baseline, samples_per_second=rate), replace(chosen, samples_per_second=with_it)


def _verdict(findings: TuningFindings, objective: Objective) -> str:
    """The verdict of the search, in the words of what it was for."""
    if findings.base and findings.verdict in ("no_gain", "inconclusive"):
        return "fits"
    return SAVED[objective][0] if findings.verdict == "faster" else findings.verdict


def _factors(
    finalist: Finalist | None, proof: Proof | None, baseline: Candidate | None, objective: Objective
) -> dict[str, Any]:
    """The proven factor, and under the other objectives its cost in throughput."""
    factor = None if proof is None else proof.speedup
    interval = None if proof is None else proof.speedup_confidence_interval
    if objective is Objective.THROUGHPUT:
        return {"speedup": factor, "speedup_confidence_interval": interval}
    with_it = None if finalist is None else _candidate(finalist).samples_per_second
    without = None if baseline is None else baseline.samples_per_second
    return {
        "speedup": with_it / without if with_it and without else None,
        "speedup_confidence_interval": None,
        SAVED[objective][1]: factor,
        f"{SAVED[objective][1]}_confidence_interval": interval,
    }


def _of_prices(proof: Proof | None) -> Proof | None:
    """The proof of a lower price, which compared 1/bytes or 1/joules, with its pairs in these."""
    if proof is None:
        return None
    return replace(proof, pairs=tuple((1 / base, 1 / head) for base, head in proof.pairs))


def _waits(probe: Trial | None) -> tuple[WaitingLine, ...]:
    """Lines of the script that waited for the GPU in each audited step of the first trial."""
    seen = None if probe is None or probe.log is None else probe.log.waits
    if seen is None:
        return ()
    lines: dict[str, dict[str, float]] = {}
    for read in seen.reads:
        if read.device != "cpu" and read.steps >= seen.steps:
            lines.setdefault(read.where, {})[read.call] = read.calls / seen.steps
    return tuple(WaitingLine(where, calls) for where, calls in lines.items())


def _other_load(trials: Sequence[TrialRecord]) -> OtherLoad | None:
    told = [(t.others_cpu_percent, t.seconds) for t in trials if t.others_cpu_percent is not None]
    seconds = math.fsum(s for _, s in told)
    if not seconds:
        return None
    return OtherLoad(math.fsum(x * s for x, s in told) / seconds, shared_cores())


def _baseline(findings: TuningFindings) -> Candidate | None:
    if findings.baseline is not None and findings.baseline.results:
        return _candidate(findings.baseline)
    trial = findings.probe
    if trial is None or trial.result is None:
        return None
    made_to_fit = bool(findings.base) and trial.record.knobs == findings.base
    if trial.throughput is None and not made_to_fit:
        return None
    return Candidate(knobs=dict(findings.base), **_figures([trial.result]))


def _candidate(finalist: Finalist) -> Candidate:
    return Candidate(knobs=dict(finalist.settings), **_figures(finalist.results))


def _figures(results: Sequence[RunResult]) -> dict[str, Any]:
    """Means over launches; the peak of the peaks."""
    return {
        "samples_per_second": mean(r.samples_per_second for r in results),
        "step_time_ms": mean_record(r.step_time_ms for r in results),
        "peak_memory_bytes": max(known(r.peak_memory_bytes for r in results), default=None),
        "gpu_utilization_percent": mean(r.gpu_utilization_percent for r in results),
        "joules_per_sample": mean(r.joules_per_sample for r in results),
    }


def _larger(findings: TuningFindings) -> LargerBatch | None:
    finalist, facts = findings.larger, findings.facts
    proof = None if finalist is None else proof_of(finalist)
    if finalist is None or facts is None or proof is None or not finalist.results:
        return None  # its row of the ladder says why
    value = finalist.settings[BATCH]
    return LargerBatch(
        knobs=dict(finalist.settings),
        batch_size=int(value["batch_size"]),
        speedup=proof.speedup,
        proof=proof,
        side_effects=side_effects(facts, value),
        guard=finalist.guard,
        **_figures(finalist.results),
    )
