"""Load batches in worker processes while the model computes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, LoaderCall, Skip
from gpurun.knobs.loading.loader_fitness import why_no_workers
from gpurun.knobs.loading.loader_need import (
    DataWait,
    data_wait,
    hands_out_on_gpu,
    no_core_left,
    takes_cores_of_the_model,
    workers_now,
)
from gpurun.knobs.loading.marked_arguments import MarkedInt
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

SHORTER = 8
"""Other changes may shorten a step on a GPU to an eighth."""
CORES_LEFT = 2
"""For the script itself and the thread that pins its batches."""
MANY = 32
"""Workers of a first guess: more take memory and seconds to start, and are seldom worth it."""
GAIN = 1.05
"""Twice the workers must gain this much to be doubled again."""
SHORT_EPOCH = 500
"""Batches: a loader with fewer is opened so often that starting its workers anew would show."""
LIKELY_ON_CPU = 0.25
"""Workers on the cores of a model seldom save more than they cost if the wait is a smaller part of
the step, and would spoil a set of changes."""
NEEDS_WORKERS = ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context")
"""Arguments that DataLoader refuses without workers."""


class LoaderWorkers(Knob):
    """`DataLoader(num_workers=n)`: samples are loaded in processes of their own.

    Helps when the step waits for data. The first guess is the number of workers that hides the
    measured wait behind the rest of the step, and at least one for two cores. Beside a GPU it is
    the number for a step an eighth as long, because other changes shorten the step. A worker
    computes with one thread; the script used as many as it was seen to keep busy. It is doubled
    while that gains. A loader that waits for storage profits beyond the number of cores, one that
    computes does not: only trials tell. Short epochs get `loader_persistent` with it, for workers
    started anew would eat the gain.

    Risks: workers draw the transforms' random numbers: other draws from the same distributions.
    Forked workers that read from one pipe, socket or data base mix up samples without an error.
    Iterable data sets are repeated by each worker unless they shard themselves. Start methods other
    than fork need a picklable data set and a `__main__` guard. All these are left alone. (Open
    files are no risk: each worker opens them again.) Workers do not see what the script changes in
    the data set during an epoch: that is noticed, and recorded.
    """

    name: ClassVar[str] = "loader_workers"
    answers: ClassVar[tuple[FindingType, ...]] = (FindingType.DATA_LOADING,)
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 10

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
        """As many as hide the wait, and about one a core; fewer when they crowd the host."""
        wait = data_wait(facts)
        if isinstance(wait, Skip):
            return wait
        refusal = _refusal(facts)
        if refusal is not None:
            return refusal
        present, most = workers_now(facts), _most(facts)
        busy = no_core_left(facts)
        if wait.noticeable and busy is not None:
            return busy
        if wait.noticeable:
            values = [2 * present] if present else _first_guesses(facts, wait)
        elif present and present >= _cores_a_rank(facts):
            values = [present // 2, 0]
        else:
            return wait.too_short
        bounded = [min(value, most) for value in values]
        return [v for v in dict.fromkeys(bounded) if v != present] or Skip(f"{present} is the most")

    def refine(self, facts: Facts, value: int, gain: float) -> int | None:
        """Twice as many while that gains; `gain` is over the best value tried before."""
        wait = data_wait(facts)
        if value == 0 or gain <= GAIN or isinstance(wait, Skip) or 2 * value > _most(facts):
            return None
        whole = wait.wait_ms + wait.compute_ms
        nothing_left = gain * wait.compute_ms >= 0.97 * whole
        return None if nothing_left else 2 * value

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

    def apply(self, value: int, hooks: Hooks) -> None:
        """Set `num_workers` of the loaders that can have them."""
        from gpurun.knobs.loading.applied.changed_datasets import watch_datasets
        from gpurun.knobs.loading.applied.loader_iterators import end_workers_at_exit, on_opening
        from gpurun.knobs.loading.applied.worker_starts import start_apart

        end_workers_at_exit()
        on_opening(start_apart)

        def edit(call: LoaderCall) -> None:
            if call.training is False:
                return
            reason = _unfit(call, value, hooks)
            if reason is None:
                _set_workers(call, value)
                hooks.applied(f"{call.key}: workers {value}")
            else:
                hooks.skipped(f"{call.key}: {reason}")

        hooks.before_loader(edit)
        watch_datasets(hooks.revoked)


def _refusal(facts: Facts) -> Skip | None:
    for loader in facts.loaders_of_training():
        if loader.subclass:
            return Skip(f"{loader.class_name} is a subclass of DataLoader with rules of its own")
        if loader.start_method not in (None, "fork") and "no_guard" in facts.traits:
            return Skip(f"no __main__ guard: a worker started by {loader.start_method} would rerun")
    return None


def _cores_a_rank(facts: Facts) -> int:
    return max(1, int(facts.machine.cores / max(1, facts.result.ranks)))


def _most(facts: Facts) -> int:
    return max(1, int(max(4 * facts.machine.cores, 16) / max(1, facts.result.ranks)))


def _first_guesses(facts: Facts, wait: DataWait) -> list[int]:
    cores = _cores_a_rank(facts)
    if wait.compute_ms <= 0:
        return [cores]
    hides = math.ceil(wait.wait_ms / wait.compute_ms) + 1
    if facts.device != "cpu":
        work = wait.wait_ms * _cores_of_the_wait(facts, wait)
        shorter = math.ceil(SHORTER * work / wait.compute_ms) + 1
        hides = max(hides, cores // 2, min(shorter, cores - CORES_LEFT))
        if hides > MANY:
            return [MANY, hides]
        if 4 * hides > 3 * cores:
            return [hides, max(1, cores // 2)]
    return [hides, cores] if 2 * hides > cores > 1 else [hides]


def _cores_of_the_wait(facts: Facts, wait: DataWait) -> float:
    """The number of cores that load a batch now: torch computes on all of them, and on one in a
    worker."""
    host = facts.result.host
    if workers_now(facts) or host is None or host.cpu_percent is None or wait.wait_ms <= 0:
        return 1.0
    busy = host.cpu_percent / 100 / max(1, facts.result.ranks)
    loading = (busy * (wait.wait_ms + wait.compute_ms) - wait.compute_ms) / wait.wait_ms
    return min(max(loading, 1.0), float(_cores_a_rank(facts)))


def _unfit(call: LoaderCall, value: int, hooks: Hooks) -> str | None:
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
    arguments["num_workers"] = MarkedInt(value)
    if value == 0:
        for name in NEEDS_WORKERS:
            arguments.pop(name, None)


def _short_epochs(facts: Facts) -> bool:
    """True if a loader that keeps no workers yet has few batches an epoch."""
    loaders = [x for x in facts.loaders_of_training() if not x.persistent_workers]
    return any(x.length is not None and x.length <= SHORT_EPOCH for x in loaders)
