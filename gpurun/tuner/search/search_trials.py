"""The trials of a search, as long as its phase of the budget and its number of trials last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.formatting.number_text import duration
from gpurun.knobs.api import Effect, Knob
from gpurun.knobs.stages import COMPILE, stage_of
from gpurun.records.spec import StopRule
from gpurun.records.tuning import GuardVerdict, TrialPurpose
from gpurun.tuner.phases import Phases
from gpurun.tuner.search.changes import Change, settings_of, strongest_effect
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.trial_length import budget_flag, patience, with_read_ahead
from gpurun.tuner.tuning_trial import Trial, TrialRequest

Launch = Callable[[TrialRequest], Trial]
Note = Callable[[str], None]


class SearchTrials:
    """Launches and judges. `left`: so many more may be launched.

    `untried`: knobs that the end of the time or of the trials kept from being tried.
    """

    def __init__(
        self, launch: Launch, note: Note, rule: StopRule, phases: Phases, most: int
    ) -> None:
        self.left = most
        self.untried: list[str] = []
        self.note = note
        self._launch, self._rule, self._phases = launch, rule, phases
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

    @property
    def room_for_long(self) -> bool:
        """True if there is room for the longest launch so far once more."""
        return self.end() is None and self._phases.room_for_long

    def room(self, changes: Sequence[Change], state: SearchState) -> bool:
        """True if there is room for a trial of these changes on top of what was kept."""
        compiled = self._is_compiled({**state.settings, **settings_of(changes)})
        return self.end() is None and self._phases.room(compiled=compiled)

    def lack(self, changes: Sequence[Change]) -> None:
        """Note that there was no room for them."""
        for change in changes:
            if change.knob.name not in self.untried:
                self.untried.append(change.knob.name)

    def launch(
        self, changes: Sequence[Change], settings: Mapping[str, Any], state: SearchState
    ) -> Trial:
        """One trial of these settings. What computes otherwise may be compiled in silence."""
        self.know(change.knob for change in changes)
        for change in changes:
            for name, value in change.settings.items():
                self._tried.setdefault(name, []).append(value)
        self.untried = [name for name in self.untried if name not in settings]
        self.left -= 1
        numerics = self._effect(settings) is not Effect.PIPELINE
        limit = self._phases.limit()
        silent = patience(self._phases.budget, state.best.record.seconds)
        trial = self._launch(
            TrialRequest(
                purpose=TrialPurpose.SCREEN,
                settings=settings,
                stop=with_read_ahead(self._rule, settings, state.facts.loaders),
                patience_seconds=max(silent, limit) if numerics else silent,
                limit_seconds=limit,
            )
        )
        self._phases.launched(trial, compiled=self._is_compiled(settings))
        found = self._named(trial, changes) if trial.late else trial
        self._launched.append((dict(settings), found))
        return found

    def measure(self, request: TrialRequest) -> Trial:
        """A trial that measures something else than a gain, no longer than the search lasts."""
        self.left -= 1
        return self._launch(replace(request, limit_seconds=self._phases.limit()))

    @property
    def rule(self) -> StopRule:
        """The stop rule of a trial."""
        return self._rule

    def objection(self, trial: Trial, state: SearchState) -> tuple[str | None, GuardVerdict | None]:
        """Reason why the settings of a trial cannot be kept, or None; the guard's verdict."""
        return state.objection(trial, self._effect(trial.record.knobs))

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
