"""Do root modules return the same without gradients? The guard's comparison of outputs.

Calls are compared by number, where both were given the same inputs. Measurements set the tolerance
of floating outputs: repeats of the script as it is, and for another rounding a trial of it that
rounds as half precision does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpurun.knobs.api import Effect
from gpurun.measure.optional_figures import known
from gpurun.records.messages.model_outputs import OutputsEvent, TensorFigures
from gpurun.stats.two_samples import chance_of_many
from gpurun.tuner.guard.first_step_checks import starts_alike
from gpurun.tuner.guard.output_differences import (
    Call,
    Difference,
    OutputTensor,
    calls_of,
    differences,
    of_group,
    varying_shapes,
    without,
)
from gpurun.tuner.guard.training_evidence import (
    UNKNOWN_ROUNDING,
    Comparison,
    Evidence,
    RoundingReason,
)

ROUNDING = 2.0
"""A change that rounds may differ this many times as much as the trial that only rounds."""
REPEATS = 4.0
"""Any change may differ this many times as much as two repeats of the script."""
ONE_CALL = 3.0
"""A single call may differ this many times as much as all calls together."""
RANDOM = 0.02
"""Outputs of repeats that are further apart than this are random."""
CLEAR = 5.0
"""No error is this many times its usual size."""
OTHER_SEEDS = 1.5
"""Trainings that drew other numbers may differ this many times as much as other seeds do."""
SPREAD = 3
"""With fewer pairs of trials, the difference between seeds is not known."""
OTHER_DRAWS = "training drew other random numbers before"
TRAINED = 0.1
"""After training steps weights differ by rounding: evaluations may then be off this much."""
LEAST_SHARE = 0.5
"""At least so many calls of a script that only infers must be compared, or none counts."""
DISAGREEING = {Effect.PIPELINE: 0.002, Effect.NUMERICS: 0.01}
"""Part of integers, and of rows' largest numbers, that may differ whatever the reference shows."""
SIGMAS = 2.0
"""And so many standard errors of that part."""
BY_CHANCE = 1e-3
"""More than the reference shows is put down to chance if it is more probable than this."""
MOST_TURNED = 0.5
"""No rounding turns more than this part, whatever the reference shows."""
SAME_INPUT = {Effect.PIPELINE: 1e-4, Effect.NUMERICS: 0.02}
"""Relative RMS difference of floating inputs that count as the same: they may be computed too."""
VANISHED = 1e-6
"""Squares of all numbers that are this small against the baseline's are those of zeros."""


Measure = Callable[[Difference], float]


@dataclass(frozen=True)
class OutputComparison:
    """The result of comparing outputs.

    `deviation`: the largest relative RMS difference of a floating tensor. `agreement`: the smallest
    part of integers, or of rows' largest numbers, that agree. Both are None where nothing was
    compared; then `why_not` says why.
    """

    deviation: float | None = None
    agreement: float | None = None
    reasons: tuple[str, ...] = ()
    why_not: str | None = None

    @property
    def compared(self) -> bool:
        """True if any output was compared."""
        return self.deviation is not None or self.agreement is not None


def compare_outputs(
    baselines: Sequence[Evidence],
    candidates: Sequence[Evidence],
    effect: Effect,
    rounded: Evidence | None,
) -> OutputComparison:
    """Compare what candidate trials returned with the baseline's; the worst of them counts."""
    if effect is Effect.TRAINING:
        return OutputComparison(why_not="a change of training may alter them")
    why_not = unrepeatable(baselines)
    found = [_compare(Comparison(c, baselines, effect, rounded), why_not) for c in candidates]
    return _worst(found, dict.fromkeys(reason for f in found for reason in f.reasons[:1]))


def _worst(found: Sequence[OutputComparison], reasons: Iterable[str]) -> OutputComparison:
    return OutputComparison(
        deviation=max(known(f.deviation for f in found), default=None),
        agreement=min(known(f.agreement for f in found), default=None),
        reasons=tuple(reasons),
        why_not=next(iter(known(f.why_not for f in found)), None),
    )


