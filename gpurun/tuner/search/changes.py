"""The changes that a search may try, from what the knobs propose on the ground of the facts.

The other batch sizes are among them, with what was seen of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.formatting.knob_text import knobs_text
from gpurun.knobs import find
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.knobs.batch_size import MEMORY_SHARE, BatchSize, most_for_data
from gpurun.knobs.stages import stage_of
from gpurun.measure.optional_figures import known
from gpurun.records.facts import Facts
from gpurun.records.tuning import BatchTrial, TrialPurpose, TrialRecord
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised

LEAST_POTENTIAL = 1.03
"""A knob that acts on a part of the step too small to gain this much is not tried."""


@dataclass(frozen=True)
class Change:
    """A knob with the value to try, and the settings of other knobs that go with it."""

    knob: Knob
    value: Any
    companions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """The stage of the ladder to which it belongs."""
        return stage_of(self.knob)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the change, its companions included."""
        return {self.knob.name: self.value, **self.companions}

    @property
    def text(self) -> str:
        """ "loader_workers 4, loader_prefetch 8"."""
        return knobs_text(self.settings)


def change_of(knob: Knob, value: Any, facts: Facts) -> Change:
    """The change with its companions; `KnobRaised` if the knob cannot tell them."""
    companions = knob_calls.companions(knob, facts, value)
    return Change(knob, value, {k: v for k, v in companions.items() if k not in facts.current})


def likely_changes(knobs: Sequence[Knob], facts: Facts) -> list[Change]:
    """The first value of each knob that is likely to gain, each on the ground of those before."""
    found: list[Change] = []
    for knob in knobs:
        if knob.name in facts.current or not knob_calls.is_likely(knob, facts):
            continue
        values = proposals(knob, facts)
        if isinstance(values, Skip) or not values:
            continue
        try:
            found.append(change_of(knob, values[0], facts))
        except KnobRaised:
            continue  # it says so when it is tried by itself
        facts = replace(facts, current={**facts.current, **found[-1].settings})
    return found


def settings_of(changes: Iterable[Change]) -> dict[str, Any]:
    """All their settings together."""
    return {name: value for change in changes for name, value in change.settings.items()}


def strongest_effect(effects: Iterable[Effect]) -> Effect:
    """The effect that says most about a set of changes."""
    found = set(effects)
    return next((e for e in (Effect.TRAINING, Effect.NUMERICS) if e in found), Effect.PIPELINE)


def proposals(knob: Knob, facts: Facts) -> Sequence[Any] | Skip:
    """The values to try at most, or why there are none."""
    reason = _too_small_part(knob, facts)
    values = Skip(reason) if reason else knob_calls.candidates(knob, facts)
    return values if isinstance(values, Skip) else values[: knob.most_values]


def _too_small_part(knob: Knob, facts: Facts) -> str | None:
    """Reason why the part of the step that a knob acts on is too small, or None."""
    step, split = facts.result.step_time_ms, facts.result.split
    if step is None or split is None or facts.objective != Objective.THROUGHPUT.value:
        return None
    if facts.device != "cpu" and knob.acts_on != "data":
        return None  # the parts are the host's times, which say little of the device's work
    passes = known((split.forward_ms, split.backward_ms))
    model = math.fsum(passes) if passes else None
    parts = {
        "data": split.data_wait_ms,
        "model": model,
        "optimizer": split.optimizer_ms,
    }
    part = parts.get(knob.acts_on)
    if part is None or part >= step.mean:
        return None
    most = step.mean / max(step.mean - part, 1e-9)
    if most >= LEAST_POTENTIAL:
        return None
    return f"{knob.acts_on} is {part / step.mean:.1%} of the step: at most ×{most:.2f}"


# -- batch sizes -----------------------------------------------------------------------------------


BATCH = BatchSize.name
AS_IT_IS, FASTEST, LARGEST = "as it is", "fastest", "largest that fits"


