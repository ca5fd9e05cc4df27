"""The parts of a step as they happen: data, forward, backward, optimizer, and the steps around.

A recording tool that shows ranges gets them by `markers`. Only a profiled launch installs this.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol

from gpurun.records.frames import transparent
from gpurun.records.messages.profile_events import COLLECTION
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK

now = time.perf_counter_ns


class Markers(Protocol):
    """A tool that shows nested ranges of a thread, and ranges that may overlap."""

    def push(self, name: str) -> None:
        """Open a range inside the one that is open."""

    def pop(self) -> None:
        """Close the range opened last."""

    def begin(self, name: str) -> Any:
        """Open a range that may overlap others; what `end` takes."""

    def end(self, token: Any) -> None:
        """Close the range that `begin` opened."""


class PhaseRanges:
    """Notes each part of a step of the stepping thread while `recording` is on."""

    def __init__(self) -> None:
        self.recording = False
        self.current: list[str] = []
        """The parts that the stepping thread is in, the innermost last."""
        self.markers: Markers | None = None
        self._done: list[tuple[str, int, int]] = []
        self._optimizer: list[int] = []
        self._collects, self._collection = False, 0

    def install(self, torch: Any) -> None:
        """Stand around loaders' iterators, roots, backward passes and optimizers."""
        self._compiling = torch.compiler.is_dynamo_compiling
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        replace(dataloader._BaseDataLoaderIter, "__next__", self._inside("data"))
        replace(dataloader.DataLoader, "__iter__", self._inside("data"))  # a sampler may work here
        replace(torch.autograd, "backward", self._inside("backward"))
        ROOTS.around.add("phases", self._forward, None, lambda _: None)
        optimizer.register_optimizer_step_pre_hook(guarded("phases", self._optimizer_begins))
        optimizer.register_optimizer_step_post_hook(guarded("phases", self._optimizer_ends))
        gc.callbacks.append(guarded("phases", self._collecting))

    def take(self) -> tuple[tuple[str, int, int], ...]:
        """The ranges that have ended, which are forgotten here."""
        done, self._done = self._done, []
        return tuple(done)

    def step_ended(self) -> None:
        """The clock's step is over: so is the optimizer's part, whose own hook comes later."""
        self._optimizer_ends()

    def _inside(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A factory of wrappers that note their calls as `name`."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            @transparent
            def call(*args: Any, **kwargs: Any) -> Any:
                seen = not self._compiling() and self._seen()
                began = self._begin(name) if seen else 0
                try:
                    return original(*args, **kwargs)
                finally:
                    if seen:
                        self._end(name, began)

            return call

        return make

    @contextmanager
    def _forward(self) -> Iterator[None]:
        if not self._seen() or "backward" in self.current:
            yield
            return
        began = self._begin("forward")
        try:
            yield
        finally:
            self._end("forward", began)

    def _optimizer_begins(self, *_: Any) -> None:
        if not self._compiling() and self._seen():
            self._optimizer.append(self._begin("optimizer"))

    def _optimizer_ends(self, *_: Any) -> None:
        if self._optimizer:
            self._end("optimizer", self._optimizer.pop())

    def _collecting(self, moment: str, _: dict[str, int]) -> None:
        """Python collects garbage, in the thread that it is called in."""
        if moment == "start":
            self._collects = self._seen()
            self._collection = now()
        elif self._collects:
            self._done.append((COLLECTION, self._collection, now()))

    def _seen(self) -> bool:
        return self.recording and get_ident() == CLOCK.thread

    def _begin(self, name: str) -> int:
        self.current.append(name)
        if self.markers is not None:
            self.markers.push(name)
        return now()

    def _end(self, name: str, began: int) -> None:
        ended = now()
        while self.current and self.current.pop() != name:
            pass  # an optimizer's step that raised has left its name behind
        if self.markers is not None:
            self.markers.pop()
        self._done.append((name, began, ended))


PHASES = PhaseRanges()
"""The parts of this process's steps."""
