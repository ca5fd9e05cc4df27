"""Let loader workers write their batches into shared memory that they have used before."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.added_workers import MarkedTrue
from gpurun.knobs.loading.loader_fitness import start_method
from gpurun.knobs.loading.loader_need import (
    edit_loaders,
    not_fed_from_host,
    pinned_batches,
    without_workers,
    workers_now,
)
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class LoaderBuffers(Knob):
    """Workers collate batches into shared memory that was used before ("reuse").

    Helps when workers deliver large batches that are pinned. For each batch torch makes a new
    segment. The kernel zeroes it and maps it page by page, in the worker and again in the thread
    that pins. This takes longer than to write the batch. Once that thread has copied a batch to
    page-locked memory, its segment is free for the next one.

    Risks: the segments stay allocated while the loader is open: about as many as torch needs at its
    peak, and never more than half of /dev/shm. Only tensors that torch's own `default_collate`
    allocates are reused. Batches with tensors that torch does not pin, and tensors that the data
    set keeps or sends again, are never overwritten. Left alone: workers that are not forked, the
    sharing strategy "file_system".
    """

    name = "loader_buffers"
    answers = (FindingType.DATA_LOADING,)
    effect = Effect.PIPELINE
    choices = ("reuse",)
    order = 17
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Reuse, where forked workers feed a training on the GPU."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        unfed = not_fed_from_host(facts)
        if unfed is not None:
            return unfed
        if not workers_now(facts):
            return Skip("the loader has no workers")
        if all(x.start_method not in (None, "fork") for x in facts.loaders_of_training()):
            return Skip("the loader's workers are not forked")
        return ["reuse"]

    def companions(self, facts: Facts, value: str) -> dict[str, bool]:
        """Pinned batches."""
        return pinned_batches(facts)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Mark the fit loaders, and stand where workers allocate and where batches are pinned."""

        def mark(call: LoaderCall) -> str:
            call.arguments["pin_memory"] = MarkedTrue(True)
            return ""

        def loaders_are_here(dataloader: ModuleType) -> None:
            from gpurun.knobs.loading.applied.loader_iterators import LOST_WORKERS
            from gpurun.knobs.loading.applied.reused_segments import ReusedSegments

            LOST_WORKERS.append(hooks.revoked)
            ReusedSegments(hooks).install(dataloader)
            edit_loaders(hooks, _unfit, mark)

        hooks.on_import("torch.utils.data.dataloader", loaders_are_here)


def _unfit(call: LoaderCall) -> str | None:
    import torch

    lacking = without_workers(call)
    if lacking is not None:
        return lacking
    if not call.arguments.get("pin_memory") or not torch.cuda.is_available():
        return "its batches are not pinned"
    if start_method(call.arguments) != "fork":
        return "its workers are not forked"
    return None
