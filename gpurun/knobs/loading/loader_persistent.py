"""Keep the loader's workers from one epoch to the next."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.added_workers import MarkedTrue
from gpurun.knobs.loading.loader_fitness import holds_written_file
from gpurun.knobs.loading.loader_need import edit_loaders, without_workers, workers_now
from gpurun.knobs.source_forms import AroundLoaders, LoaderArgument, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

SHORT_EPOCH_MS = 60_000.0
"""Starting workers takes tenths of a second to seconds: nothing in an epoch longer than this."""
RENEWED = (
    "gpurun began new workers: an epoch was left early, or the data set or a worker's copy changed"
)
KEEP_DRAWS = """\
def keep_draws(loader):
    \"\"\"Draw a seed in each epoch, as torch does for new workers: it shuffles alike.

    Workers keep the data set with which they began: nothing may change it between epochs.
    \"\"\"

    class KeptDraws(type(loader)):
        def __iter__(self):
            if self._iterator is not None:
                torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            return super().__iter__()

    loader.__class__ = KeptDraws
    return loader
"""


class LoaderPersistent(Knob):
    """`DataLoader(persistent_workers=True)`: workers live on when an epoch ends.

    Helps when epochs are short, or when workers are slow to start (spawn, big data sets).

    Risks: each worker keeps its copy of the data set from the start. So workers are started anew
    where the data set or the copy of one of them (a cache that it filled) has changed: an
    attribute, a class attribute, a closure, a cached function, or a global that its methods or the
    script's functions that they call read. Not compared are large arrays changed in place, items
    of a list from the 65th on, and what installed packages hold. They are also started anew after
    an epoch that the script left early. The workers' memory stays in use.
    """

    name = "loader_persistent"
    answers = (FindingType.DATA_LOADING,)
    effect = Effect.PIPELINE
    order = 12
    likely = True

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """Keep them, where epochs are short."""
        loaders = facts.loaders_of_training()
        if not loaders:
            return Skip("no DataLoader feeds the training")
        if not workers_now(facts):
            return Skip("the loader has no workers")
        if all(loader.persistent_workers for loader in loaders):
            return Skip("the script keeps its workers already")
        step = facts.result.step_time_ms
        lengths = [x.length for x in loaders if x.length is not None and not x.persistent_workers]
        if step is not None and lengths and min(lengths) * step.mean > SHORT_EPOCH_MS:
            return Skip("epochs are long: the start of workers hardly counts")
        return [True]

    def source_forms(self, value: bool) -> Sequence[SourceForm]:
        """The switch, and the draws that torch leaves out with it."""
        around = AroundLoaders("keep_draws", KEEP_DRAWS, ("import torch",))
        return [LoaderArgument("persistent_workers", str(value)), around]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Set `persistent_workers` of the loaders that have workers."""
        from gpurun.knobs.loading.applied.changed_datasets import keep_draws
        from gpurun.knobs.loading.applied.loader_iterators import LOST_WORKERS, end_workers_at_exit

        keep_draws(lambda: hooks.runtime_only(RENEWED))
        end_workers_at_exit()
        LOST_WORKERS.append(hooks.revoked)

        def keep(call: LoaderCall) -> str:
            call.arguments["persistent_workers"] = MarkedTrue(True)
            return "kept"

        if value:
            edit_loaders(hooks, _unfit, keep)


def _unfit(call: LoaderCall) -> str | None:
    if holds_written_file(call.arguments.get("dataset")):
        return without_workers(call) or "the data set holds a file that is open for writing too"
    return without_workers(call)
