"""Keep what the forward pass saves for the backward pass in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import NOT_ON_GPU, Effect, Hooks, Knob, Skip
from gpurun.knobs.memory.memory_need import not_needed
from gpurun.records.facts import Facts


class ActivationOffload(Knob):
    """Large saved tensors of the root's forward wait in page-locked host memory ("host").

    Helps a model that does not fit, if the host has room and a copy costs less than computing again
    (`checkpointing`). Copies run on their own stream while the model computes, and come back ahead
    of their use. Values are copied, so training is the same.

    Risks: a slow link to the host holds the model up. The host needs as much page-locked memory as
    the activations take, rounded up to powers of two, and the first step waits for it. Tensors
    below 1 MiB, parameters and buffers stay where they are.
    """

    name = "activation_offload"
    effect = Effect.NUMERICS
    choices = ("host",)
    order = 74
    acts_on = "model"
    saves_memory = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """To the host, for a model on a GPU."""
        if facts.device != "cuda":
            return Skip(NOT_ON_GPU)
        return not_needed(facts) or ["host"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand around the calls of the roots."""
        from gpurun.knobs.memory.applied.offloaded_activations import OffloadedActivations

        offload = OffloadedActivations(hooks)
        hooks.on_root(offload.root_found)
        hooks.around_root_call(lambda: offload)
        hooks.on_step(offload.step_done)