def unrepeatable(baselines: Sequence[Evidence]) -> str | None:
    """Why outputs of the script as it is cannot be compared with anything; None if they can."""
    if not any(b.outputs for b in baselines):
        return "no call of a model without gradients was seen"
    if not any(e.outputs for b in baselines for e in b.outputs):
        return "the model returns no tensors"
    figures = (figure for b in baselines for e in b.outputs for figure in e.outputs)
    unread = next((f for f in figures if not f.values and 0 not in f.shape), None)
    if unread is not None:
        return f"{unread.path or 'the output'} ({unread.dtype}) cannot be read"
    for ours, theirs in _repeats(baselines):
        calls = calls_of(ours, theirs)
        if calls and not any(_same_inputs(a, b, Effect.PIPELINE) for a, b in calls):
            return "repeats of the script give its model other inputs"
        for difference in differences(calls).values():
            apart = difference.relative
            if apart is not None and apart > RANDOM:
                return f"they are random: repeats of the script differ by {apart:.1%}"
    return None


def incomparable(baselines: Sequence[Evidence]) -> str | None:
    """Why nothing of a script that only infers can be compared; None if it can, or if it trains."""
    plain = [b for b in baselines if not b.rounded]
    inferring = bool(plain) and all(b.forward_only for b in plain)
    return unrepeatable(plain) if inferring else None


def _repeats(baselines: Sequence[Evidence]) -> list[tuple[Evidence, Evidence]]:
    return [
        (b, a)
        for number, a in enumerate(baselines)
        for b in baselines[number + 1 :]
        if a.seed == b.seed and a.outputs and b.outputs
    ]


# -- one candidate ---------------------------------------------------------------------------------


def _compare(case: Comparison, why_not: str | None) -> OutputComparison:
    partner = next((p for p in case.partners if p.outputs), None)
    if partner is None:
        return OutputComparison(why_not=why_not or "no baseline trial of the same seed shows any")
    calls = calls_of(case.candidate, partner)
    if not calls:
        if case.candidate.forward_only:
            return OutputComparison(reasons=("no output was seen",), why_not=why_not)
        return OutputComparison(why_not=why_not or "no evaluation was seen in both trials")
    varying = varying_shapes(case.baselines)
    plain = _plainly_wrong(calls, varying)
    if plain is not None:
        return OutputComparison(reasons=(plain,), why_not=why_not)
    if why_not is not None:
        return OutputComparison(why_not=why_not)
    calls = without(varying, calls)
    if not any(theirs.outputs for _, theirs in calls):
        return OutputComparison(why_not="the shapes of all outputs depend on the model's numbers")
    same = [call for call in calls if _same_inputs(*call, case.effect)]
    if len(same) < len(calls):
        reason = _other_inputs(case, calls)
        if reason is not None:
            return OutputComparison(reasons=(reason,))
        if not same:
            return OutputComparison(why_not="the model is given other inputs than in the baseline")
    seen = len(partner.outputs)
    if case.candidate.forward_only and len(same) < LEAST_SHARE * seen:
        return OutputComparison(why_not=f"{len(same)} of {seen} calls only could be compared")
    return _judged(case, same)


def _judged(case: Comparison, calls: list[Call]) -> OutputComparison:
    """Calls before any training step and after some are judged apart."""
    found = []
    for trained in (False, True):
        group = [call for call in calls if bool(call[1].trained) is trained]
        if group and trained and not _trained_alike(case):
            found.append(_among_seeds(case, group))
        elif group:
            found.append(_group(case, group, trained))
    return _worst(found, (reason for f in found for reason in f.reasons))


