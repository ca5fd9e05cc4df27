"""The outcome of `--optimize` in sentences that claim what the report holds and no more."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from gpurun.formatting.finding_sentence import ceilings_sentence, finding_sentence
from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import (
    count,
    factor,
    interval,
    p_value,
    percent,
    signed_percent,
    times,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.effects import Effect
from gpurun.records.failure import FailureKind
from gpurun.records.finding import WARNING
from gpurun.records.tuning import (
    MEASURED,
    GuardVerdict,
    LargerBatch,
    Proof,
    TuningReport,
    WaitingLine,
)
from gpurun.stats.descriptive import says_nothing

OTHERS_SHARE = 0.1
"""The share of the cores that other programs may use without a remark."""
CROWDED_SHARE = 0.5
"""Where others use this part of the cores, the threads of one operator wait for one another."""
BUSY_PERCENT = 85
"""GPU activity that a well-fed training reaches."""
MOST_LEFT = 2
"""Findings that are named of those that still hold the script back."""
MOST_UNTRIED = 3
"""Knobs that are named of those for which the budget had no room."""
MOST_WAITING = 3
"""Lines of the script that are named; the record holds them all."""

EVALUATING = "evaluation_fusion"
"""The knob that acts on evaluations alone."""

_PLAIN_VERDICTS = {
    "too_few_steps": "The script ends before enough steps could be measured; nothing was tuned",
    "no_training": "No training was seen; nothing was tuned",
    "script_failed": "The script failed as it is; nothing was tuned",
    "not_measured": "What is to be improved was not measured; nothing was tuned",
    "dry_run": "Dry run: nothing was tuned",
    "interrupted": "Interrupted before a proof; nothing is claimed",
}

_LEARNING_RATE_RULE = (
    "the learning rate follows the batch size: linearly for SGD, by the square root for Adam kinds"
)


def verdict_sentence(report: TuningReport) -> str:
    """The verdict in one sentence."""
    training = "".join(_training(report))
    if report.verdict == "faster" and report.speedup is not None:
        whom = _made_to_fit(report)
        return f"{times(report.speedup)} faster{whom}{_evidence(report)}, {training}"
    saved = proven_factor(report)[0]
    if report.verdict in ("smaller", "saves_energy") and saved is not None:
        whom, price = _made_to_fit(report), _price(report)
        what = "Peak memory" if report.verdict == "smaller" else "Energy a sample"
        return f"{what} {times(saved)} smaller{whom}{_evidence(report)}{price}, {training}"
    if report.verdict == "fits" and report.baseline is not None:
        with_them = knobs_text(report.baseline.knobs)
        return (
            f"It runs out of memory as it is, and trains with {with_them}: batch and algorithm "
            "are unchanged, the loss was not compared"
        )
    if report.verdict == "no_gain":
        if report.untried:
            return (
                f"Nothing that was tried beats the script as it is{_best(report)}; the search "
                f"ended before {_listed(report.untried)} tried; try a larger `--budget` or "
                "`--max-trials`"
            )
        return f"Nothing beats the script as it is{_best(report)}"
    if report.verdict == "inconclusive":
        return _not_proven(report)
    sentence = _PLAIN_VERDICTS.get(report.verdict, report.verdict)
    if any(trial.failure is FailureKind.NO_INPUT for trial in report.trials):
        sentence = "Nothing was tuned"
    return f"{sentence}{_failure(report)}"


def _made_to_fit(report: TuningReport) -> str:
    """The reference of a speedup if the script as it is cannot be timed."""
    base = report.baseline.knobs if report.baseline is not None else {}
    return f" than with {knobs_text(base)}, without which it runs out of memory" if base else ""


def _price(report: TuningReport) -> str:
    return "" if report.speedup is None else f", at {times(report.speedup)} the throughput"


def proven_factor(report: TuningReport) -> tuple[float | None, tuple[float, float] | None]:
    """The factor of the objective, with its interval."""
    if report.objective == "memory":
        return report.memory_reduction, report.memory_reduction_confidence_interval
    if report.objective == "energy":
        return report.energy_reduction, report.energy_reduction_confidence_interval
    return report.speedup, report.speedup_confidence_interval


def proof_in_words(report: TuningReport) -> str:
    """What a proof rests on: "3 live pairs, p < 0.0001, same training"."""
    p = [] if report.p_value is None else [p_value(report.p_value)]
    return ", ".join([*_pairs(report.proof), *p, _training(report)[0]])


def _evidence(report: TuningReport) -> str:
    bounds = proven_factor(report)[1]
    parts = _interval_and_p(bounds, report.p_value, report.statistically_significant)
    return _bracket([*parts, *_pairs(report.proof)])


def _interval_and_p(
    bounds: tuple[float, float] | None, p: float | None, significant: bool
) -> list[str]:
    range_text = None if bounds is None or says_nothing(bounds) else interval(bounds)
    parts = [f"95 % interval {range_text}"] if range_text is not None else []
    if p is not None:
        parts.append(p_value(p))
    if not significant:
        parts.append("not significant")
    return parts


def _pairs(proof: Proof | None) -> list[str]:
    if proof is None or not proof.pairs:
        return []
    shown = count(len(proof.pairs), "live pair" if proof.live else "pair")
    return [shown]


def _bracket(parts: list[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""


def _training(report: TuningReport) -> tuple[str, str]:
    """Whether the training stays the same, and by what figures."""
    chosen = report.chosen.knobs if report.chosen is not None else {}
    changing = {
        knob for row in report.ladder if row.effect == Effect.TRAINING.value for knob in row.changes
    }
    if changing := changing & chosen.keys():
        return f"changes training ({', '.join(sorted(changing))})", ""
    guard = report.guard
    if guard is None:
        return "loss not compared", ""
    if not guard.accepted:
        return "but the loss guard rejects it", ""
    if guard.forward_only:
        return _outputs(guard)
    evaluation = _evaluation(guard, chosen.keys())
    if guard.loss_deviation is None:
        others = f" (compared: {', '.join(guard.compared)})" if guard.compared else ""
        return "loss not compared", f"{others}{evaluation}"
    noise = f" (noise {percent(guard.noise)})" if guard.noise is not None else ""
    return "same training", f": loss within {percent(guard.loss_deviation)}{noise}{evaluation}"


def _outputs(guard: GuardVerdict) -> tuple[str, str]:
    """The comparison of outputs of a script that only infers."""
    off, agreeing = guard.output_deviation, guard.output_agreement
    seen = [] if off is None else [f"within {percent(off)}"]
    seen += [] if agreeing is None else [f"{percent(agreeing)} of classes and integers agree"]
    if seen:
        return "same outputs", f": {', '.join(seen)}"
    why = guard.outputs_not_compared
    return "outputs not compared", f": {why}" if why else ""


def _evaluation(guard: GuardVerdict, knobs: Collection[str]) -> str:
    """The comparison of evaluations of a script that trains."""
    if guard.output_deviation is not None:
        return f"; evaluation outputs within {percent(guard.output_deviation)}"
    unseen = "outputs" not in guard.compared and EVALUATING in knobs
    return "; evaluation not seen" if unseen else ""


def _listed(knobs: Sequence[str]) -> str:
    """Knobs that were not tried, the first of them by name: "compile, tf32 and 2 more were"."""
    rest = len(knobs) - MOST_UNTRIED
    named = ", ".join(knobs[:MOST_UNTRIED]) + (f" and {rest} more" if rest > 0 else "")
    return f"{named} {'was' if len(knobs) == 1 else 'were'}"


def _best(report: TuningReport) -> str:
    if report.speedup is None or report.objective != "throughput":
        return ""
    guard, proof = report.guard, report.proof
    if guard is not None and not guard.accepted:
        reasons = "; ".join(one_line(reason) for reason in guard.reasons)
        significance = ["rejected by the loss guard" + (f": {reasons}" if reasons else "")]
    else:
        proven = proof.statistically_significant if proof else report.statistically_significant
        significance = [] if proven else ["not significant"]
    return _bracket([f"best: {signed_percent(report.speedup - 1)}", *significance])


def _not_proven(report: TuningReport) -> str:
    """Changes that were left unproven, why, and what to do."""
    why = one_line(report.reason or "the budget ended first")
    so_far = _so_far(report)
    if report.reason or not so_far:
        return f"Not proven: {why}{so_far}"
    return f"Not proven yet: {why}{so_far}; a larger `--budget` has room for more pairs"


def _so_far(report: TuningReport) -> str:
    """An interval if it says anything, else the gains of the pairs."""
    bounds, proof = report.speedup_confidence_interval, report.proof
    if bounds is not None and not says_nothing(bounds) and report.speedup is not None:
        parts = [f"so far {times(report.speedup)}", f"95 % interval {interval(bounds)}"]
        return _bracket([*parts, *_pairs(proof)])
    gains = report.gains_so_far
    if not gains or report.objective != "throughput":
        return ""
    seen = " and ".join(map(times, gains))
    return _bracket([f"so far {seen} in {count(len(gains), 'pair')}"])


def _failure(report: TuningReport) -> str:
    """Why the script as it is failed, in its own words."""
    if report.verdict != "script_failed":
        return ""
    reasons = [one_line(t.reason) for t in report.trials if t.reason and not t.knobs]
    return f": {reasons[-1]}" if reasons else ""


def remarks(report: TuningReport) -> list[str]:
    """Remarks beside the verdict: a loss that is not finite, ceilings, lines that wait, others."""
    said = (
        second_epoch_sentence(report),
        nonfinite_sentence(report),
        ceilings_sentence(report.ceilings) if report.ceilings is not None else None,
        waiting_sentence(report),
        load_sentence(report),
        others_on_gpu_sentence(report),
    )
    return [*activity_sentences(report), *(sentence for sentence in said if sentence)]


def second_epoch_sentence(report: TuningReport) -> str | None:
    """A sentence if the gain is one of the loader, in the first epoch alone; None if it is not."""
    chosen = report.chosen.knobs if report.chosen is not None else {}
    needed = report.second_epoch_budget
    if report.verdict != "faster" or needed is None or not any(map(_loads, chosen)):
        return None
    return (
        "the gain is that of the first epoch: if the data set keeps samples, later ones gain less; "
        f"`--budget {math.ceil(needed / 60)}m` measures the second"
    )


def _loads(knob: str) -> bool:
    return knob.startswith("loader_")


def activity_sentences(report: TuningReport) -> list[str]:
    """How busy the GPU is before and after, and what still holds the script back."""
    if report.verdict != "faster":
        return []
    found = [finding_sentence(f) for f in report.findings_left if f.severity >= WARNING]
    before, after = (
        None if side is None else side.gpu_utilization_percent
        for side in (report.baseline, report.chosen)
    )
    said = []
    if before is not None and after is not None:
        below = f", still below {BUSY_PERCENT} %" if after < BUSY_PERCENT else ""
        said.append(f"GPU activity {before:.0f} % → {after:.0f} %{below}")
    return said + [f"still: {sentence}" for sentence in found[:MOST_LEFT]]


def nonfinite_sentence(report: TuningReport) -> str | None:
    """A sentence if the script as it is computes NaN or infinite losses; None if it does not."""
    if report.loss_nonfinite_from is None:
        return None
    return (
        f"the script's own loss is not finite from step {report.loss_nonfinite_from} on: "
        "gpurun cannot compare the training; `gpurun --locate-nonfinite` finds the cause"
    )


def load_sentence(report: TuningReport) -> str | None:
    """A sentence if other programs disturbed the trials; None if not, or if unknown."""
    load = report.other_load
    if report.verdict not in MEASURED:
        return None
    if load is None or load.cpu_percent <= OTHERS_SHARE * 100 * load.cores:
        return None
    used = f"{load.cpu_percent / 100:.1f} of {count(load.cores, 'core')}"
    cost = "widen intervals" if report.proof is not None else "hide small gains"
    said = f"other programs used {used} during the trials, which can {cost}"
    if load.cpu_percent < 100 * CROWDED_SHARE * load.cores:
        return said
    return f"{said}; give each its own cores (taskset): threads may wait for one another"


def others_on_gpu_sentence(report: TuningReport) -> str | None:
    """A sentence if others used the GPU beside trials; None if not, or if unknown."""
    told = [t.foreign_processes for t in report.trials if t.foreign_processes is not None]
    disturbed = sum(1 for others in told if others)
    if not disturbed or report.verdict not in MEASURED:
        return None
    return (
        f"other processes were on the GPU in {disturbed} of {count(len(told), 'trial')}: "
        "the figures hold for a shared GPU, and small gains may be hidden"
    )


def waiting_sentence(report: TuningReport) -> str | None:
    """The script's own lines that wait for the GPU in every step; None where there are none."""
    lines = report.waits
    if not lines:
        return None
    named = [f"{line.where} ({_calls(line)})" for line in lines[:MOST_WAITING]]
    more = [f"{len(lines) - MOST_WAITING} more"] if len(lines) > MOST_WAITING else []
    first, last = [*named, *more][:-1], [*named, *more][-1]
    said = f"{', '.join(first)} and {last} wait" if first else f"{last} waits"
    them = "them" if first else "it"
    return (
        f"{said} for the GPU in every step: gpurun does not edit {them}; "
        f"move {them} out of the loop, or run {them} only every n steps"
    )


