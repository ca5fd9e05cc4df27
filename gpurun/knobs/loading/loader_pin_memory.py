"""Hand out batches in page-locked memory."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.loader_fitness import on_cuda
from gpurun.knobs.loading.loader_need import edit_loaders, hands_out_on_gpu, not_fed_from_host
from gpurun.knobs.source_forms import LoaderArgument, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class LoaderPinMemory(Knob):
    """`DataLoader(pin_memory=True)`: a thread copies each batch into page-locked memory.

    Helps copies to the GPU: they are two to three times faster from there. With `non_blocking`
    copies they can run beside kernels.

    Risks: page-locked memory cannot be swapped out; small batches may cost more than they gain.
    Batches that are on the GPU already cannot be pinned and are left alone.
    """

    name = "loader_pin_memory"
    answers = (FindingType.H2D_COPY,)
    effect = Effect.PIPELINE
    order = 16
    likely = True

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """Pin, where training is on a GPU and the script does not."""
        loaders = facts.loaders_of_training()
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        unfed = not_fed_from_host(facts)
        if unfed is not None:
            return unfed
        if all(loader.pin_memory for loader in loaders):
            return Skip("the script pins already")
        return [True]

    def source_forms(self, value: bool) -> Sequence[SourceForm]:
        """The switch."""
        return [LoaderArgument("pin_memory", str(value))]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Set `pin_memory` of the loaders whose batches are in host memory."""
        from gpurun.knobs.loading.applied.loader_iterators import end_workers_at_exit

        def pin(call: LoaderCall) -> str:
            call.arguments["pin_memory"] = value
            return "pinned" if value else "not pinned"

        end_workers_at_exit()
        edit_loaders(hooks, lambda call: _unfit(call, hooks), pin)


def _unfit(call: LoaderCall, hooks: Hooks) -> str | None:
    import torch

    if call.subclass:
        return "a subclass of DataLoader"
    if not torch.cuda.is_available():
        return "there is no GPU to copy to"
    if hands_out_on_gpu(call, hooks) or on_cuda(call.arguments.get("dataset")):
        return "its batches are on the GPU already"
    return None
