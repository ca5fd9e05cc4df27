"""Load batches in worker processes while the model computes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.added_workers import AddedWorkers, MarkedInt
from gpurun.knobs.loading.loader_fitness import why_no_workers
from gpurun.knobs.loading.loader_need import (
    DataWait,
    data_wait,
    edit_loaders,
    enough_workers,
    hands_out_on_gpu,
    no_core_left,
    takes_cores_of_the_model,
    workers_now,
)
from gpurun.knobs.source_forms import AroundLoaders, LoaderArgument, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

CORES_LEFT = 2
"""For the script itself and the thread that pins its batches."""
MANY = 32
"""Workers of a first guess: more take memory and seconds to start, and are seldom worth it."""
MEMORY_SHARE = 0.5
"""Forked workers may come to have copies of all that the script holds: in this part of the memory
at most."""
SHORT_EPOCH = 500
"""Batches: a loader with fewer is opened so often that starting its workers anew would show."""
LIKELY_ON_CPU = 0.25
"""Workers on the cores of a model seldom save more than they cost if the wait is a smaller part of
the step, and would spoil a set of changes."""
STREAM = "an iterable data set: workers would repeat it, or hand out its samples in another order"
NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Arguments that DataLoader refuses without workers."""
ADDED = ", none before"
"""How the outcome ends for a loader that has no workers in the script."""
SAMPLE_LATE = """\
def sample_late(loader):
    \"\"\"Ask the sampler at the first batch, as without workers: it shuffles alike.\"\"\"

    class LateIterator(torch.utils.data.dataloader._MultiProcessingDataLoaderIter):
        def _reset(self, loader, first_iter=False):
            self._try_put_index = lambda: None
            super()._reset(loader, first_iter)

        def _next_data(self):
            if vars(self).pop("_try_put_index", None):
                for _ in range(self._prefetch_factor * self._num_workers):
                    self._try_put_index()
            return super()._next_data()

    class SampledLate(type(loader)):
        def _get_iterator(self):
            return LateIterator(self)

    loader.__class__ = SampledLate
    return loader
"""


class LoaderWorkers(Knob):
    """`DataLoader(num_workers=n)`: samples are loaded in processes of their own.

    Helps when the step waits for data. One launch measures 1, 2, 4, ... workers in turns, and the
    fewest within the noise of the best are taken: a loader that waits for storage profits beyond
    the number of cores, one that computes does not. Beside a GPU that happens once other changes
    have shortened the step, if it still waits: the first guess is all cores but two. Where turns
    are not possible (several ranks, a first epoch of another pace) the guess is the number that
    hides the measured wait behind the rest of the step. Short epochs get `loader_persistent` with
    it, for workers started anew would eat the gain.

    Risks: workers draw the transforms' random numbers: other draws from the same distributions. A
    data set with a generator of its own gives each worker a copy: the guard sees other samples.
    Forked workers that read from one pipe, socket or data base mix up samples without an error.
    Workers repeat an iterable data set, or hand out its samples in another order; even one misses
    what such a set changes when a pass ends. Start methods other than fork need a picklable data
    set and a `__main__` guard. All these are left alone. (Open files are no risk: each worker opens
    them again.) Where the script changes its data set or sampler between two batches, the loader
    goes on without workers: from the change on if that is one of the first batches, else later.
    """

    name = "loader_workers"
    answers = (FindingType.DATA_LOADING,)
    effect = Effect.PIPELINE
    order = 10

    def is_likely(self, facts: Facts) -> bool:
        """Unless the workers take the model's cores, and the wait is a small part of the step.

        Fewer workers are never likely: a set of changes shortens the step, and needs them all.
        """
        wait = data_wait(facts)
        if isinstance(wait, DataWait) and not wait.noticeable:
            return False
        large = isinstance(wait, DataWait) and wait.share > LIKELY_ON_CPU
        return large or not takes_cores_of_the_model(facts)

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """The fewest that turns found to be enough, else as many as hide the wait; none, too, where
        workers only crowd the host."""
        wait = open_wait(facts)
        if isinstance(wait, Skip):
            return wait
        present, measured = workers_now(facts), facts.worker_rates
        crowd = [] if wait.noticeable else [0]
        if measured:
            value = enough_workers(measured)
            values = [value, *crowd] if value != present else crowd
            return values or Skip(f"{value} are enough")
        if not present:
            return [_first_guess(facts, wait)]
        more = 2 * present
        if facts.device != "cpu":  # other changes may shorten the step further
            more = max(more, _first_guess(facts, wait))
        value = present // 2 if crowd else min(more, _most(facts))
        return [value, *crowd] if value != present else Skip(f"{present} is the most")

    def companions(self, facts: Facts, value: int) -> dict[str, Any]:
        """Fewer threads for a model on the same cores, so that workers and threads do not compete
        (on two cores that costs all of the gain). In short epochs workers that live on."""
        lasting: dict[str, Any] = (
            {"loader_persistent": True} if value and _short_epochs(facts) else {}
        )
        cores = _cores_a_rank(facts)
        threads = facts.current.get("cpu_threads", facts.threads)
        if facts.device != "cpu" or value == 0 or threads is None or value + threads <= cores:
            return lasting
        fewer = max(1, cores - min(value, cores - 1))
        return {"cpu_threads": fewer, **lasting} if fewer < threads else lasting

    def source_forms(self, value: int) -> Sequence[SourceForm]:
        """The number, and the order of draws that a loader has without workers."""
        around = AroundLoaders("sample_late", SAMPLE_LATE, ("import torch",), ADDED)
        return [LoaderArgument("num_workers", str(value)), *([around] if value else [])]

    def apply(self, value: int, hooks: Hooks) -> None:
        """Set `num_workers` of the loaders that can have them."""
        from gpurun.knobs.loading.applied.loader_iterators import (
            LOST_WORKERS,
            end_workers_at_exit,
            on_opening,
            on_reading,
            sample_late,
            start_apart,
        )
        from gpurun.knobs.loading.applied.script_changes import watch_changes

        end_workers_at_exit()
        LOST_WORKERS.append(hooks.revoked)
        on_opening(start_apart)
        watch_changes(hooks.revoked)  # before the sampler is asked
        on_reading(sample_late)

        def change(call: LoaderCall) -> str:
            _set_workers(call, value)
            added = ADDED if isinstance(call.arguments["num_workers"], AddedWorkers) else ""
            return f"workers {value}{added}"

        edit_loaders(hooks, lambda call: _unfit(call, value, hooks), change)


