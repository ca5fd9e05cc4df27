"""Measures a training under several numbers of loader workers, in turns of one process.

The loader starts with the most workers. In a turn only the first few are given batches; the others
wait for work, which costs nothing. Batches keep the sampler's order. An item's random draws depend
on the worker that loads it, so only the speed of these steps says anything.

A turn begins to count when the batches that were sent out before it are used up, and one more of
each worker; where there were more workers before, all that the fewer ones have read ahead.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from gpurun.knobs.loading.added_workers import MarkedInt
from gpurun.knobs.loading.loader_need import WITHIN, worker_rates
from gpurun.records.events import WorkerTurnEvent
from gpurun.records.spec import StopRule, WorkerTurnPlan
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.torch_loader_internals import STREAM, WORKERS

LEAST_SECONDS = 0.3
"""Of what counts in a turn, as in the turns of live pairs that workers feed."""
LEAST_BATCHES = 4
MOST_ROUNDS = 8
"""A turn ends with a whole round of its workers, or after so many: they may load in step."""
LOSSES = 2
"""The number is not raised further after so many that gained nothing over a smaller one."""

now = time.perf_counter_ns


class ActiveWorkers:
    """Has the loaders with added workers send their batches to the first `count` of them.

    `handed_out`: batches of these loaders so far. `ahead`: what one worker reads ahead.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.handed_out = 0
        self.ahead = 2

    def install(self) -> None:
        """Replace the method by which torch sends out the indices of a batch."""
        loaders: Any = torch.utils.data.dataloader
        replace(loaders._MultiProcessingDataLoaderIter, "_try_put_index", self._watch)

    def _watch(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def _try_put_index(iterator: Any) -> None:
            if isinstance(iterator._num_workers, MarkedInt) and iterator._dataset_kind != STREAM:
                self._send(iterator, original)
            else:
                original(iterator)

        return _try_put_index

    def _send(self, iterator: Any, original: Callable[[Any], None]) -> None:
        """Send out as many batches as are missing: none after there were more workers."""
        self.handed_out += iterator._rcvd_idx > 0  # an epoch's first ones replace none
        self.ahead = iterator._prefetch_factor
        sent = -1
        while sent < iterator._send_idx and len(iterator._task_info) < self.ahead * self.count:
            sent, count = iterator._send_idx, self.count
            iterator._worker_queue_idx_cycle = (n % count for n in itertools.count(sent))
            original(iterator)


class WorkerTurns:
    """The turns of this process. `rule`: of its trial."""

    def __init__(self, rule: StopRule, plan: WorkerTurnPlan) -> None:
        self._rule = rule
        self._plan = plan
        self._threads = dict(zip(plan.workers, plan.threads, strict=True))
        self._workers = ActiveWorkers(plan.workers[0])
        self._rates: dict[int, list[float]] = {}
        """Batches a second of the turns so far, by number of workers."""
        self._order = self._numbers()
        self._until: float | None = None
        self._began: tuple[int, int, int] | None = None
        """Batch, step and time at which the turn began to count."""
        self._counts_from = self._passes = 0

    def begin(self) -> None:
        """Watch the loaders."""
        self._workers.install()

    def enough(self, count: int, end_ns: int) -> str | None:
        """After each step: why the trial has seen enough, None if it has not."""
        if count >= self._rule.max_steps:
            return "max_steps"
        if count < self._rule.warmup_steps:
            return None
        if self._until is None:
            self._until = end_ns + self._plan.seconds * 1e9
            self._next_turn()
        elif end_ns > self._until:
            return "enough"
        elif self._passes != WORKERS.passes and not self._plan.epoch_steps:
            self._settle()  # what an epoch's start costs is no matter of one turn
        elif self._began is None:
            if self._workers.handed_out >= self._counts_from:
                self._began = self._workers.handed_out, count, end_ns
        elif self._is_over(count, end_ns):
            self._write(end_ns)
            return None if self._next_turn() else "enough"
        return None

    def _next_turn(self) -> bool:
        number = next(self._order, None)
        if number is None:
            return False
        before, self._workers.count = self._workers.count, number
        threads = self._threads[number]
        if threads is not None:
            torch.set_num_threads(threads)
        self._settle(before)
        return True

    def _settle(self, before: int = 0) -> None:
        """Wait until batches that were sent out to `before` workers are used up, and then some."""
        self._began, self._passes = None, WORKERS.passes
        ahead, number = self._workers.ahead, self._workers.count
        own = ahead * number if before > number else number  # fewer may have some ready by then
        self._counts_from = self._workers.handed_out + ahead * before + own

    def _is_over(self, count: int, end_ns: int) -> bool:
        assert self._began is not None
        batches, steps = self._workers.handed_out - self._began[0], count - self._began[1]
        if end_ns - self._began[2] < LEAST_SECONDS * 1e9 or batches < LEAST_BATCHES:
            return False
        if self._plan.epoch_steps:
            return steps % self._plan.epoch_steps == 0
        number = self._workers.count
        return batches % number == 0 or batches > MOST_ROUNDS * number

    def _write(self, end_ns: int) -> None:
        assert self._began is not None
        batch, _, begin_ns = self._began
        number = self._workers.count
        rate = (self._workers.handed_out - batch) / (end_ns - begin_ns) * 1e9
        self._rates.setdefault(number, []).append(rate)
        RECORDER.event(WorkerTurnEvent(number, begin_ns, end_ns))

    def _numbers(self) -> Iterator[int]:
        """Upwards while that gains, then all of these in random order until the error is small."""
        losses = 0
        for number in self._plan.workers:
            best = max((seen[0] for seen in self._rates.values()), default=0.0)
            yield number
            losses = 0 if self._rates[number][0] > (1 + WITHIN) * best else losses + 1
            if losses == LOSSES:
                break
        draws = random.Random(self._rule.max_steps)
        error = 1.0
        while error > WITHIN:
            yield from draws.sample(list(self._rates), len(self._rates))
            error = max(rate.error or 0.0 for rate in worker_rates(self._rates))