def other_batches(facts: Facts, options: Options) -> list[Any] | Skip:
    """Batch sizes to try, likeliest first, or why none is tried.

    One that may not be all of the script's batch size is measured and shown, but never applied.
    """
    if options.aim is not Objective.THROUGHPUT:
        return Skip("it is tuned for throughput alone")
    flag = facts.batch_flag
    names = {argument.name for argument in options.tuned_arguments}
    if flag is not None and flag.flag in names:
        # two changes of one flag would undo each other
        return Skip(f"{flag.flag} is tuned")
    if flag is None and facts.batch_uses != () and Effect.TRAINING.value in options.allowed:
        return Skip(f"{_elsewhere(facts)}; with a flag of its own for it gpurun can apply another")
    return knob_calls.candidates(find(BATCH, options.knob_paths), facts)


def _elsewhere(facts: Facts) -> str:
    """Where the loader alone would have another batch size: an evaluation may fail, much later."""
    if not facts.batch_uses:
        return "where else the script has its batch size was not found"
    return f"the script has its batch size elsewhere, too: {facts.batch_uses[0].strip()}"


def launches_of_batches(trials: Sequence[TrialRecord]) -> dict[int, TrialRecord]:
    """Batch size → its last trial under the settings of the last one that had another batch size.

    The script's own batch size is among them. Empty where no other one was tried.
    """
    screened = [t for t in trials if t.purpose is TrialPurpose.SCREEN]
    larger = [t for t in screened if BATCH in t.knobs]
    if not larger:
        return {}
    others, own = _others(larger[-1].knobs), larger[-1].knobs[BATCH]["from"]
    alike = [t for t in screened if _others(t.knobs) == others]
    return {t.knobs[BATCH]["batch_size"] if BATCH in t.knobs else own: t for t in alike}


def _others(knobs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in knobs.items() if name != BATCH}


def largest_that_fits(trials: Sequence[TrialRecord], facts: Facts) -> dict[str, Any] | None:
    """The largest batch with a tenth of the GPU's memory free, by the line through the two largest
    that were measured; None where it was tried, or nothing can be said."""
    launches, memory = launches_of_batches(trials), facts.machine.gpu_memory_bytes
    held = sorted((n, t.peak_reserved_bytes) for n, t in launches.items() if t.peak_reserved_bytes)
    if facts.device == "cpu" or memory is None or len(held) < 2:
        return None
    (one, less), (other, more) = held[-2:]
    if more <= less:
        return None
    value = next(t.knobs[BATCH] for t in launches.values() if BATCH in t.knobs)
    most = other + (MEMORY_SHARE * memory - more) * (other - one) / (more - less)
    size = int(min(most, most_for_data(facts)) // value["from"]) * value["from"]
    return {**value, "batch_size": size} if size > max(launches) else None


def batch_table(trials: Sequence[TrialRecord], facts: Facts | None) -> tuple[BatchTrial, ...]:
    """What was seen of each batch size, the smallest first."""
    launches = launches_of_batches(trials)
    memory = None if facts is None else facts.machine.gpu_memory_bytes
    rates = {n: t.samples_per_second for n, t in launches.items() if t.samples_per_second}
    marks = {FASTEST: max(rates, key=rates.__getitem__, default=None)}
    if memory is not None and facts is not None and largest_that_fits(trials, facts) is None:
        marks[LARGEST] = max(launches, default=None)
    found = []
    for size, trial in sorted(launches.items()):
        told = [AS_IT_IS] if BATCH not in trial.knobs else []
        told += [mark for mark, marked in marks.items() if marked == size and size in rates]
        told += [trial.reason] if trial.reason else []
        held, step = trial.peak_reserved_bytes, trial.step_time_ms
        found.append(
            BatchTrial(
                batch_size=size,
                samples_per_second=trial.samples_per_second,
                step_time_ms=None if step is None else step.mean,
                peak_memory_bytes=trial.peak_memory_bytes,
                memory_share=held / memory if held and memory else None,
                told=tuple(told),
            )
        )
    return tuple(found)