def _group(case: Comparison, calls: list[Call], trained: bool) -> OutputComparison:
    bounds = _Bounds(case, trained)
    apart = differences(calls)
    reasons = [
        reason
        for place, difference in apart.items()
        if (reason := bounds.objection(place, difference)) is not None
    ]
    reasons += [reason for call in calls if (reason := bounds.sizes(call)) is not None]
    if reasons and _draws_otherwise(case, calls):
        return OutputComparison(why_not="the model draws random numbers, and drew others")
    known = [d.relative for d in apart.values() if d.relative is not None]
    rates = [1 - d.disagreement for d in apart.values() if d.decisions]
    return OutputComparison(
        deviation=max(known, default=None),
        agreement=min(rates, default=None),
        reasons=tuple(reasons),
    )


def _trained_alike(case: Comparison) -> bool:
    """True if training drew what the baseline's did: then rounding alone parts the weights.

    Other augmentations, or another dropout (as kernels of another precision draw it), lead to other
    weights. The first gradients show dropout.
    """
    return case.same_data and (case.same_draws or starts_alike(case))


def _among_seeds(case: Comparison, calls: list[Call]) -> OutputComparison:
    """Trainings that drew other numbers: trials of other seeds show how far those are apart."""
    spread = [
        differences(of_group(a, b, trained=True))
        for a, b in combinations(case.baselines, 2)
        if a.seed != b.seed and a.outputs and b.outputs
    ]
    if len(spread) < SPREAD:
        return OutputComparison(why_not=OTHER_DRAWS)
    reasons = []
    for place, difference in differences(calls).items():
        usual = [d[place] for d in spread if place in d]
        apart, widest = difference.relative, max((d.relative or 0.0 for d in usual), default=None)
        if apart is not None and widest is not None and apart > OTHER_SEEDS * widest:
            reasons.append(
                f"{place} deviates by {apart:.2%} (trials of other seeds by {widest:.2%})"
            )
    return OutputComparison(reasons=tuple(reasons), why_not=None if reasons else OTHER_DRAWS)


