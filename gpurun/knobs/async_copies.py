"""Copy what the script itself moves to the GPU without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class AsyncCopies(Knob):
    """The script's own `x.to(device)` and `x.cuda()` return before the GPU is there ("stage").

    Helps where the script makes its batches without a DataLoader. Such a copy waits until the GPU
    has finished all earlier work. Then the GPU idles while the host prepares and launches the next
    step. So the tensor is first copied to page-locked memory, from which the GPU fetches it in its
    own time. Later changes of the script's tensor do not matter.

    Risks: each copy is made twice, and torch keeps the page-locked memory. It leaves other moves
    alone: all moves before the end of the first step (models, data sets), and tensors above 64 MiB,
    complex, page-locked, of other classes, or with gradients.
    """

    name = "async_copies"
    answers = (FindingType.H2D_COPY,)
    effect = Effect.PIPELINE
    choices = ("stage",)
    order = 9
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Stage, where no loader feeds a training on the GPU."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        if facts.loaders_of_training():
            return Skip("a DataLoader feeds the training: device_prefetch copies its batches")
        return ["stage"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand where tensors move."""
        from gpurun.knobs.applied.staged_moves import StagedMoves, page_locked

        staged = StagedMoves(hooks, "cuda", page_locked)
        staged.install()
        hooks.on_step(staged.step_done)
