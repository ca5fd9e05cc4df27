"""Asks whether trials still train as the script does, and launches what the answer needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.records.tuning import GuardVerdict, TrialPurpose
from gpurun.same.floors import Baselines
from gpurun.same.guard_record import guard_verdict
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import REPEATS, ROUNDING, SEEDS, Kind
from gpurun.same.sameness_table import ENOUGH, TABLE
from gpurun.same.verdict import Sameness, judge
from gpurun.tuner.tuning_trial import Trial, TrialRequest

SEEDS_SHARE = 0.25
"""Trials under other seeds may take this part of the budget that is left."""
MOST_DRAWS = 3
"""Trials that only round. What they do to a training that multiplies it differs from draw to draw
by a factor of ten."""

Launches = Sequence[LaunchAudit]


class TrainingJudge:
    """Compares trials with those of the script as it is (`baselines`, to which it adds).

    It launches only what a verdict says is missing. `rounded(shown, curve_steps, draw)`: what a
    trial shows that only rounds, goes as far as these evaluate, and for so many steps at least. It
    is called again where a later trial evaluates after more steps, and with other draws where
    rounding moves the loss far and a candidate still further. `repeated()`, `reseeded()`: further
    trials of the script as it is, under the same seed and under others.
    """

    def __init__(
        self,
        baselines: list[LaunchAudit],
        rounded: Callable[[Launches, int, int], LaunchAudit | None],
        reseeded: Callable[[], list[LaunchAudit]] = list,
        repeated: Callable[[], list[LaunchAudit]] = list,
    ) -> None:
        self.baselines = baselines
        self._rounded = rounded
        self._once = {REPEATS: repeated, SEEDS: reseeded}
        self._asked_steps = -1
        self._draws = 0
        """Draws of the trial that only rounds: asked for since it was last as long as needed."""

    def judge(self, candidates: Launches, effect: Effect, repeats: Launches = ()) -> GuardVerdict:
        """`repeats`: further trials of the script as it is, launched beside the candidates."""
        while True:
            known = [*self.baselines, *repeats]
            found = judge(known, candidates, effect)
            if not self._learn(found, candidates, repeats):
                return guard_verdict(found, known, candidates, effect)

    def loss_deviation(self, trial: Trial, effect: Effect) -> float | None:
        """Of the loss in one trial, whatever the verdict; nothing is launched for it."""
        if trial.evidence is None:
            return None
        found = judge(self.baselines, [trial.evidence], effect)
        return guard_verdict(found, self.baselines, [trial.evidence], effect).loss_deviation

    def _learn(self, found: Sameness, candidates: Launches, repeats: Launches) -> bool:
        """Launch what is missing; true if any of it showed anything."""
        for source in sorted(found.missing & self._once.keys()):
            shown = self._once.pop(source)()
            self.baselines += shown
            if shown:
                return True
        if ROUNDING not in found.missing:
            return False
        known = Baselines.of([*self.baselines, *repeats])
        off = Kind.CURVE in found.failing
        curve = min(map(known.shared_steps, candidates), default=0) if off else 0
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
        before = max((len(b.losses) for b in self.baselines if b.rounded), default=0)
        if shown is None or len(shown.losses) < before:  # it was cut short
            return False
        self.baselines[:] = [b for b in self.baselines if not b.rounded]
        self.baselines.append(shown)
        self._draws = 1
        return True

    def _draw_again(self, repeats: Launches, curve_steps: int) -> bool:
        """Ask for a further trial that only rounds, by chance; true if it showed anything."""
        if not 0 < self._draws < MOST_DRAWS:
            return False
        shown = self._rounded([*self.baselines, *repeats], curve_steps, self._draws)
        self._draws += 1
        if shown is not None:
            self.baselines.append(shown)
        return shown is not None


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
    plain = [one for one in shown if not one.rounded]
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
