"""Copy batches to the GPU ahead of their use, beside the kernels of the step before."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.loading.loader_need import not_fed_from_host, pinned_batches
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class DevicePrefetch(Knob):
    """The device copy of a batch begins when the loader has pinned it ("ahead").

    Helps scripts that move batches to the GPU with `x.to(device)`. A blocking copy first waits for
    all kernels of the step before, so the host cannot run ahead, and the GPU idles during the copy.
    The loader still hands out tensors of the host. If the script moves one, it gets the copy that
    exists already or is being made.

    Risks: two batches more lie in device memory. A tensor that was changed since, by operations of
    torch or through `numpy()`, is copied again. A change without torch's knowledge would leave a
    stale copy. So the first copies are compared, and one difference ends the knob. It needs pinned
    batches: their memory is never reused for the next one while a copy is under way.
    """

    name = "device_prefetch"
    answers = (FindingType.H2D_COPY, FindingType.DATA_LOADING)
    effect = Effect.PIPELINE
    choices = ("ahead",)
    order = 18
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Ahead, where a loader feeds a training on the GPU from the host."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        return not_fed_from_host(facts) or ["ahead"]

    def companions(self, facts: Facts, value: str) -> dict[str, bool]:
        """Pinned batches."""
        return pinned_batches(facts)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand where loaders pin and where tensors move."""

        def loaders_are_here(pinning: ModuleType) -> None:
            import torch

            from gpurun.knobs.applied.copies_ahead import (
                BatchesAhead,
                CopiesAhead,
                SideStream,
            )

            if not torch.cuda.is_available():
                hooks.skipped("there is no GPU to copy to")
                return
            BatchesAhead(CopiesAhead(SideStream()), hooks, "cuda").install(pinning)

        hooks.on_import("torch.utils.data._utils.pin_memory", loaders_are_here)
