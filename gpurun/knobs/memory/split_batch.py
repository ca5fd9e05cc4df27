"""Run the model on slices of each batch, so that the activations of one slice live at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.memory.memory_need import not_needed
from gpurun.records.facts import Facts

VALUES = (2, 4, 8)


class SplitBatch(KnobBase):
    """The same batch, in 2, 4 or 8 slices: the model's forward runs on one after the other.

    Helps a batch that does not fit. Of each slice only the input and the output are kept; the rest
    is computed again when the backward pass comes to it. The outputs are joined, so the loss, the
    clipping and the optimizer see the whole batch, and the gradients are the same but for rounding.

    How it bites: about a third more time, and smaller kernels. Dropout draws other numbers. Only
    for models of which each sample's output depends on that sample alone, which a few rows of the
    first batch must show: not with BatchNorm that trains, and not where the forward returns the
    loss. The forward runs twice on each slice: what it appends or counts by hand is seen so often.
    """

    name: ClassVar[str] = "split_batch"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 72
    acts_on: ClassVar[str] = "model"
    saves_memory: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """As many slices as the batch has pairs of rows."""
        found = not_needed(facts)
        if found is not None:
            return found
        kinds = {kind for root in facts.roots for kind in root.module_types}
        norm = next((kind for kind in sorted(kinds) if "BatchNorm" in kind), None)
        if norm is not None:
            return Skip(f"{norm} takes its statistics over the whole batch")
        rows = facts.result.batch_size
        values = [value for value in VALUES if rows is None or 2 * value <= rows]
        return values or Skip("the batch is too small to split")

    def apply(self, value: int, hooks: Hooks) -> None:
        """Stand in for the forward of each root when it is found."""
        if type(value) is not int or value < 2:
            hooks.skipped(f"cannot split a batch into {value!r}")
            return
        from gpurun.knobs.memory.applied.sliced_forwards import SlicedForwards

        hooks.on_root(SlicedForwards(value, hooks).root_found)
