"""The search: one change at a time on top of what was kept, cheapest first, losers dropped early.

Screening launches each value once; it only decides what goes to the proof. Nothing of what it
measures is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import LadderRow, Rejection
from gpurun.tuner import asking
from gpurun.tuner import facts as facts_of
from gpurun.tuner.asking import KnobRaised
from gpurun.tuner.evidence import Evidence
from gpurun.tuner.guard import judge
from gpurun.tuner.plan import with_read_ahead
from gpurun.tuner.trial import Request, Trial

LEAST_GAIN = 1.02
"""A change that gains less in screening is not kept: it would not survive the proof."""
LEAST_POTENTIAL = 1.03
"""A knob that acts on a part of the step too small to gain this much is not tried."""
VALUES_A_KNOB = 2
"""Values proposed at once; refinements come on top."""

Launch = Callable[[Request], Trial]
Note = Callable[[str], None]


@dataclass
class State:
    """Where the search stands: the kept settings and the trial that measured them."""

    settings: dict[str, Any]
    best: Trial
    facts: Facts
    baselines: list[Evidence]
    ladder: list[LadderRow] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)


@dataclass(frozen=True)
class Kept:
    """A value that gained, what went with it, and the trial that showed it."""

    value: Any
    companions: dict[str, Any]
    trial: Trial


@dataclass(frozen=True)
class Limits:
    """What bounds the search.

    `out_of_time(seconds, more)`: no room for a launch of that length that takes so much more to
    start, and for the proof, whose launches take that length, after it.

    `allowed`: the effects among which `Search.run` looks.
    """

    trials: int
    out_of_time: Callable[[float, float], bool]
    allowed: frozenset[Effect]


class Search:
    """Runs the screening trials. Why they ended is said once, however often more are allowed."""

    def __init__(self, launch: Launch, note: Note, rule: StopRule, limits: Limits) -> None:
        self._launch = launch
        self._note = note
        self._rule = rule
        self._limits = limits
        self._granted = self._left = limits.trials
        self._told: set[str] = set()
        self.out_of_time = False
        """Whether the search ended because the rest of the budget is for the proof."""

    def allow_more(self, trials: int) -> None:
        """Let so many further trials be launched, whatever is left of the earlier ones."""
        self._granted = self._left = trials

    def run(self, knobs: Sequence[Knob], state: State) -> None:
        """Try each knob in turn and keep what gains."""
        for knob in knobs:
            if knob.effect not in self._limits.allowed:
                self._note(f"{knob.name}: not tried ({knob.effect.value} changes not allowed)")
                continue
            reason = idle(knob, state.facts)
            proposals = Skip(reason) if reason else asking.candidates(knob, state.facts)
            if isinstance(proposals, Skip):
                self._note(f"{knob.name}: not tried: {proposals.reason}")
                continue
            if not self.try_knob(knob, proposals[:VALUES_A_KNOB], state):
                return

    def try_knob(self, knob: Knob, values: list[Any], state: State) -> bool:
        """Try these values of one knob, or note why not; False when there is no more room."""
        why = self._end(state)
        if why is not None:
            self._note(f"{knob.name}: not tried: {why}")
            return False
        why = self._too_slow(knob, state)
        if why is not None:
            self._note(f"{knob.name}: not tried: {why}")
            return True
        self._note(f"{knob.name}: trying {', '.join(map(str, values))}")
        return self.climb(knob, values, state)

    def climb(self, knob: Knob, values: list[Any], state: State) -> bool:
        """Try the values of one knob and refine the best; False when there is no more room."""
        start = state.best.throughput or 0.0
        start_facts = state.facts
        best: Kept | None = None
        queue = list(values)
        tried: list[Any] = []
        while queue:
            value = queue.pop(0)
            if value in tried:
                continue
            if self._exhausted(state):
                break
            why = self._too_slow(knob, state)
            if why is not None:
                self._note(f"{knob.name}: {', '.join(map(str, [value, *queue]))} not tried: {why}")
                break
            tried.append(value)
            try:
                companions = asking.companions(knob, start_facts, value)
            except KnobRaised as raised:
                self._note(f"{knob.name}: {value} not tried: {raised}")
                continue
            trial = self._try(knob, {knob.name: value, **companions}, state)
            reason, deviation = self._objection(knob, trial, state)
            reference = (best.trial.throughput if best else start) or start
            gain = (trial.throughput or 0.0) / reference if reference else 0.0
            state.ladder.append(_row(knob, value, trial, start, reason, deviation))
            if reason is None and gain > 1.0:
                best = Kept(value, companions, trial)
                queue = self._refined(knob, start_facts, value, gain) or queue
        if best is not None and _ratio(best.trial, start) >= LEAST_GAIN:
            self._keep(knob, best, state)
        return not self._exhausted(state)

    def _refined(self, knob: Knob, facts: Facts, value: Any, gain: float) -> list[Any]:
        try:
            further = asking.refine(knob, facts, value, gain)
        except KnobRaised as raised:
            self._note(f"{knob.name}: no further value: {raised}")
            return []
        return [] if further is None else [further]

    def _exhausted(self, state: State) -> bool:
        why = self._end(state)
        if why is not None and why not in self._told:
            self._told.add(why)
            self._note(f"search ended: {why}")
        return why is not None

    def _end(self, state: State) -> str | None:
        """Why there is room for no further trial; None if there is."""
        if self._left <= 0:
            return f"{self._granted} trials are used up" if self._granted else "no trial is left"
        if self._limits.out_of_time(state.best.record.seconds, 0.0):
            self.out_of_time = True
            return "the rest of the budget is kept for the proof"
        return None

    def _too_slow(self, knob: Knob, state: State) -> str | None:
        """Why there is room for no launch with this knob; None if there is."""
        if not self._limits.out_of_time(state.best.record.seconds, knob.startup_seconds):
            return None
        return (
            f"it takes about {knob.startup_seconds:.0f} s more to start, "
            "and the rest of the budget is kept for the proof"
        )

    def _try(self, knob: Knob, setting: dict[str, Any], state: State) -> Trial:
        """Launch one value, with what goes with it, on top of the kept settings."""
        settings = {**state.settings, **setting}
        prefetch = max((x.prefetch_factor or 2 for x in state.facts.loaders), default=2)
        trial = self._launch(
            Request(
                purpose="screen",
                settings=settings,
                stop=with_read_ahead(self._rule, settings, prefetch),
                patience_seconds=patience(knob, state.best),
                limit_seconds=patience(knob, state.best) + 3 * state.best.record.seconds,
            )
        )
        self._left -= 1
        return trial

    def _objection(self, knob: Knob, trial: Trial, state: State) -> tuple[str | None, float | None]:
        """Why the trial's value cannot be kept (None: it can), and how far its loss is off."""
        if trial.throughput is None or trial.result is None:
            return trial.record.reason or f"the trial ended as {trial.record.status}", None
        skipped = not_applied(knob, trial, state.facts.argv)
        if skipped is not None:
            return skipped, None
        if trial.evidence is None:
            return "the trial showed nothing of its training", None
        verdict = judge(state.baselines, [trial.evidence], knob.effect)
        if not verdict.accepted:
            state.rejections.append(Rejection(trial.record.knobs, verdict))
        reason = None if verdict.accepted else "; ".join(verdict.reasons)
        return reason, verdict.loss_deviation

    def _keep(self, knob: Knob, best: Kept, state: State) -> None:
        value, companions, trial = best.value, best.companions, best.trial
        for number, row in enumerate(state.ladder):
            if row.knob == knob.name and row.value == value:
                state.ladder[number] = kept = replace(row, kept=True, reason="")
        for name, other in companions.items():
            reason = f"goes with {knob.name}"
            state.ladder.append(replace(kept, knob=name, value=other, speedup=None, reason=reason))
        state.settings = {**state.settings, knob.name: value, **companions}
        state.best = trial
        if trial.result is not None:
            state.facts = facts_of.under(state.facts, state.settings, trial.result)
        with_them = "".join(f", with {name} {other}" for name, other in companions.items())
        self._note(f"{knob.name}: kept {value}{with_them}")


