"""Asks whether trials still train as the script does, and launches what the answer needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.records.tuning import GuardVerdict, TrialPurpose
from gpurun.same.distances import Baselines
from gpurun.same.guard_record import guard_verdict
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import REPEATS, ROUNDING, SEEDS, STILL, Kind
from gpurun.same.sameness_table import ENOUGH, TABLE
from gpurun.same.verdict import PIPELINE_ONLY, Sameness, judge
from gpurun.tuner.tuning_trial import Trial, TrialRequest

SEEDS_SHARE = 0.25
"""Trials under other seeds may take this part of the budget that is left."""
MOST_DRAWS = 3
"""Trials that only round. What they do to a training that multiplies it differs from draw to draw
by a factor of ten."""

HIDDEN = f"gradients not compared: the model's random numbers hide them; {PIPELINE_ONLY}"

Launches = Sequence[LaunchAudit]
Still = Callable[[Mapping[str, Any] | None, bool], LaunchAudit | None]


class TrainingJudge:
    """Compares trials with those of the script as it is (`baselines`, to which it adds).

    It launches only what a verdict says is missing. `rounded(shown, curve_steps, draw)`: what a
    trial shows that only rounds, goes as far as these evaluate, and for so many steps at least. It
    is called again where a later trial evaluates after more steps, and with other draws where
    rounding moves the loss far and a candidate still further. `repeated()`, `reseeded()`: further
    trials of the script as it is, under the same seed and under others. `still(settings, rounded)`:
    a trial whose model draws no random numbers, with these settings (None: of the script as it is).
    """

    def __init__(
        self,
        baselines: list[LaunchAudit],
        rounded: Callable[[Launches, int, int], LaunchAudit | None],
        reseeded: Callable[[], list[LaunchAudit]] = list,
        repeated: Callable[[], list[LaunchAudit]] = list,
        still: Still = lambda settings, rounded: None,
    ) -> None:
        self.baselines = baselines
        self._rounded = rounded
        self._once = {REPEATS: repeated, SEEDS: reseeded}
        self._still = still
        self._asked_steps = -1
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
        stills: list[LaunchAudit] | None = None
        while True:
            known = [*self.baselines, *repeats]
            shown = [*candidates, *(stills or ())]
            found = judge(known, shown, effect)
            if self._learn(found, shown, repeats):
                continue
            if STILL in found.missing and settings is not None:
                if stills is None:
                    stills = self._launch_still(settings)
                    continue
                found = replace(found, reasons=(*found.reasons, HIDDEN))
            return guard_verdict(found, known, candidates)

    def loss_deviation(self, trial: Trial, effect: Effect) -> float | None:
        """Of the loss in one trial, whatever the verdict; nothing is launched for it."""
        if trial.evidence is None:
            return None
        found = judge(self.baselines, [trial.evidence], effect)
        return guard_verdict(found, self.baselines, [trial.evidence]).loss_deviation

    def _learn(self, found: Sameness, candidates: Launches, repeats: Launches) -> bool:
        """Launch what is missing; true if any of it showed anything."""
        for source in sorted(found.missing & self._once.keys()):
            shown = self._once.pop(source)()
            self.baselines += shown
            if shown:
                return True
        if ROUNDING not in found.missing:
            return False
        if self._learn_still_rounding(candidates):
            return True
        known = Baselines.of([*self.baselines, *repeats])
        off = Kind.CURVE in found.failing
        plain = [candidate for candidate in candidates if off and not candidate.still]
        curve = min(map(known.shared_steps, plain), default=0)
        if self.learn_rounding(repeats, curve):
            return True
        return _rounding_moves_the_loss(found) and self._draw_again(repeats, curve)

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
        shown = self._rounded(known, curve_steps, 0)
        draws = [b for b in self.baselines if b.rounded and not b.still]
        before = max((len(b.losses) for b in draws), default=0)
        if shown is None or len(shown.losses) < before:  # it was cut short
            return False
        self.baselines[:] = [b for b in self.baselines if all(b is not one for one in draws)]
        self._draws = 1
        return self._add(shown)

    def _launch_still(self, settings: Mapping[str, Any]) -> list[LaunchAudit]:
        """A candidate whose model draws no random numbers, and the script to compare it with."""
        if not Baselines.of(self.baselines).still:
            self._add(self._still(None, False))
        shown = self._still(settings, False)
        return [] if shown is None else [shown]

    def _learn_still_rounding(self, candidates: Launches) -> bool:
        """Once; true if it showed anything."""
        rounded = Baselines.of(self.baselines).rounded
        if not any(c.still for c in candidates) or any(b.still for b in rounded):
            return False
        return self._add(self._still(None, True))

    def _add(self, shown: LaunchAudit | None) -> bool:
        if shown is not None:
            self.baselines.append(shown)
        return shown is not None

    def _draw_again(self, repeats: Launches, curve_steps: int) -> bool:
        """Ask for a further trial that only rounds, by chance; true if it showed anything."""
        if not 0 < self._draws < MOST_DRAWS:
            return False
        shown = self._rounded([*self.baselines, *repeats], curve_steps, self._draws)
        self._draws += 1
        return self._add(shown)


def _rounding_moves_the_loss(found: Sameness) -> bool:
    """True if rounding that goes further by chance may explain the loss, and all else is well."""
    curve = found.worst(Kind.CURVE)
    if found.failing != {Kind.CURVE} or curve is None or curve.floor is None:
        return False
    return curve.floor.source == ROUNDING and curve.noise > TABLE[Kind.CURVE].least


def first_evaluation(shown: Launches) -> tuple[int, int]:
    """Training steps before the first evaluation that follows any, and the seed of its trial.

    Zeros if no trial shows one.
    """
    plain = Baselines.of(shown).plain
    return min(((e.trained, a.seed) for a in plain for e in a.outputs if e.trained), default=(0, 0))


def launch_rounded(
    launch: Callable[[TrialRequest], Trial],
    note: Callable[[str], None],
    base: Mapping[str, Any],
    rule: StopRule,
    room: Callable[[], float],
    baselines: Launches,
    curve_steps: int,
    draw: int,
) -> LaunchAudit | None:
    """What the script shows with the settings `base` and half precision's rounding alone.

    `rule`: of the other trials, `baselines` among them. `room()`: so many launches fit into what is
    left. Without the first draw there may be nothing left to prove: it is launched in any case.
    """
    if draw and room() < 1:
        return None
    how = "another one, which rounds otherwise," if draw else "a trial that only rounds"
    note(f"is it rounding alone? {how} shows it")
    _, seed = first_evaluation(baselines)
    short = rounding_rule(rule, baselines, curve_steps)
    request = TrialRequest(
        TrialPurpose.ROUNDING, base, short, seed, rounded=True, rounding_draw=draw
    )
    return launch(request).evidence


def launch_reseeded(
    launch: Callable[[TrialRequest], Trial],
    note: Callable[[str], None],
    base: Mapping[str, Any],
    rule: StopRule,
    room: Callable[[], float],
) -> list[LaunchAudit]:
    """What the script as it is, with the settings `base`, shows under other seeds.

    Enough of them tell what random draws alone do to the loss. `room()`: so many more launches fit
    into what is left of the budget; where these would take too large a part, there are none.
    """
    others = range(1, ENOUGH)
    if len(others) > SEEDS_SHARE * room():
        return []
    note("is it other random draws alone? trials under other seeds show it")
    shown = [launch(TrialRequest(TrialPurpose.SEEDS, base, rule, seed)).evidence for seed in others]
    found = [one for one in shown if one is not None]
    return found if len(found) == len(others) else []


def launch_still(
    launch: Callable[[TrialRequest], Trial],
    note: Callable[[str], None],
    base: Mapping[str, Any],
    rule: StopRule,
    settings: Mapping[str, Any] | None,
    rounded: bool,
) -> LaunchAudit | None:
    """What `settings` show where the model draws no random numbers; None: `base`, as it is."""
    whose = "these settings" if settings is not None else "the script as it is"
    rounds = " that only rounds" if rounded else ""
    note(f"dropout hides gradients: a trial of {whose}{rounds}, without dropout, shows them")
    steps = rule.audit_steps + 1
    short = replace(rule, min_steps=steps, max_steps=steps, min_seconds=0.0)
    used = base if settings is None else settings
    request = TrialRequest(TrialPurpose.STILL, used, short, rounded=rounded, still=True)
    return launch(request).evidence


def launch_repeat(
    launch: Callable[[TrialRequest], Trial],
    note: Callable[[str], None],
    base: Mapping[str, Any],
    rule: StopRule,
) -> list[LaunchAudit]:
    """What the script as it is, with the settings `base`, shows once more under its first seed."""
    note(f"its repeats differ: {ENOUGH} of them show how far, so it is launched once more")
    shown = launch(TrialRequest(TrialPurpose.REPEAT, base, rule)).evidence
    return [] if shown is None else [shown]


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
    looked = OUTPUT_CALLS if any(b.forward_only for b in baselines) else 0
    steps = max(rule.audit_steps, looked) + 1
    return replace(rule, min_steps=steps, max_steps=steps, min_seconds=0.0)