class _Bounds:
    """The tolerance of outputs, by place."""

    def __init__(self, case: Comparison, trained: bool) -> None:
        self._effect = case.effect
        self._trained = trained
        self._noise = [
            differences(of_group(ours, theirs, trained))
            for ours, theirs in _repeats(case.baselines)
        ]
        self._reference = _reference(case, trained)

    def objection(self, place: OutputTensor, difference: Difference) -> str | None:
        """Why a tensor is too far off, None if it is not."""
        apart, allowed = difference.relative, self._allowed(place)
        tempered = self._allowed(place, lambda d: d.relative_tempered)
        if apart is not None and apart > allowed and difference.relative_tempered > tempered:
            return self._beyond(f"{place} deviates by {apart:.2%}", allowed)
        worst, once = difference.worst_call, self._once(place, allowed, lambda d: d.worst_call)
        tempered = self._once(place, tempered, lambda d: d.worst_tempered)
        if worst > once and difference.worst_tempered > tempered:
            return self._beyond(f"{place} deviates by {worst:.2%} in one call", once)
        wrong, part = difference.disagreement, self._disagreeing(place, difference)
        if part is not None:
            return self._beyond(f"{place} agrees in {1 - wrong:.1%} only", 1 - part)
        lead, most = difference.clearest_turn, self._turning(place, allowed)
        if lead > most and not self._trained:
            said = f"{place} has another largest number in a row where it led by {lead:.1%}"
            return self._beyond(said, most)
        return None

    def _turning(self, place: OutputTensor, allowed: float) -> float:
        """The lead that rounding may turn: both of two numbers are rounded."""
        shown = self._reference[place].clearest_turn if place in self._reference else 0.0
        return max(CLEAR * math.sqrt(2) * allowed / ROUNDING, ROUNDING * shown)

    def sizes(self, call: Call) -> str | None:
        """Compare what sampling misses: the norm of a floating tensor, the sum of another one."""
        for ours, theirs in zip(call[0].outputs, call[1].outputs, strict=True):
            place = OutputTensor(call[1].module, theirs.path, theirs.dtype)
            if ours.norm is None or theirs.norm is None:
                continue
            if not place.floating:
                if self._effect is Effect.PIPELINE and ours.norm != theirs.norm:
                    return f"{place} adds up to {ours.norm:g} instead of {theirs.norm:g}"
                continue
            allowed = self._once(place, self._allowed(place), lambda d: d.worst_call)
            apart = abs(ours.norm - theirs.norm)
            if apart > allowed * theirs.norm:
                off = apart / theirs.norm if theirs.norm else math.inf
                return self._beyond(f"the norm of {place} deviates by {off:.2%}", allowed)
        return None

    def _allowed(self, place: OutputTensor, of: Measure = lambda d: d.relative or 0.0) -> float:
        noise = max((of(d[place]) for d in self._noise if place in d), default=0.0)
        allowed = [place.tight, REPEATS * noise, TRAINED if self._trained else 0.0]
        if place in self._reference:
            allowed.append(ROUNDING * of(self._reference[place]))
        return max(allowed)

    def _once(self, place: OutputTensor, allowed: float, of: Measure) -> float:
        """In a single call: so much of what all calls may, or as the reference's worst call."""
        worst = of(self._reference[place]) if place in self._reference else 0.0
        return max(ONE_CALL * allowed, ROUNDING * worst)

    def _disagreeing(self, place: OutputTensor, difference: Difference) -> float | None:
        """The part of decisions that may differ, if more do; None if they do not.

        In a state of many like numbers a deviation that is allowed turns many of the largest: as
        many more than in the reference as it is larger, and of few by chance still more.
        """
        wrong, decisions = difference.disagreeing, difference.decisions
        noise = max((d[place].disagreement for d in self._noise if place in d), default=0.0)
        part = max(TRAINED if self._trained else DISAGREEING[self._effect], REPEATS * noise)
        part = min(part, 1.0)
        part += SIGMAS * math.sqrt(part * (1 - part) / max(1, decisions))
        if difference.disagreement <= part:
            return None
        shown = self._reference.get(place)
        if shown is None or not shown.disagreeing:
            return part
        times = max(ROUNDING, self._allowed(place) / (shown.relative or math.inf))
        usual = min(MOST_TURNED, times * (shown.disagreeing + 1) / shown.decisions)
        by_chance = chance_of_many((wrong, decisions), usual)
        return None if by_chance >= BY_CHANCE else max(part, usual)

    def _beyond(self, said: str, allowed: float) -> str:
        """The reason where more is off than is allowed."""
        if self._effect is Effect.NUMERICS and not self._reference:
            return RoundingReason(f"{said} (allowed {allowed:.2%}; {UNKNOWN_ROUNDING})")
        return f"{said} (allowed {allowed:.2%})"


def _reference(case: Comparison, trained: bool) -> dict[OutputTensor, Difference]:
    """The distance of the trial that only rounds from the script as it is; empty if there is
    none."""
    rounded = case.rounded if case.effect is Effect.NUMERICS else None
    plain = next(
        (b for b in case.baselines if rounded and b.seed == rounded.seed and b.outputs), None
    )
    if rounded is None or plain is None:
        return {}
    calls = of_group(rounded, plain, trained)
    return differences([call for call in calls if _same_inputs(*call, Effect.NUMERICS)])


# -- what is wrong whatever the inputs are ---------------------------------------------------------


def _plainly_wrong(calls: Sequence[Call], varying: Collection[OutputTensor]) -> str | None:
    for ours, theirs in calls:
        reason = _other_kind(ours, theirs, varying)
        if reason is not None:
            return reason
        if ours.overwritten and theirs.overwritten is False:
            return f"the output of call {ours.call} held other numbers after the next call"
    for place, difference in differences(calls).items():
        if difference.size and difference.ours < VANISHED * difference.size:
            return f"{place} is zero"
    return _in_training_mode(calls)


