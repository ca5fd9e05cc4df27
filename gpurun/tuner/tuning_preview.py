"""Previews a tuning from its first trial: what would be tried, time and memory (`--dry-run`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import byte_size, duration, number
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.knobs.stages import in_order
from gpurun.pairs.obstacle import CONTEXT_BYTES
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.facts import Facts
from gpurun.tuner.phases import SEARCH_SHARE, Phases
from gpurun.tuner.search.changes import likely_changes, proposals, settings_of
from gpurun.tuner.tuning_trial import Trial


@dataclass(frozen=True)
class PreviewInputs:
    """The knowledge before the search. `batches`: other batch sizes, or why there are none.

    `in_turn`: why the proof cannot measure live pairs, "" if it can.
    """

    knobs: Sequence[Knob]
    allowed: frozenset[Effect]
    probe: Trial
    facts: Facts
    batches: list[Any] | Skip
    in_turn: str


def preview_lines(ground: PreviewInputs, phases: Phases) -> list[str]:
    """One line each: the probe, changes that would be tried or not, time, and memory."""
    probe, facts = ground.probe, ground.facts
    changes = likely_changes([k for k in ground.knobs if k.effect in ground.allowed], facts)
    rate = f"{number(probe.throughput)} samples/s" if probe.throughput else "no throughput"
    lines = [f"launched once, the script as it is: {rate}, {duration(probe.record.seconds)}"]
    for stage in in_order(change.stage for change in changes):
        own = settings_of(change for change in changes if change.stage == stage)
        lines.append(f"would try at once, {stage}: {knobs_text(own)}")
    not_tried: dict[str, list[str]] = {}
    for knob in [knob for knob in ground.knobs if knob.name not in settings_of(changes)]:
        values: Sequence[Any] | Skip = Skip(f"{knob.effect.value} changes are not allowed")
        if knob.effect in ground.allowed:
            values = proposals(knob, facts)
        if isinstance(values, Skip):
            not_tried.setdefault(values.reason, []).append(knob.name)
        else:
            shown = ", ".join(knobs_text({knob.name: value}) for value in values)
            lines.append(f"would try alone, if what is found points to it: {shown}")
    lines += [f"would not try {', '.join(names)}: {why}" for why, names in not_tried.items()]
    return [*lines, _batches(ground), _time(ground, phases), _memory(ground)]


def _batches(ground: PreviewInputs) -> str:
    if isinstance(ground.batches, Skip):
        return f"would not try another batch size: {ground.batches.reason}"
    sizes = ", ".join(str(value["batch_size"]) for value in ground.batches)
    if Effect.TRAINING in ground.allowed:
        return f"would try batch sizes {sizes}"
    return f"would try batch sizes {sizes} if the proof leaves time; to apply: {ALLOW_ALL}"


def _time(ground: PreviewInputs, phases: Phases) -> str:
    """What the budget says: no launch but the first is known yet."""
    search = SEARCH_SHARE * max(phases.left, 0.0)
    kind = "launches of each side one after the other" if ground.in_turn else "live pairs"
    why = f" ({ground.in_turn})" if ground.in_turn else ""
    return (
        f"time: the search up to {duration(search)}, then proof by {kind}{why} and rungs, "
        f"{duration(phases.budget)} in all; a plain launch takes {duration(phases.usual)}"
    )


def _memory(ground: PreviewInputs) -> str:
    record = ground.probe.record
    peak, held, whose = record.peak_memory_bytes, record.peak_host_bytes, "of the main process"
    if ground.facts.device != "cpu":
        held, whose = CONTEXT_BYTES + (record.peak_reserved_bytes or 0), "on the GPU"
    if peak is None:
        return "memory: not known"
    if ground.in_turn:
        return f"memory: about {byte_size(peak)} {whose}, one launch at a time"
    both = byte_size(2 * max(peak, held or 0))
    return (
        f"memory: about {byte_size(peak)} {whose} in a trial, up to {both} while a pair runs; "
        "some changes take more"
    )
