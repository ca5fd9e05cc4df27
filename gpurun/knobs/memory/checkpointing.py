"""Keep only the inputs of a model's blocks, and compute the rest again in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.memory.memory_need import not_needed, unfit_root
from gpurun.records.facts import Facts

if TYPE_CHECKING:
    from torch.nn import Module

SHARDED = ("FullyShardedDataParallel", "FSDPModule", "DeepSpeedEngine")
OWN_SWITCHES = ("gradient_checkpointing", "grad_checkpointing", "use_checkpoint")
"""Attributes that switch checkpointing on in models (of transformers, timm, Swin)."""
ITSELF = "the script checkpoints by itself"


class Checkpointing(Knob):
    """Gradient checkpointing of the model's repeated blocks: "blocks" all, "half" every second.

    Helps a model that does not fit. It keeps only the input of each block, and computes the rest
    again in the backward pass. A model of transformers gets its own switch ("blocks"). In any other
    model, the blocks are those of the repeated class that holds most parameters.

    Risks: about a third more time. The forward of a block runs twice a step, and two more times in
    the first step, to check that it repeats its result. Its own counters, lists and hooks see every
    run. Random numbers are drawn as before and BatchNorm's statistics updated once. A model of
    transformers then returns no cache. It skips a block that draws from its own generator, gets an
    object that it may change (a cache), or whose input is changed in place.
    """

    name = "checkpointing"
    effect = Effect.NUMERICS
    choices = ("half", "blocks")
    order = 70
    acts_on = "model"
    saves_memory = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """All blocks for a script that does not fit yet, else also what costs less time."""
        found = not_needed(facts)
        if found is not None:
            return found
        fits = not facts.out_of_memory or self.name in facts.current
        return self.choices if fits else ["blocks"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Choose the blocks of each root when it is found."""
        from gpurun.knobs.memory.applied.checkpointed_blocks import (
            CheckpointedBlocks,
            repeated_blocks,
        )

        blocks = CheckpointedBlocks(hooks)

        def root_found(module: Module) -> None:
            reason = unfit_root(module, hooks) or _unfit(module)
            if reason is not None:
                hooks.skipped(reason)
            elif value == "blocks" and (switch := _own_switch(module)) is not None:
                switch.gradient_checkpointing_enable({"use_reentrant": False})
                hooks.applied(f"{type(switch).__name__}: its own switch")
            else:
                found = repeated_blocks(module)
                blocks.choose(module, found if value == "blocks" else found[::2])

        hooks.on_root(root_found)
        hooks.on_step(blocks.step_done)


def _own_switch(root: Module) -> Any | None:
    """The model in it that transformers can tell to checkpoint."""
    for module in root.modules():
        if getattr(module, "supports_gradient_checkpointing", False) is True:
            if hasattr(module, "gradient_checkpointing_enable"):
                return module
    return None


def _unfit(root: Module) -> str | None:
    for module in root.modules():
        if any(cls.__name__ in SHARDED for cls in type(module).__mro__):
            return "its parameters are sharded"
        if type(module).__name__ == "CheckpointWrapper":
            return ITSELF
        if any(getattr(module, name, None) is True for name in OWN_SWITCHES):
            return ITSELF
    return None