def _in_training_mode(calls: Sequence[Call]) -> str | None:
    """Dropout, or batch statistics, that the baseline leaves out of calls without gradients."""
    drawn = [(ours.draws, theirs.draws) for ours, theirs in calls]
    moved = [(ours.moved, theirs.moved) for ours, theirs in calls]
    for what, pairs in (("draws random numbers", drawn), ("changes its buffers", moved)):
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if known and not any(b for _, b in known) and 2 * sum(a for a, _ in known) > len(known):
            return f"{calls[0][1].module} {what} in calls without gradients"
    return None


def _other_kind(
    ours: OutputsEvent, theirs: OutputsEvent, varying: Collection[OutputTensor]
) -> str | None:
    """Other containers, types, shapes, or numbers that are not finite."""
    if ours.structure != theirs.structure or len(ours.outputs) != len(theirs.outputs):
        return f"{theirs.module} returns {ours.structure} instead of {theirs.structure}"
    sized = [t.shape for t in ours.inputs] == [t.shape for t in theirs.inputs]
    for mine, other in zip(ours.outputs, theirs.outputs, strict=True):
        place = OutputTensor(theirs.module, other.path, other.dtype)
        if mine.dtype != other.dtype:
            return f"{place} is {mine.dtype} instead of {other.dtype}"
        free = theirs.trained and place in varying
        if sized and mine.shape != other.shape and not free:
            return f"{place} has the shape {list(mine.shape)} instead of {list(other.shape)}"
        if sized and mine.not_finite > other.not_finite:
            return f"{place} is not finite in call {ours.call}"
    return None


# -- inputs ----------------------------------------------------------------------------------------


def _same_inputs(ours: OutputsEvent, theirs: OutputsEvent, effect: Effect) -> bool:
    if len(ours.inputs) != len(theirs.inputs):
        return False
    tolerance = SAME_INPUT[effect]
    if theirs.trained:  # an input may be computed: a recurrent state, or a layer's called by itself
        tolerance = TRAINED if effect is Effect.NUMERICS else SAME_INPUT[Effect.NUMERICS]
    return all(_same(a, b, tolerance) for a, b in zip(ours.inputs, theirs.inputs, strict=True))


def _same(ours: TensorFigures, theirs: TensorFigures, tolerance: float) -> bool:
    """True if a tensor holds the same numbers but for rounding; integers must be equal."""
    if ours == theirs:
        return True
    place = OutputTensor("", theirs.path, theirs.dtype)
    if (ours.path, ours.dtype, ours.shape) != (theirs.path, theirs.dtype, theirs.shape):
        return False
    difference = Difference()
    difference.add(ours, theirs)
    return place.floating and (difference.relative or 0.0) <= tolerance


def _other_inputs(case: Comparison, calls: Sequence[Call]) -> str | None:
    """Why other inputs than in the baseline are a mistake; None where they may differ."""
    call = next(theirs for ours, theirs in calls if not _same_inputs(ours, theirs, case.effect))
    numerics = case.effect is Effect.NUMERICS
    if _random_data(case.baselines):
        return None
    if numerics and call.trained and any(a.draws for b in case.baselines for a in b.audits):
        return None  # training drew other random numbers before (dropout in a compiled model)
    for other in (*case.partners, *([case.rounded] if numerics and case.rounded else [])):
        theirs = next((e for e in other.outputs if e.call == call.call), None)
        if theirs is not None and not _same_inputs(theirs, call, case.effect):
            return None
    said = f"call {call.call} of {call.module} is given other inputs than in the baseline"
    unknown = numerics and not case.rounded
    return RoundingReason(f"{said} ({UNKNOWN_ROUNDING})") if unknown else said


def _random_data(baselines: Sequence[Evidence]) -> bool:
    return any(not all(s.repeatable) for b in baselines for s in b.samples if s.repeatable)


def _draws_otherwise(case: Comparison, calls: Sequence[Call]) -> bool:
    """True if the model may have drawn other random numbers than in the baseline."""
    free = case.effect is Effect.NUMERICS or _random_data(case.baselines)
    return free and any(theirs.draws for _, theirs in calls)