def open_wait(facts: Facts) -> DataWait | Skip:
    """The wait for data that another number of workers may change, or why none is tried."""
    wait = data_wait(facts)
    if isinstance(wait, Skip):
        return wait
    crowded = workers_now(facts) >= _cores_a_rank(facts)
    if not wait.noticeable and not crowded:
        return wait.too_short
    return _refusal(facts) or (no_core_left(facts) if wait.noticeable else None) or wait


def numbers_for_turns(facts: Facts) -> tuple[int, ...] | Skip:
    """The numbers of workers that one launch can measure in turns, or why none."""
    wait, loaders, result = open_wait(facts), facts.loaders_of_training(), facts.result
    if isinstance(wait, Skip):
        return wait
    if any(loader.iterable or loader.start_method == "spawn" for loader in loaders):
        return Skip("iterable data keep their workers, or a worker starts slowly (spawn)")
    if result.ranks > 1 or result.epoch_pace is not None:
        return Skip("it runs in several ranks, or its first epoch loads at another pace")
    present = workers_now(facts)
    most = _most(facts) if wait.noticeable else present
    if result.host is not None and result.host.peak_rss_bytes:
        copies = MEMORY_SHARE * facts.machine.memory_bytes / result.host.peak_rss_bytes
        most = max(min(most, int(copies)), 1)
    numbers = {present, most, *(1 << n for n in range(most.bit_length()))} - {0}
    return tuple(sorted(number for number in numbers if number <= most))


def _refusal(facts: Facts) -> Skip | None:
    loaders = facts.loaders_of_training()
    if all(loader.iterable for loader in loaders):
        return Skip(STREAM)
    for loader in loaders:
        if loader.subclass:
            return Skip(f"{loader.class_name} is a subclass of DataLoader with rules of its own")
        if loader.start_method not in (None, "fork") and "no_guard" in facts.traits:
            return Skip(f"no __main__ guard: a worker started by {loader.start_method} would rerun")
    return None


def _cores_a_rank(facts: Facts) -> int:
    return max(1, int(facts.machine.cores / max(1, facts.result.ranks)))


def _most(facts: Facts) -> int:
    return max(1, int(max(4 * facts.machine.cores, 16) / max(1, facts.result.ranks)))


def _first_guess(facts: Facts, wait: DataWait) -> int:
    cores = _cores_a_rank(facts)
    hides = math.ceil(wait.wait_ms / wait.compute_ms) + 1 if wait.compute_ms > 0 else cores
    if facts.device != "cpu":
        hides = min(max(hides, cores - CORES_LEFT), MANY)
    return min(hides, _most(facts))


def _unfit(call: LoaderCall, value: int, hooks: Hooks) -> str | None:
    if call.iterable:
        return STREAM
    if value == 0:
        return "a subclass of DataLoader" if call.subclass else None
    if hands_out_on_gpu(call, hooks):
        return "the loader hands out CUDA tensors"
    return why_no_workers(call, no_guard=hooks.has_trait("no_guard") is not None)


def _set_workers(call: LoaderCall, value: int) -> None:
    arguments: dict[str, Any] = call.arguments
    if value > len(os.sched_getaffinity(0)):
        # more workers than cores were measured to be better; torch's advice is about less
        warnings.filterwarnings("ignore", message="This DataLoader will create")
    arguments["num_workers"] = (MarkedInt if arguments.get("num_workers") else AddedWorkers)(value)
    if value == 0:
        for name in NEEDS_WORKERS:
            arguments.pop(name, None)


def _short_epochs(facts: Facts) -> bool:
    """True if a loader that keeps no workers yet has few batches an epoch."""
    loaders = [x for x in facts.loaders_of_training() if not x.persistent_workers]
    return any(x.length is not None and x.length <= SHORT_EPOCH for x in loaders)
