"""Asks whether trials still train as the script does, and launches what the answer needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.records.tuning import GuardVerdict, TrialPurpose
from gpurun.same.distances import Baselines
from gpurun.same.guard_record import guard_verdict
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import REPEATS, ROUNDING, SEEDS, STILL
from gpurun.same.sameness_table import ENOUGH, Kind
from gpurun.same.verdict import PIPELINE_ONLY, Sameness, judge
from gpurun.tuner.phases import LATE_SHARE, Phases
from gpurun.tuner.tuning_trial import Trial, TrialRequest

SEEDS_SHARE = 0.25
"""Trials under other seeds may take this part of the budget that is left."""
MOST_DRAWS = ENOUGH
"""Trials that only round. What they do to a training that multiplies it differs from draw to draw
by a factor of ten."""
HIDDEN = f"gradients not compared: the model's random numbers hide them; {PIPELINE_ONLY}"
Launches = Sequence[LaunchAudit]


@dataclass
class AuditLaunches:
    """The launches that a verdict may ask for. `launch` runs one, `note` hears why.

    They have the settings `base` of the script as it is, those of `still` perhaps a candidate's.
    `rule`: the length of other trials.
    """

    launch: Callable[[TrialRequest], Trial]
    note: Callable[[str], None]
    base: Mapping[str, Any]
    rule: StopRule
    phases: Phases

    def repeated(self) -> Launches:
        """One more under the first seed."""
        self.note(f"its repeats differ: {ENOUGH} of them show how far, so it is launched once more")
        return self._shown(TrialRequest(TrialPurpose.REPEAT, self.base, self.rule))

    def reseeded(self) -> Launches:
        """Under other seeds, as many as tell what random draws alone do to the loss.

        Empty where they would take too large a part of the budget left, or one shows nothing.
        """
        others = range(1, ENOUGH)
        if len(others) > SEEDS_SHARE * self.phases.launches_left():
            return []
        self.note("is it other random draws alone? trials under other seeds show it")
        asked = [TrialRequest(TrialPurpose.SEEDS, self.base, self.rule, seed) for seed in others]
        found = self._shown(*asked)
        return found if len(found) == len(others) else []

    def rounded(self, known: Launches, curve_steps: int, draw: int) -> Launches:
        """With half precision's rounding alone, as far as anything is compared with it.

        `known`: other launches of the script as it is; `curve_steps`: so many steps at least.
        Without the first draw there may be nothing left to prove: it is launched in any case.
        """
        if draw and self.phases.launches_left(LATE_SHARE) < 1:
            return []
        how = "another one, which rounds otherwise," if draw else "a trial that only rounds"
        self.note(f"is it rounding alone? {how} shows it")
        _, seed = first_evaluation(known)
        rule = rounding_rule(self.rule, known, curve_steps)
        asked = TrialRequest(TrialPurpose.ROUNDING, self.base, rule, seed)
        return self._shown(replace(asked, rounded=True, rounding_draw=draw))

    def still(self, settings: Mapping[str, Any] | None, rounded: bool = False) -> Launches:
        """Where the model draws no random numbers, with these settings (None: as it is).

        The verdict on what was proven depends on it: it may be as late as a pair that has begun,
        and compile in silence until then.
        """
        whose = "these settings" if settings is not None else "the script as it is"
        whose += " that only rounds" if rounded else ""
        self.note(f"dropout hides gradients: a trial of {whose}, without dropout, shows them")
        used = self.base if settings is None else settings
        asked = TrialRequest(TrialPurpose.STILL, used, audited_alone(self.rule), rounded=rounded)
        late = self.phases.latest
        return self._shown(replace(asked, still=True, deadline=late, patience_seconds=math.inf))

    def _shown(self, *requests: TrialRequest) -> Launches:
        audits = [self.launch(request).evidence for request in requests]
        return [audit for audit in audits if audit is not None]


class TrainingJudge:
    """Compares trials with those of the script as it is (`baselines`, to which it adds).

    It launches only what a verdict says is missing.
    """

    def __init__(self, baselines: list[LaunchAudit], launches: AuditLaunches) -> None:
        self.baselines = baselines
        self._launches = launches
        self._once = {REPEATS: launches.repeated, SEEDS: launches.reseeded}
        self._asked_steps = -1
        self._stills: list[tuple[Mapping[str, Any], Launches]] = []
        """Settings, and their launches without random numbers: launched once."""
        self._draws = 0
        """Draws of the trial that only rounds: asked for since it was last as long as needed."""

    def judge(
        self,
        candidates: Launches,
        effect: Effect,
        repeats: Launches = (),
        settings: Mapping[str, Any] | None = None,
    ) -> GuardVerdict:
        """`repeats`: further trials of the script as it is, launched beside the candidates.

        With the candidates' `settings` the verdict is final: where random numbers of the model hide
        its gradients and updates, trials without them are launched.
        """
        stills = next((shown for known, shown in self._stills if known == settings), None)
        while True:
            known = [*self.baselines, *repeats]
            shown = [*candidates, *(stills or ())]
            found = judge(known, shown, effect)
            if self._learn(found, shown, repeats):
                continue
            if settings is None or STILL not in found.missing:
                return guard_verdict(found, known, candidates)
            if stills is not None:
                hidden = replace(found, reasons=(*found.reasons, HIDDEN))
                return guard_verdict(hidden, known, candidates)
            if not Baselines.of(self.baselines).still:
                self._add(self._launches.still(None))
            stills = self._launches.still(settings)
            self._stills.append((settings, stills))

    def loss_deviation(self, trial: Trial, effect: Effect) -> float | None:
        """Of the loss in one trial, whatever the verdict; nothing is launched for it."""
        if trial.evidence is None:
            return None
        found = judge(self.baselines, [trial.evidence], effect)
        return guard_verdict(found, self.baselines, [trial.evidence]).loss_deviation

    def _learn(self, found: Sameness, candidates: Launches, repeats: Launches) -> bool:
        """Launch what is missing; true if any of it showed anything."""
        for source in sorted(found.missing & self._once.keys()):
            if self._add(self._once.pop(source)()):
                return True
        if ROUNDING not in found.missing:
            return False
        known = [*self.baselines, *repeats]
        if any(c.still for c in candidates) and not any(b.still and b.rounded for b in known):
            if self._add(self._launches.still(None, rounded=True)):
                return True
        off = candidates if Kind.CURVE in found.failing else ()
        shared = Baselines.of(known).shared_steps
        curve = min((shared(c) for c in off if not c.still), default=0)
        if self.learn_rounding(repeats, curve):
            return True
        if not _rounding_moves_the_loss(found) or not 0 < self._draws < MOST_DRAWS:
            return False
        self._draws += 1
        known = [*self.baselines, *repeats]
        return self._add(self._launches.rounded(known, curve, self._draws - 1))

    def learn_rounding(self, repeats: Launches = (), curve_steps: int = 0) -> bool:
        """Ask for the trial that only rounds, unless one went as far; true if it showed anything.

        It goes as far as the first evaluation after training steps that any trial shows, under the
        seed of that trial, and for `curve_steps` steps at least.
        """
        known = [*self.baselines, *repeats]
        steps = max(first_evaluation(known)[0], curve_steps)
        if steps <= self._asked_steps:
            return False
        self._asked_steps = steps
        shown = self._launches.rounded(known, curve_steps, 0)
        draws = [b for b in self.baselines if b.rounded and not b.still]
        before = max((len(b.losses) for b in draws), default=0)
        if not shown or any(len(one.losses) < before for one in shown):  # it was cut short
            return False
        self.baselines[:] = [b for b in self.baselines if b.still or not b.rounded]
        self._draws = 1
        return self._add(shown)

    def _add(self, shown: Launches) -> bool:
        self.baselines += shown
        return bool(shown)


def _rounding_moves_the_loss(found: Sameness) -> bool:
    """True if rounding that goes further by chance may explain the loss, and all else is well."""
    curve = found.worst(Kind.CURVE)
    if found.failing != {Kind.CURVE} or curve is None or curve.floor is None:
        return False
    return curve.floor.source == ROUNDING and curve.noise > Kind.CURVE.value.least


def first_evaluation(shown: Launches) -> tuple[int, int]:
    """Training steps before the first evaluation that follows any, and the seed of its trial.

    Zeros if no trial shows one.
    """
    plain = Baselines.of(shown).plain
    return min(((e.trained, a.seed) for a in plain for e in a.outputs if e.trained), default=(0, 0))


def rounding_rule(rule: StopRule, baselines: Launches, curve_steps: int = 0) -> StopRule:
    """The length of a trial that only rounds: as far as anything is compared with it.

    It goes beyond the evaluation of a training, and as far as `curve_steps`. A script that only
    infers has its first calls looked at; with fewer of them the reference would miss calls that
    rounding moves most.
    """
    trained, _ = first_evaluation(baselines)
    if trained or curve_steps:
        steps = max(trained + 1, curve_steps)
        return replace(
            rule, min_steps=max(rule.min_steps, steps), max_steps=max(rule.max_steps, steps)
        )
    return audited_alone(rule, OUTPUT_CALLS if any(b.forward_only for b in baselines) else 0)


def audited_alone(rule: StopRule, least: int = 0) -> StopRule:
    """The rule without a measured window; `least`: so many steps before its end."""
    steps = max(rule.audit_steps, least) + 1
    return replace(rule, min_steps=steps, max_steps=steps, min_seconds=0.0)
