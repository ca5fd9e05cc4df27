"""The trials of a search, as long as its phase of the budget and its number of trials last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.formatting.number_text import count, duration
from gpurun.knobs.api import Effect, Knob
from gpurun.knobs.stages import COMPILE, stage_of
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.facts import Facts
from gpurun.records.messages.traits import OUT_OF_MEMORY
from gpurun.records.spec import StopRule
from gpurun.records.tuning import GuardVerdict, Rejection, TrialPurpose
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised
from gpurun.tuner.phases import Phases
from gpurun.tuner.search.changes import Change, settings_of, strongest_effect
from gpurun.tuner.search.search_state import SearchState, gain_over, startup_difference
from gpurun.tuner.trial_length import budget_flag, with_read_ahead
from gpurun.tuner.tuning_trial import Trial, TrialRequest

Launch = Callable[[TrialRequest], Trial]
Note = Callable[[str], None]


SLOW_START_SECONDS = 10.0
"""A smaller difference may only show which process was started early."""


class SearchTrials:
    """Launches and judges. `left`: so many more may be launched. `rule`: how long a trial is.

    `untried`: knobs that the end of the time or of the trials kept from being tried.
    """

    def __init__(
        self, launch: Launch, note: Note, rule: StopRule, phases: Phases, most: int
    ) -> None:
        self.left = most
        self.untried: list[str] = []
        self.note, self.rule = note, rule
        self._launch, self._phases = launch, phases
        self._knobs: dict[str, Knob] = {}
        self._tried: dict[str, list[Any]] = {}
        self._launched: list[tuple[dict[str, Any], Trial]] = []

    def know(self, knobs: Iterable[Knob]) -> None:
        """Learn which knobs the settings are about."""
        self._knobs |= {knob.name: knob for knob in knobs}

    def tried(self, name: str) -> Sequence[Any]:
        """The values of a knob that were tried, those that went with another one too."""
        return self._tried.get(name, ())

    def forget(self, name: str, kept: Any) -> None:
        """Let the values of a knob be tried once more, but the one that was kept."""
        self._tried[name] = [] if kept is None else [kept]

    def of(self, settings: Mapping[str, Any]) -> Trial | None:
        """The trial of these very settings, if there was one."""
        return next((trial for known, trial in self._launched if known == settings), None)

    def end(self) -> str | None:
        """Reason why no further trial is launched; None if one may be."""
        if self.left <= 0:
            return "the trials are used up"
        if not self._phases.room(compiled=False):
            return "the rest of the budget is kept for the proof"
        return None

    def room(self, changes: Sequence[Change], state: SearchState) -> bool:
        """True if there is room for a trial of these changes on top of what was kept."""
        compiled = self._is_compiled({**state.settings, **settings_of(changes)})
        return self.end() is None and self._phases.room(compiled=compiled)

    def lack(self, changes: Sequence[Change]) -> None:
        """Note that there was no room for them."""
        for change in changes:
            if change.knob.name not in self.untried:
                self.untried.append(change.knob.name)

    def launch(self, changes: Sequence[Change], state: SearchState) -> Trial:
        """One trial with these changes. What computes otherwise may be compiled in silence."""
        settings = {**state.settings, **settings_of(changes)}
        self.know(change.knob for change in changes)
        for name, value in settings_of(changes).items():
            self._tried.setdefault(name, []).append(value)
        self.untried = [name for name in self.untried if name not in settings]
        self.left -= 1
        limit = self._phases.limit()
        silent = None if self._effect(settings) is Effect.PIPELINE else limit
        stop = with_read_ahead(self.rule, settings, state.facts.loaders)
        trial = self._launch(
            TrialRequest(
                TrialPurpose.SCREEN, settings, stop, patience_seconds=silent, limit_seconds=limit
            )
        )
        self._phases.launched(trial, compiled=self._is_compiled(settings))
        found = self._named(trial, changes) if trial.late else trial
        self._launched.append((settings, found))
        return found

    def measure(self, request: TrialRequest) -> Trial:
        """A trial that measures something else than a gain, no longer than the search lasts."""
        self.left -= 1
        return self._launch(replace(request, limit_seconds=self._phases.limit()))

    def objection(self, trial: Trial, state: SearchState) -> tuple[str | None, GuardVerdict | None]:
        """Reason why the settings of a trial cannot be kept, or None; the guard's verdict."""
        if trial.throughput is None or trial.result is None:
            return trial.record.reason or f"the trial ended as {trial.record.status}", None
        if trial.score is None:
            return trial.no_score, None
        if trial.evidence is None:
            return "the trial showed nothing of its training", None
        if less := trained_with_less(trial, state.facts):
            return less, None
        verdict = state.judge.judge([trial.evidence], self._effect(trial.record.knobs))
        if verdict.accepted:
            return repaid_too_late(trial, state.best, state.facts), verdict
        rejection = Rejection(trial.record.knobs, verdict)
        if rejection not in state.rejections:
            state.rejections.append(rejection)
        return "; ".join(verdict.reasons), verdict

    def _is_compiled(self, settings: Mapping[str, Any]) -> bool:
        knobs = [self._knobs[name] for name in settings if name in self._knobs]
        return any(stage_of(knob) == COMPILE for knob in knobs)

    def _effect(self, settings: Mapping[str, Any]) -> Effect:
        return strongest_effect(self._knobs[n].effect for n in settings if n in self._knobs)

    def _named(self, trial: Trial, changes: Sequence[Change]) -> Trial:
        """A trial that was ended, with what it would need in its reason."""
        done = trial.result.measured_steps if trial.result is not None else 0
        took = duration(trial.record.seconds)
        flag = budget_flag(2 * self._phases.budget)
        reason = f"not tried to its end, {took}{'' if done else ' to start'}: `{flag}` has room"
        self.note(f"{', '.join(change.knob.name for change in changes)}: {reason}")
        self.lack(changes)
        return replace(trial, record=replace(trial.record, reason=reason))


# -- reasons why a trial is not kept although it may be fast ---------------------------------------


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
    try:
        outside = knob_calls.outside(knob, trial.record.knobs.get(knob.name), argv)
    except KnobRaised as raised:
        return str(raised)
    return "not applied: nothing in the script called for it" if outside == ({}, argv) else None


def repaid_too_late(trial: Trial, without: Trial, facts: Facts) -> str | None:
    """Reason why the training ends before a gain has repaid a slow start, or None."""
    if facts.planned_steps is None or gain_over(trial, without) < LEAST_GAIN:
        return None
    later, steps = startup_difference(trial, without)
    if later is None or later < SLOW_START_SECONDS:
        return None
    if steps is None or steps <= facts.planned_steps:
        return None
    return (
        f"starts {later:.0f} s later, repaid after {count(steps, 'step')}: "
        f"the training has {facts.planned_steps:,}"
    )


def trained_with_less(trial: Trial, facts: Facts) -> str | None:
    """Reason why a trial did not train what its settings ask for; None if it did.

    `facts` are those of the script as it is.
    """
    traits = () if trial.log is None else trial.log.traits
    caught = next((t.detail for t in traits if t.trait == OUT_OF_MEMORY), None)
    if caught is None or OUT_OF_MEMORY in facts.traits:
        return None
    return f"the model ran out of memory at {caught}, and the script went on"
