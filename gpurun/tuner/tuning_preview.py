"""Previews a tuning from its first trial: launches, time and memory (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import byte_size, count, duration, number
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.pairs.obstacle import CONTEXT_BYTES
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.tuning import TrialRecord
from gpurun.tuner import knob_calls
from gpurun.tuner.search.combined_trial import likely_changes
from gpurun.tuner.search.screening import SearchState
from gpurun.tuner.search.worth_a_trial import not_worth_a_trial
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.trial_length import SCREEN_SHARE, budget_flag

AS_IT_IS = 2
"""Trials of the script as it is before the search."""
FEW, MORE = 2, 3
"""Two pairs settle most proofs, and the third one those that differ."""


@dataclass(frozen=True)
class PreviewInputs:
    """The knowledge before the search. `batches`: other batch sizes, or why there are none.

    `in_turn`: why the proof cannot measure live pairs, "" if it can. `most_trials`: before it.
    """

    knobs: Sequence[Knob]
    allowed: frozenset[Effect]
    state: SearchState
    batches: list[Any] | Skip
    in_turn: str
    most_trials: int


def preview_lines(ground: PreviewInputs, times: TimeBudget) -> list[str]:
    """One line each: the probe, changes that would be tried or not, time, and memory."""
    state, probe = ground.state, ground.state.best
    allowed = [knob for knob in ground.knobs if knob.effect in ground.allowed]
    members = likely_changes(allowed, state)
    together = {name: value for m in members for name, value in m.settings.items()}
    lines = [_launched(ground), f"would try at once: {knobs_text(together) or 'nothing'}"]
    tried, trials = dict(together), AS_IT_IS + bool(members) + len(members)
    not_tried: dict[str, list[str]] = {}
    for knob in ground.knobs:
        if knob.name in tried:
            continue
        values = _values(knob, ground, times)
        if isinstance(values, Skip):
            not_tried.setdefault(values.reason, []).append(knob.name)
            continue
        trials += len(values)
        shown = ", ".join(knobs_text({knob.name: value}) for value in values)
        lines.append(f"would try {shown}{_slow(knob, ground)}")
    lines += [f"would not try {', '.join(names)}: {why}" for why, names in not_tried.items()]
    lines.append(_batches(ground))
    trials = min(trials, ground.most_trials)
    return [*lines, _time(trials, ground, times), _memory(probe.record, ground)]


def _launched(ground: PreviewInputs) -> str:
    probe = ground.state.best
    rate = f"{number(probe.throughput)} samples/s" if probe.throughput else "no throughput"
    return f"launched once, the script as it is: {rate}, {duration(probe.record.seconds)}"


def _values(knob: Knob, ground: PreviewInputs, times: TimeBudget) -> list[Any] | Skip:
    facts = ground.state.facts
    if knob.effect not in ground.allowed:
        return Skip(f"{knob.effect.value} changes are not allowed")
    reason = not_worth_a_trial(knob, facts)
    values = Skip(reason) if reason else knob_calls.candidates(knob, facts)
    if isinstance(values, Skip):
        return values
    seconds = times.usual + knob_calls.seconds_to_start(knob, facts)
    if seconds > SCREEN_SHARE * times.budget:
        needed = budget_flag(max(seconds / SCREEN_SHARE, 2 * times.budget))
        return Skip(f"a trial takes {duration(seconds)}: too much of this budget; try `{needed}`")
    return values[: knob.most_values]


def _slow(knob: Knob, ground: PreviewInputs) -> str:
    seconds = knob_calls.seconds_to_start(knob, ground.state.facts)
    return f" ({duration(seconds)} more to start)" if seconds >= 1 else ""


def _batches(ground: PreviewInputs) -> str:
    if isinstance(ground.batches, Skip):
        return f"would not try another batch size: {ground.batches.reason}"
    sizes = ", ".join(str(value["batch_size"]) for value in ground.batches)
    if Effect.TRAINING in ground.allowed:
        return f"would try batch sizes {sizes}"
    return f"would try batch sizes {sizes} if the proof leaves time; to apply: {ALLOW_ALL}"


def _time(trials: int, ground: PreviewInputs, times: TimeBudget) -> str:
    """An upper bound: a gain that is found early spares trials."""
    each, rounds = times.usual, times.round_of(ground.state.best)
    kind = "launches of each side one after the other" if ground.in_turn else "live pairs"
    whole = trials * each + MORE * rounds
    limit = f"; the budget of {duration(times.budget)} ends it" if whole > times.budget else ""
    why = f" ({ground.in_turn})" if ground.in_turn else ""
    return (
        f"time: up to {count(trials, 'trial')} of about {duration(each)}, then "
        f"{FEW} to {MORE} {kind}{why} of about {duration(rounds)}: "
        f"about {duration(whole)} in all{limit}"
    )


def _memory(probe: TrialRecord, ground: PreviewInputs) -> str:
    peak, held, whose = probe.peak_memory_bytes, probe.peak_host_bytes, "of the main process"
    if ground.state.facts.device != "cpu":
        held, whose = CONTEXT_BYTES + (probe.peak_reserved_bytes or 0), "on the GPU"
    if peak is None:
        return "memory: not known"
    if ground.in_turn:
        return f"memory: about {byte_size(peak)} {whose}, one launch at a time"
    both = byte_size(2 * max(peak, held or 0))
    return (
        f"memory: about {byte_size(peak)} {whose} in a trial, up to {both} while a pair runs; "
        "some changes take more"
    )
