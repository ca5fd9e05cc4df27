"""Screening trials: each launches some settings once and says whether they can be kept.

Screening only decides what goes to the proof. Nothing of what it measures is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import byte_size, count, duration, joules, number
from gpurun.knobs.api import Effect, Knob
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import GuardVerdict, LadderRow, Rejection, TrialPurpose
from gpurun.trials.failure_cause import recompiled
from gpurun.tuner import knob_calls
from gpurun.tuner.knob_calls import KnobRaised
from gpurun.tuner.script_facts import facts_under
from gpurun.tuner.search.lack_of_memory import trained_with_less
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.trial_length import (
    COMPILED_ALREADY,
    SCREEN_SHARE,
    budget_flag,
    patience,
    with_read_ahead,
)
from gpurun.tuner.tuning_trial import Trial, TrialRequest

UNSURE = 0.03
"""A gain with a larger standard error is measured once more before it is believed: all later trials
are compared with the best."""
CLEAR = 10
"""A gain of so many standard errors is measured once more only for the sake of later trials."""
SLOW_START_SECONDS = 10.0
"""A setting that adds this much to the start is slow to start: it is compiled."""

NO_TIME = "the rest of the budget is kept for the proof"
NO_TIME_AFTER_PROOF = "the proof left too little of the budget for it"

Launch = Callable[[TrialRequest], Trial]
Note = Callable[[str], None]


@dataclass
class SearchState:
    """Where the search stands: the kept settings and the trial that measured them."""

    settings: dict[str, Any]
    best: Trial
    facts: Facts
    judge: TrainingJudge
    ladder: list[LadderRow] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)

    def branch(self) -> SearchState:
        """The same with settings of its own; ladder and rejections are shared."""
        return replace(self, settings=dict(self.settings))

    def move(self, settings: dict[str, Any], trial: Trial) -> None:
        """Stand on these settings, which `trial` measured."""
        self.settings = settings
        self.best = trial
        if trial.result is not None:
            self.facts = facts_under(self.facts, settings, trial.result)


@dataclass(frozen=True)
class StartupSeconds:
    """Seconds that settings take longer to start than the best ones so far: at their first launch,
    and at each later one, for which the trials' caches hold what was compiled.
    """

    first: float = 0.0
    later: float = 0.0


@dataclass(frozen=True)
class SearchLimits:
    """The limits of the search.

    `out_of_time(best, startup)`: no room for a launch like this one with such a start, and for the
    proof of its settings after it.

    `allowed`: the effects among which `KnobSearch.run` looks. `budget_seconds`: of all the tuning.
    """

    trials: int
    out_of_time: Callable[[Trial, StartupSeconds], bool]
    allowed: frozenset[Effect]
    budget_seconds: float = 0.0


@dataclass(frozen=True)
class UnsureGain:
    """What seems to gain over a trial, by turns that may be off by as much.

    `keep` keeps it after all.
    """

    gain: float
    over: Trial
    keep: Callable[[], None]


class Screening:
    """Launches the trials of a search as long as there is room; why there is none is said once."""

    def __init__(self, launch: Launch, note: Note, rule: StopRule, limits: SearchLimits) -> None:
        self.note = note
        self.out_of_time = False
        """True if the search ended because the rest of the budget is for the proof."""
        self.no_time = NO_TIME
        self._launch = launch
        self._rule = rule
        self._limits = limits
        self._granted = self._left = limits.trials
        self._told: set[str] = set()
        self._knobs: dict[str, Knob] = {}
        self.given_up: set[str] = set()
        """The knobs whose trials were given up: no further one is launched."""
        self.unsure: UnsureGain | None = None
        """The largest one so far."""

    def allow_more(self, trials: int) -> None:
        """Let so many further trials be launched, whatever is left of the earlier ones."""
        self._granted = self._left = trials

    def know(self, knobs: Iterable[Knob]) -> None:
        """Learn which knobs the settings of this search are about."""
        self._knobs = {knob.name: knob for knob in knobs}

    def startup(self, knobs: Iterable[Knob], state: SearchState) -> StartupSeconds:
        """Seconds that these knobs add to the start on top of the settings so far.

        What computes otherwise is compiled anew, if it is compiled at all.
        """
        group = list(knobs)
        own = sum(knob_calls.seconds_to_start(knob, state.facts) for knob in group)
        first, later = own, own / COMPILED_ALREADY
        if any(knob.effect is not Effect.PIPELINE for knob in group):
            names = state.settings.keys() & self._knobs.keys() - {knob.name for knob in group}
            kept = [self._knobs[name] for name in names]
            anew = sum(knob_calls.seconds_to_start(knob, state.facts) for knob in kept)
            first += anew * (1 - 1 / COMPILED_ALREADY)
        return StartupSeconds(first, later)

    def exhausted(self, state: SearchState) -> bool:
        """True if there is room for no further trial; the reason is noted."""
        why = self.end(state)
        if why is not None and why not in self._told:
            self._told.add(why)
            self.note(f"search ended: {why}")
        return why is not None

    def end(self, state: SearchState) -> str | None:
        """Reason why there is room for no further trial; None if there is."""
        if self._left <= 0:
            return f"{count(self._granted, 'trial')} used up"
        if self._limits.out_of_time(state.best, StartupSeconds()):
            self.out_of_time = True
            return self.no_time
        return None

    def too_slow(self, knob: Knob, state: SearchState) -> str | None:
        """Reason why there is room for no launch with this knob; None if there is."""
        startup = self.startup([knob], state)
        if not self._limits.out_of_time(state.best, startup):
            return None
        needed = (state.best.record.seconds + startup.first) / SCREEN_SHARE
        flag = budget_flag(max(needed, 2 * self._limits.budget_seconds))
        return (
            f"it takes about {startup.first:.0f} s more to start, and {self.no_time}; try `{flag}`"
        )

    def too_slow_without(self, knob: Knob, state: SearchState) -> str | None:
        """Reason why there is room for no launch that leaves this knob out; None if there is.

        What computes otherwise without it is compiled anew, but for what is left out itself.
        """
        own = knob_calls.seconds_to_start(knob, state.facts)
        anew = max(0.0, self.startup([knob], state).first - own)
        if not self._limits.out_of_time(state.best, StartupSeconds(first=anew)):
            return None
        return (
            f"without it the rest would compile for about {anew:.0f} s, "
            "and what is left of the budget is kept for the proof"
        )

    def launch(self, settings: dict[str, Any], turned: Iterable[Knob], state: SearchState) -> Trial:
        """One trial of these settings, which differ from those so far in what was `turned`."""
        turned = list(turned)
        later = self.startup(turned, state).first
        waiting = patience(self._limits.budget_seconds, state.best.record.seconds, later)
        self._left -= 1
        request = TrialRequest(
            purpose=TrialPurpose.SCREEN,
            settings=settings,
            stop=with_read_ahead(self._rule, settings, state.facts.loaders),
            patience_seconds=waiting,
            limit_seconds=waiting + 3 * state.best.record.seconds,
        )
        trial = self._launch(request)
        if trial.late:
            return self._named(trial, turned, state)
        if not seems_to_gain(trial, state.best) or self._left <= 0:
            return trial
        clear = math.log(gain_over(trial, state.best)) >= CLEAR * (trial.record.gain_error or 0.0)
        one_more = StartupSeconds(first=trial.record.seconds if clear else 0.0)
        if self._limits.out_of_time(trial, one_more):
            return trial
        self.note(f"×{trial.gain:.2f} is uncertain, and measured once more")
        self._left -= 1
        return _both(trial, self._launch(request))

    def launch_for(self, request: TrialRequest) -> Trial:
        """A trial that measures something else than a gain."""
        self._left -= 1
        return self._launch(request)

    def remember_unsure(self, trial: Trial, other: Trial, keep: Callable[[], None]) -> None:
        """What may be better than `other` goes to the proof if nothing surer is found."""
        gain = gain_over(trial, other)
        if seems_to_gain(trial, other) and (self.unsure is None or gain > self.unsure.gain):
            self.unsure = UnsureGain(gain, other, keep)

    def _named(self, trial: Trial, turned: Sequence[Knob], state: SearchState) -> Trial:
        """A trial that was given up, with the knob that most likely made it slow in its reason."""
        if not turned:
            return trial
        knob = self.slowest(turned, state)
        name = knob.name if len(turned) == 1 or self.is_slow(knob, state) else "all at once"
        done = trial.result.measured_steps if trial.result is not None else 0
        took = duration(trial.record.seconds)
        more = 2 * max(trial.record.seconds / SCREEN_SHARE, self._limits.budget_seconds)
        reason = (
            f"not tried to its end, {took}{'' if done else ' to start'}; try `{budget_flag(more)}`"
        )
        self.note(f"{name}: {reason}")
        self.given_up.add(name)
        return replace(trial, record=replace(trial.record, reason=reason))

    def slowest(self, turned: Sequence[Knob], state: SearchState) -> Knob:
        """The one that adds most to the start."""
        return max(turned, key=lambda knob: knob_calls.seconds_to_start(knob, state.facts))

    def is_slow(self, knob: Knob, state: SearchState) -> bool:
        """True if it adds so much to the start that it is compiled."""
        return knob_calls.seconds_to_start(knob, state.facts) >= SLOW_START_SECONDS

    def objection(
        self, effect: Effect, trial: Trial, state: SearchState
    ) -> tuple[str | None, GuardVerdict | None]:
        """Reason why the settings of a trial cannot be kept, or None, and the guard's verdict.

        `effect`: of what was turned last; what was kept before counts too.
        """
        names = trial.record.knobs.keys() & self._knobs.keys()
        effect = strongest_effect([effect, *(self._knobs[name].effect for name in names)])
        if trial.throughput is None or trial.result is None:
            return trial.record.reason or f"the trial ended as {trial.record.status}", None
        if trial.score is None:
            return trial.no_score, None
        if trial.evidence is None:
            return "the trial showed nothing of its training", None
        less = trained_with_less(trial, state.best, state.facts)
        if less is not None:
            return less, None
        verdict = state.judge.judge([trial.evidence], effect)
        if not verdict.accepted:
            state.rejections.append(Rejection(trial.record.knobs, verdict))
        reason = None if verdict.accepted else "; ".join(verdict.reasons)
        return reason, verdict


def strongest_effect(effects: Iterable[Effect]) -> Effect:
    """The effect that says most about a set of changes."""
    found = set(effects)
    return next((e for e in (Effect.TRAINING, Effect.NUMERICS) if e in found), Effect.PIPELINE)


def not_applied(knob: Knob, trial: Trial, argv: tuple[str, ...]) -> str | None:
    """Reason why a setting had no effect in its own trial, None if it had one.

    `argv`: the script's arguments without any setting.
    """
    if trial.result is None:
        return None
    mine = [o for o in trial.result.knobs if o.knob == knob.name]
    failed = next((o for o in mine if o.outcome == "failed"), None)
    if failed is not None:
        return f"failed: {failed.detail}"
    if any(o.outcome == "applied" for o in mine):
        return None
    if mine:
        return f"not applied: {mine[0].detail}"
    value = trial.record.knobs.get(knob.name)
    try:
        outside = (
            knob_calls.environment(knob, value) or knob_calls.arguments(knob, value, argv) != argv
        )
    except KnobRaised as raised:
        return str(raised)
    return None if outside else "not applied: nothing in the script called for it"


def repaid_too_late(knob: Knob, trial: Trial, without: Trial, facts: Facts) -> str | None:
    """Reason why the training ends before a gain has repaid a slow start, or None.

    For knobs that start at once the difference only shows which process was started early.
    """
    if knob_calls.seconds_to_start(knob, facts) < SLOW_START_SECONDS or facts.planned_steps is None:
        return None
    if not (gains(trial, without) or seems_to_gain(trial, without)):
        return None
    later, steps = startup_difference(trial, without)
    if later is None or steps is None or steps <= facts.planned_steps:
        return None
    return (
        f"starts {later:.0f} s later, repaid after {count(steps, 'step')}: "
        f"the training has {facts.planned_steps:,}"
    )


def gain_over(trial: Trial, other: Trial) -> float:
    """By what factor a trial is better than another; 0 where that is not known of one of them.

    By what both gain over the reference, where both took turns with it.
    """
    if trial.gain is not None and other.gain is not None:
        return trial.gain / other.gain
    return (trial.score or 0.0) / other.score if other.score else 0.0


def gains(trial: Trial, other: Trial) -> bool:
    """True if a trial is better than another by more than the turns of both could be off."""
    gain = gain_over(trial, other)
    error = math.hypot(trial.record.gain_error or 0.0, other.record.gain_error or 0.0)
    return gain >= LEAST_GAIN and math.log(gain) > error


def seems_to_gain(trial: Trial, best: Trial) -> bool:
    """True if a trial seems better than the best, by turns that disagree."""
    error = trial.record.gain_error
    unsure = trial.gain is not None and error is not None and error > UNSURE
    return unsure and gain_over(trial, best) >= LEAST_GAIN


def _both(trial: Trial, again: Trial) -> Trial:
    """The repeat of a trial with what both say of the gain; as it is where it gives no figure.

    The mean is weighted by the errors of both. It is no surer than half of what they differ by.
    """
    errors = trial.record.gain_error, again.record.gain_error
    if not (trial.gain and again.gain and errors[0] and errors[1]):
        return again if again.throughput is None or again.gain else trial
    weights = [error**-2 for error in errors if error]
    logs = [math.log(trial.gain), math.log(again.gain)]
    mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
    error = math.hypot(sum(weights) ** -0.5, (logs[0] - logs[1]) / 2)
    record = replace(again.record, gain_over_reference=math.exp(mean), gain_error=error)
    return replace(again, record=record)


def no_gain(trial: Trial, without: Trial) -> str:
    """Reason why a change is not kept, with what both trials measured: each is but one."""
    if why := recompiled(trial.log):
        return f"no gain: {why}"
    kind = "uncertain" if seems_to_gain(trial, without) else "no gain"
    return f"{kind}: {compared(trial, without)} without it"


def compared(trial: Trial, other: Trial) -> str:
    """The measured values of two trials: "602 samples/s against 906", "×1.31 against ×1.02"."""
    if trial.gain is not None and other.gain is not None:
        return f"×{trial.gain:.2f} against ×{other.gain:.2f}"
    if trial.objective is Objective.MEMORY:
        sizes = (trial.record.peak_memory_bytes, other.record.peak_memory_bytes)
        return " against ".join("unknown" if size is None else byte_size(size) for size in sizes)
    if trial.objective is Objective.ENERGY:
        told = (trial.record.joules_per_sample, other.record.joules_per_sample)
        shown = ("unknown" if one is None else joules(one) for one in told)
        return " a sample against ".join(shown)
    rates = (number(t.throughput) if t.throughput else "unknown" for t in (trial, other))
    return " samples/s against ".join(rates)


def startup_difference(trial: Trial, without: Trial) -> tuple[float | None, int | None]:
    """How many seconds longer a trial took to its pace than one without the change, and after how
    many steps that is made good.
    """
    if trial.result is None or without.result is None:
        return None, None
    ours, theirs = trial.result, without.result
    if ours.startup_seconds is None or theirs.startup_seconds is None:
        return None, None
    later = ours.startup_seconds - theirs.startup_seconds
    if ours.step_time_ms is None or theirs.step_time_ms is None:
        return later, None
    gain = gain_over(trial, without)
    if trial.gain is not None and without.gain is not None and gain > 0:  # by turns
        won = theirs.step_time_ms.mean * (1 - 1 / gain) / 1000
    else:
        won = (theirs.step_time_ms.mean - ours.step_time_ms.mean) / 1000
    return later, math.ceil(max(later, 0.0) / won) if won > 0 else None


def ladder_row(
    knob: Knob,
    value: Any,
    trial: Trial,
    *,
    guard: GuardVerdict | None,
    kept: bool = False,
    reason: str = "",
) -> LadderRow:
    """The row of one change; its share and the final reason come with the proof."""
    return LadderRow(
        knob=knob.name,
        value=value,
        effect=knob.effect.value,
        samples_per_second=trial.record.samples_per_second,
        speedup=None,
        speedup_confidence_interval=None,
        peak_memory_bytes=trial.record.peak_memory_bytes,
        joules_per_sample=trial.record.joules_per_sample,
        loss_deviation=None if guard is None else guard.loss_deviation,
        output_deviation=guard.output_deviation if guard and guard.forward_only else None,
        kept=kept,
        reason=reason,
    )


def companion_rows(row: LadderRow, companions: Mapping[str, Any]) -> list[LadderRow]:
    """The rows of the settings that a row's change brings with it."""
    reason = f"goes with {row.knob}"
    return [
        replace(row, knob=name, value=value, reason=reason) for name, value in companions.items()
    ]
