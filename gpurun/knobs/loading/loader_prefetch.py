"""Let each worker keep more batches ready."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.loader_need import (
    data_wait,
    edit_loaders,
    no_core_left,
    without_workers,
    workers_now,
)
from gpurun.knobs.source_forms import LoaderArgument, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

MOST = 8
TORCH_DEFAULT = 2


class LoaderPrefetch(Knob):
    """`DataLoader(prefetch_factor=n)`: each worker loads n batches ahead (torch's default is 2).

    Helps when the time to load a batch varies much, so that the queue runs dry although the workers
    are fast enough on average. It needs workers.

    Risks: workers × n batches lie in shared memory, which containers often keep small.
    """

    name = "loader_prefetch"
    answers = (FindingType.DATA_LOADING,)
    effect = Effect.PIPELINE
    order = 14

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """Twice what it is, where the step waits for workers."""
        wait = data_wait(facts)
        if isinstance(wait, Skip):
            return wait
        if not workers_now(facts):
            return Skip("the loader has no workers")
        if not wait.noticeable:
            return wait.too_short
        busy = no_core_left(facts)
        if busy is not None:
            return busy
        present = {x.prefetch_factor or TORCH_DEFAULT for x in facts.loaders_of_training()}
        twice = 2 * max(present)
        return [twice] if twice <= MOST else Skip("it is high already")

    def refine(self, facts: Facts, value: int, gain: float) -> int | None:
        """Twice as many again after a gain."""
        return 2 * value if 2 * value <= MOST else None

    def source_forms(self, value: int) -> Sequence[SourceForm]:
        """The number."""
        return [LoaderArgument("prefetch_factor", str(value))]

    def apply(self, value: int, hooks: Hooks) -> None:
        """Set `prefetch_factor` of the loaders that have workers."""
        from gpurun.knobs.loading.applied.loader_iterators import LOST_WORKERS

        LOST_WORKERS.append(hooks.revoked)

        def change(call: LoaderCall) -> str:
            call.arguments["prefetch_factor"] = value
            return f"batches a worker {value}"

        edit_loaders(hooks, without_workers, change)