def _calls(line: WaitingLine) -> str:
    each = line.calls.items()
    return ", ".join(call if n <= 1 else f"{call} {n:g} times" for call, n in each)


def larger_batch_sentences(report: TuningReport) -> list[str]:
    """The proof of the second finalist and what else it changes; its row says how to apply it."""
    larger = report.larger_batch
    if larger is None:
        return []
    if report.chosen is not None and report.chosen.knobs == larger.knobs:
        return [f"  also changes: {one_line(effect)}" for effect in larger.side_effects]
    gain = f"with batch {larger.batch_size}: {factor(larger.speedup)}{_larger_evidence(larger)}"
    if larger.guard is not None and not larger.guard.accepted:
        reasons = "; ".join(one_line(reason) for reason in larger.guard.reasons)
        return [f"{gain}, but the loss guard rejects it: {reasons}"]
    lines = [gain, *(f"  also changes: {one_line(effect)}" for effect in larger.side_effects)]
    if not any("learning rate" in effect.lower() for effect in larger.side_effects):
        lines.append(f"  {_LEARNING_RATE_RULE}")
    return lines


def _larger_evidence(larger: LargerBatch) -> str:
    proof = larger.proof
    if proof is None:
        return " (not proven)"
    parts = _interval_and_p(
        proof.speedup_confidence_interval, proof.p_value, proof.statistically_significant
    )
    return _bracket([*parts, *_pairs(proof)])
