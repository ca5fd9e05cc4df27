"""Keep the activations that the script computes again, where memory has room for them."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.memory.memory_need import memory_is_scarce
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType
from gpurun.records.messages.traits import RECOMPUTES

HOST_ROOM = 0.25
"""On the CPU the script may take this part of the memory at most, for activations come on top."""


class NeedlessRecompute(Knob):
    """`torch.utils.checkpoint` calls its function and keeps what the backward pass needs ("skip").

    Helps a script, or a model of transformers or timm, that checkpoints for a smaller GPU than this
    one: it computes forward passes twice without need, up to a third of a step. The results are
    the same numbers.

    Risks: memory. On a GPU a call is computed again as before once half of the memory is taken. So
    is all that would train otherwise: the reentrant kind (`use_reentrant=True`), a call with a
    context of its own or other random numbers, and all of a model whose forward changes buffers.
    """

    name = "needless_recompute"
    effect = Effect.PIPELINE
    choices = ("skip",)
    order = 9
    acts_on = "model"
    likely = True
    answers = (FindingType.RECOMPUTATION,)

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Skip it, where the script was seen to compute a forward again."""
        if RECOMPUTES not in facts.traits:
            return Skip("the script computes no forward again")
        if memory_is_scarce(facts) or "checkpointing" in facts.current:
            return Skip("it saves the memory that is asked for")
        host, memory = facts.result.host, facts.machine.memory_bytes
        held = None if host is None else host.peak_rss_bytes
        if facts.device == "cpu" and (held is None or held > HOST_ROOM * memory):
            return Skip("the script takes much of the host's memory")
        return ["skip"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand in for what torch does around the function."""
        from gpurun.knobs.memory.applied.kept_activations import KeptActivations

        KeptActivations(hooks).install()