def patience(knob: Knob, reference: Trial) -> float:
    """How long a trial may be silent unless the configuration says: four times what the reference
    took, at least a minute, and six times what the knob says it takes to start.
    """
    return max(60.0, 4 * reference.record.seconds, 6 * knob.startup_seconds)


def not_applied(knob: Knob, trial: Trial, argv: tuple[str, ...]) -> str | None:
    """Why a setting had no effect in its own trial, None if it had one.

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
        outside = asking.environment(knob, value) or asking.arguments(knob, value, argv) != argv
    except KnobRaised as raised:
        return str(raised)
    return None if outside else "not applied: nothing in the script called for it"


def idle(knob: Knob, facts: Facts) -> str | None:
    """Why the part of the step that a knob acts on is too small to bother, None if it is not."""
    step, split = facts.result.step_time_ms, facts.result.split
    if step is None or split is None:
        return None
    if facts.device != "cpu" and knob.acts_on != "data":
        return None  # the parts are the host's times, which say little of the device's work
    parts = {
        "data": split.data_wait_ms,
        "model": _sum(split.forward_ms, split.backward_ms),
        "optimizer": split.optimizer_ms,
    }
    part = parts.get(knob.acts_on)
    if part is None or part >= step.mean:
        return None
    most = step.mean / max(step.mean - part, 1e-9)
    if most >= LEAST_POTENTIAL:
        return None
    return f"{knob.acts_on} is {part / step.mean:.1%} of the step: at most ×{most:.2f}"


def _sum(*parts: float | None) -> float | None:
    known = [p for p in parts if p is not None]
    return math.fsum(known) if known else None


def _ratio(trial: Trial, start: float) -> float:
    return (trial.throughput or 0.0) / start if start else 0.0


def _row(
    knob: Knob,
    value: Any,
    trial: Trial,
    start: float,
    reason: str | None,
    deviation: float | None,
) -> LadderRow:
    ratio = _ratio(trial, start) or None
    if reason is None:
        reason = "" if (ratio or 0) >= LEAST_GAIN else "no gain"
    return LadderRow(
        knob=knob.name,
        value=value,
        effect=knob.effect.value,
        samples_per_second=trial.record.samples_per_second,
        speedup=ratio,
        speedup_confidence_interval=None,
        peak_memory_bytes=trial.record.peak_memory_bytes,
        loss_deviation=deviation,
        kept=False,
        reason=reason or "a better value was found",
    )
