"""The step clock: what happened between two optimizer steps, in microseconds of work a step.

The hot path adds into the row of the running step and appends it at the step's end; `hand_over`
turns the rows into an event. Between two steps of a model other code fills the processor's caches.
So each line here costs several times as much as in a separate loop: keep it short. Nothing here
synchronises with a device: loss values and step times of a CUDA device are resolved later, when
their events have completed (`device_clock`).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from threading import get_ident, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any

from gpurun.identity_map import IdentityMap
from gpurun.records.events import CLOCKS, StepRow, StepsEvent
from gpurun.records.messages.traits import place
from gpurun.runtime.core.device_clock import OF_THE_PARENT, DeviceClock
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

FLUSH_NS = 500_000_000
"""A kill loses at most this much of the record, or the last tenth of a shorter one."""
LOSS_EVERY_NS = 10_000_000
"""Outside trials the loss is looked at this seldom: of longer steps each one, for 0.15 % of it."""
PATIENCE = 64
"""After this many backward passes without a step of the optimizers, they are not what steps."""

now = time.perf_counter_ns
SOURCE, END, DATA, FORWARD = StepRow.SOURCE, StepRow.END_NS, StepRow.DATA_NS, StepRow.FORWARD_NS
BACKWARD, OPTIMIZER = StepRow.BACKWARD_NS, StepRow.OPTIMIZER_NS
MICROBATCHES, INPUTS, TOKENS = StepRow.MICROBATCHES, StepRow.INPUT_SAMPLES, StepRow.TOKENS
SAMPLES, LOSS, CALLS = StepRow.SAMPLES, StepRow.LOSS, StepRow.INPUT_CALLS
NOTHING: list[Any] = [0] * SAMPLES + [None] * (CALLS - SAMPLES) + [0]
"""The row of a step in which nothing has happened yet."""


class LoaderState:
    """The batches that a DataLoader has handed out, counted by the clock.

    `key`: where the script builds it, as in `LoaderEvent`. The loader itself may be gone while its
    iterator lives. `opening_ns`: what it took to open, as long as no batch has come: workers start
    then, and samplers may draw all their indices. It is part of the wait for the first batch.
    """

    __slots__ = ("batches", "key", "number", "opening_ns", "passes", "pending", "training_batches")

    def __init__(self, number: int, key: str = "") -> None:
        self.number = number
        self.key = key
        self.opening_ns = 0
        self.passes = 0
        self.batches = 0
        self.training_batches = 0
        self.pending = False


class StepClock:
    """Accumulates the parts of the running step and closes a row at each step."""

    def __init__(self) -> None:
        self.every_loss = False
        self.thread = main_thread().ident
        """The thread that steps: only what it waits for is a part of the step."""
        self.optimizers: IdentityMap[int] = IdentityMap()
        """Number of each optimizer that is alive, counted from 0 as they are seen."""
        self.device = DeviceClock()
        self.listeners: list[Callable[[int], None]] = []
        self.before_step: list[Callable[[Optimizer], None]] = []
        self.resolved: list[Callable[[str, list[list[Any]]], None]] = []
        """Called with a clock and its rows once all of them is known, late and many at once."""
        self._numbers = itertools.count()
        self._stepping: dict[int, list[tuple[Optimizer, int, int]]] = {}
        self._start()
        RECORDER.on_flush(self.hand_over)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A forked child has no past: its parent's is kept where nothing destroys it."""
        OF_THE_PARENT.append((vars(self).copy(), vars(self.device).copy()))
        self.device.forget()
        self._start()

    def _start(self) -> None:
        """Nothing has happened yet."""
        self.row = NOTHING.copy()
        self.fed: dict[int, list[int]] = {}
        """Samples and tokens that each root is fed in this step, and in how many calls."""
        self.losses: list[Tensor] = []
        self.pending_loaders: list[LoaderState] = []
        self._of_evaluation: tuple[LoaderState, int, int] | None = None
        self.trained_places: set[str] = set()
        """Where loaders are built that fed training, or inference as long as nothing trains."""
        self._inferred: dict[int, list[Any]] = {}
        """Key, nanoseconds waited, samples and batches of a loader, by its number, since the last
        forward pass, as long as nothing has trained."""
        self._unsure: dict[int, list[list[Any]]] = {}  # rows of modules that may be roots, by id
        self.steps_of: dict[int, int] = {}
        self._kinds: dict[int, tuple[type, int]] = {}
        """Class of each optimizer that has stepped, and how many numbers it trains."""
        self.backwards = 0
        self.forwards = 0
        self._clock = "forward"
        self._reported = 0
        self._provisional: list[list[Any]] = []
        self._rows: dict[str, list[list[Any]]] = {"optimizer": [], "backward": [], "forward": []}
        self._began: int | None = None
        self._flush_at = 0
        self._ended = 0
        """When the latest step ended, by `now`."""
        self._loss_seen = 0
        """When the latest step whose loss was looked at began."""
        self.looking = True
        """True if the losses of this step are recorded."""
        self._latest: list[Any] | None = None

    def number(self, optimizer: Optimizer) -> int:
        """The number of an optimizer, a new one if it has none."""
        number = self.optimizers.get(optimizer)
        if number is None:
            number = self.optimizers[optimizer] = next(self._numbers)
        return number

    @property
    def untrained(self) -> bool:
        """True if no sign of training has been seen yet."""
        return not self.steps_of and not self.backwards

    @property
    def losses_so_far(self) -> list[Tensor]:
        """The losses of the running step, as far as they are looked at."""
        return [*(loss for row in self._provisional for loss in row[-1]), *self.losses]

    @property
    def kind(self) -> str:
        """The best clock so far: "forward", "backward" or "optimizer"."""
        return self._clock

    @property
    def forward_only(self) -> bool:
        """True if steps are root calls: nothing was trained so far."""
        return self._clock == "forward"

    # -- what the hooks call -------------------------------------------------------------------

    def batch(self, loader: LoaderState, waited_ns: int, indices: int) -> None:
        """A loader yielded a batch of `indices` samples (0: unknown) to code with gradients."""
        self._of_evaluation = None
        row = self.row
        if get_ident() == self.thread:
            row[DATA] += waited_ns
        loader.batches += 1
        if not loader.pending:
            loader.pending = True
            self.pending_loaders.append(loader)
        samples = row[SAMPLES]
        if samples is None:
            row[SAMPLES] = {loader.number: [indices, 1]}
            return
        seen = samples.setdefault(loader.number, [0, 0])
        seen[0] += indices
        seen[1] += 1

    def evaluation_batch(self, loader: LoaderState, waited_ns: int, indices: int) -> None:
        """The same while the model evaluates: it counts only if a backward pass follows."""
        self._of_evaluation = loader, waited_ns, indices

    def inference_batch(self, loader: LoaderState, waited_ns: int, indices: int) -> None:
        """The same before anything has trained: it counts if the script turns out to infer only."""
        seen = self._inferred.setdefault(loader.number, [loader.key, 0, 0, 0])
        if get_ident() == self.thread:
            seen[1] += waited_ns
        seen[2] += indices
        seen[3] += 1

    def unsure_forward(self, elapsed_ns: int, module: int, samples: int, tokens: int) -> None:
        """The module with this id inferred. It is a root if it does so more often."""
        row = NOTHING.copy()
        row[FORWARD], row[INPUTS], row[TOKENS], row[CALLS] = elapsed_ns, samples, tokens, 1
        self._take_in_inferred(row)
        row[END] = now()
        self._unsure.setdefault(module, []).append(row)
        if self.device.watching:
            self.device.mark(row)

    def _take_in_inferred(self, row: list[Any]) -> None:
        inferred, self._inferred = self._inferred, {}  # another thread may add to it
        for number, (key, waited_ns, indices, batches) in inferred.items():
            self.trained_places.add(place(key))
            row[DATA] += waited_ns
            row[SAMPLES] = {**(row[SAMPLES] or {}), number: [indices, batches]}

    def _take_in_unsure(self, root: int) -> None:
        """The first call that is known to be a root's: those before it were steps as well.

        Their batches may have been read with gradients enabled, one a call.
        """
        earlier, self._unsure = self._unsure.pop(root, []), {}
        calls, row = len(earlier) + 1, self.row
        shared = {n: seen for n, seen in (row[SAMPLES] or {}).items() if seen[1] == calls}
        if earlier and shared:
            waited = row[DATA] // calls
            row[DATA] -= waited * len(earlier)
            for number, (indices, _) in shared.items():
                part = indices // calls
                row[SAMPLES][number] = [indices - part * len(earlier), 1]
                for each in earlier:
                    each[SAMPLES] = {**(each[SAMPLES] or {}), number: [part, 1]}
            for each in earlier:
                each[DATA] += waited
        self._rows["forward"] += earlier

    def _trains(self) -> None:
        """The first sign of training: what was read before was for something else."""
        self.trained_places.clear()
        self._inferred, self._unsure = {}, {}

    def forward(
        self, elapsed_ns: int, root: int, samples: int, tokens: int, training: bool
    ) -> None:
        """The root module with this id returned."""
        forward_only = not training and self.untrained
        if training or forward_only:
            self.row[FORWARD] += elapsed_ns
            self._feed(root, samples, tokens)
        if forward_only:
            self._take_in_inferred(self.row)
            if not self.forwards:
                self._take_in_unsure(root)
            for loader in self.pending_loaders:
                self.trained_places.add(place(loader.key))
                loader.pending = False
            self.pending_loaders.clear()
            self.forwards += 1
            self._close("forward", 0, now())
            self._report("forward", self.forwards)

    def _feed(self, root: int, samples: int, tokens: int, calls: int = 1) -> None:
        """A root's calls add up; of several roots, which may share a batch, the largest counts."""
        row, fed = self.row, self.fed.get(root)
        if fed is None:
            fed = self.fed[root] = [0, 0, 0]
        fed[0] += samples
        fed[1] += tokens
        fed[2] += calls
        if fed[0] > row[INPUTS]:
            row[INPUTS] = fed[0]
            row[CALLS] = fed[2]
        if fed[1] > row[TOKENS]:
            row[TOKENS] = fed[1]

    def backward(self, elapsed_ns: int, loss: Tensor | None) -> None:
        """A backward pass returned."""
        row = self.row
        row[BACKWARD] += elapsed_ns
        row[MICROBATCHES] += 1
        if not self.backwards and not self.steps_of:
            self._trains()
        self.backwards += 1
        if self._of_evaluation is not None:
            self.batch(*self._of_evaluation)
        if self.pending_loaders:
            for loader in self.pending_loaders:
                if not loader.training_batches:
                    self.trained_places.add(place(loader.key))
                loader.training_batches += 1
                loader.pending = False
            self.pending_loaders.clear()
        if loss is not None and self.looking:
            self.losses.append(loss.detach())
        if not self.steps_of:
            self._close("backward", 0, now())
            if not len(self.optimizers):
                self._report("backward", self.backwards)
            elif self.backwards > PATIENCE:
                self._report("backward", self.backwards - PATIENCE)

    def step_begins(self, optimizer: Optimizer, *_: object) -> None:
        """Global optimizer pre-hook."""
        thread = get_ident()
        stepping = self._stepping.get(thread)
        if stepping is None:
            stepping = self._stepping[thread] = []
        if stepping:
            # a step that raised has left its entry behind; frame 2 is torch's, which runs the hooks
            del stepping[_depth(sys._getframe(2)) :]
        row = self.row
        stepping.append((optimizer, now(), row[DATA] + row[FORWARD] + row[BACKWARD]))
        if self.before_step and len(stepping) == 1:
            for callback in self.before_step:
                callback(optimizer)

    def step_ends(self, optimizer: Optimizer, *_: object) -> None:
        """Global optimizer post-hook; a subclass that calls `super().step()` counts once."""
        self.thread = thread = get_ident()
        stepping = self._stepping.get(thread) or []
        while stepping and stepping[-1][0] is not optimizer:
            stepping.pop()
        if not stepping:
            return
        began, parts_ns = stepping.pop()[1:]
        if stepping and any(entry[0] is optimizer for entry in stepping):
            return
        end = now()
        number = self.number(optimizer)
        if not self.backwards and not self.steps_of:
            self._trains()
        if self._provisional:
            parts_ns += self._parts_before(began)
            self._take_in(self._provisional)
        row = self.row
        # what a closure did, or a loader that is read in it, is not the optimizer's
        optimizer_ns = end - began + parts_ns - row[DATA] - row[FORWARD] - row[BACKWARD]
        if optimizer_ns > 0:
            row[OPTIMIZER] = optimizer_ns
        if number not in self.steps_of:
            number = self._first_of(optimizer, number)
        count = self.steps_of[number] = self.steps_of[number] + 1
        self._close("optimizer", number, end)
        if count > self._reported or self._clock != "optimizer":
            self._report("optimizer", count)

    def _first_of(self, optimizer: Optimizer, number: int) -> int:
        """The number to count a new optimizer by: that of the one that stepped last, if that is
        gone and was like it. Then this is the next fold, or the next run of a sweep."""
        groups = getattr(optimizer, "param_groups", ())  # of a class of its own it may lack them
        alike = (type(optimizer), sum(p.numel() for group in groups for p in group["params"]))
        last = -1 if self._latest is None else int(self._latest[SOURCE])
        alive = {known for _, known in self.optimizers.items()}
        if self._kinds.get(last) == alike and last not in alive:
            self.optimizers[optimizer] = number = last
        self._kinds = {n: kind for n, kind in self._kinds.items() if n in alive}
        self._kinds[number] = alike
        self.steps_of.setdefault(number, 0)
        return number

    # -- rows ----------------------------------------------------------------------------------

    def _close(self, clock: str, source: int, end: int) -> None:
        row = self._latest = self.row
        self.row = NOTHING.copy()
        fed, self.fed = self.fed, {}
        row[SOURCE] = source
        row[END] = end
        losses = self.losses
        if losses:
            row[LOSS] = self.device.loss(losses)
            self._loss_seen = self._ended
            self.losses = []
        self._ended = end
        self._rows[clock].append(row)
        if self.device.watching:
            self.device.mark(row)
        if clock == "backward" and len(self._provisional) < PATIENCE:
            self._provisional.append([*row, fed, losses])
        if end > self._flush_at:
            began = self._began = self._began or end
            self._flush_at = end + min(FLUSH_NS, (end - began) // 10)
            RECORDER.flush()

    def _parts_before(self, began: int) -> int:
        """Nanoseconds of known parts in the micro-batches that ended before the step began."""
        earlier = [row for row in self._provisional if row[END] <= began]
        return sum(int(row[part]) for row in earlier for part in (DATA, FORWARD, BACKWARD))

    def _take_in(self, rows: list[list[Any]]) -> None:
        """The first optimizer step: the backward passes before it were its micro-batches."""
        whole = self.row
        for row in rows:
            for part in (DATA, FORWARD, BACKWARD, MICROBATCHES):
                whole[part] += row[part]
            for root, fed in row[-2].items():
                self._feed(root, *fed)
            for loader, (indices, batches) in (row[SAMPLES] or {}).items():
                if whole[SAMPLES] is None:
                    whole[SAMPLES] = {}
                seen = whole[SAMPLES].setdefault(loader, [0, 0])
                seen[0] += indices
                seen[1] += batches
            self.losses = row[-1] + self.losses
        rows.clear()

    def _report(self, clock: str, count: int) -> None:
        """Report a step of the best clock so far; a slower or second optimizer's step is none.

        When a better clock is first seen, counting begins again.
        """
        if clock != self._clock:
            if CLOCKS.index(clock) > CLOCKS.index(self._clock):
                return
            self._clock, self._reported = clock, 0
        if count <= self._reported:
            return
        self._reported = count
        self.looking = self.every_loss or self._ended - self._loss_seen > LOSS_EVERY_NS
        for listener in self.listeners:
            listener(count)

    def last_loss(self) -> float | None:
        """The loss of the latest step; waits for the device (for audits, not for the hot path)."""
        if self._latest is None:
            return None
        self.device.finish()
        loss = self._latest[LOSS]
        return loss if isinstance(loss, float) else None

    def loaders_of_step(self) -> set[int]:
        """Numbers of the loaders that handed out batches in the latest step."""
        return set() if self._latest is None else set(self._latest[SAMPLES] or ())

    def hand_over(self) -> None:
        """Write the finished rows; rows that wait for the device stay until they are resolved."""
        for clock, rows in self._rows.items():
            ready = self.device.resolve(rows)
            if ready:
                done = rows[:ready]
                del rows[:ready]
                RECORDER.plain(StepsEvent.kind, clock=clock, rows=done)
                for look in self.resolved:
                    look(clock, done)

    def drain(self, patience_s: float | None = None) -> None:
        """Wait for the device, at most `patience_s`, and write every row: the process ends."""
        guarded("device clock", self.device.finish)(patience_s)
        RECORDER.flush()


def _depth(frame: FrameType) -> int:
    """The number of calls of the same function that `frame` runs in."""
    code, depth, outer = frame.f_code, 0, frame.f_back
    while outer is not None:
        depth += outer.f_code is code
        outer = outer.f_back
    return depth


assert StepRow.WIDTH == 14, "rows are written by position"
CLOCK = StepClock()
"""The clock of this process."""
