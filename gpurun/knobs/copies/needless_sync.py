"""Let the host run ahead of the GPU where the script waits for it without need."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.source_forms import NoSynchronisation, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class NeedlessSync(Knob):
    """`torch.cuda.synchronize()` in the script's own lines returns at once.

    Helps scripts that wait for the GPU at every step (to time it, or for no reason). The host then
    prepares the next step while the GPU works. Code that reads a result waits for it by itself.

    Risks: times that the script measures around a synchronisation become the host's. Callers inside
    torch and other installed packages still wait: inductor times kernels so. A script that copies
    to the host without blocking, or uses its own streams, needs its synchronisation. From the first
    such call on it waits again.
    """

    name = "needless_sync"
    answers = (FindingType.CPU_GPU_SYNC,)
    effect = Effect.PIPELINE
    choices = ("skip",)
    order = 8
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Skip them, where the script was seen to synchronise."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if "synchronize" not in facts.traits:
            return Skip("the script does not call torch.cuda.synchronize")
        return ["skip"]

    def source_forms(self, value: str) -> Sequence[SourceForm]:
        """The calls go."""
        return [NoSynchronisation()]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand in for the function, and watch for what needs it."""
        from gpurun.knobs.copies.applied.skipped_synchronisation import SkippedSynchronisation

        SkippedSynchronisation(hooks).install()
