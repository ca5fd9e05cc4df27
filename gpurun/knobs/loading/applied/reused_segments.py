"""Connect workers that lend segments of shared memory with the threads that pin their batches."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from gpurun.knobs.api import Hooks
from gpurun.knobs.loading.added_workers import MarkedTrue
from gpurun.knobs.loading.applied.loader_iterators import Loader, on_opening
from gpurun.knobs.loading.applied.segment_lender import Lender
from gpurun.knobs.loading.applied.shared_segments import TOKEN, Returns, holders_when_alone
from gpurun.records.frames import transparent

P = ParamSpec("P")
R = TypeVar("R")
Storage = torch.UntypedStorage


class Queue(Protocol):
    """The part of `multiprocessing.Queue` that the thread which pins uses."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next message."""


class ReusedSegments:
    """Connects the workers, which lend segments, with the threads that pin their batches."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._token = secrets.token_bytes(TOKEN)
        self._holders = holders_when_alone()
        self._here = _Thread()

    def install(self, dataloader: Any) -> None:
        """Act when a loader is opened, when its workers allocate, and when batches are pinned."""
        storage: Any = torch.UntypedStorage
        self._make = storage._new_shared
        storage._new_shared = classmethod(self._lending(storage._new_shared.__func__))
        on_opening(self._opening)
        pinning = dataloader._utils.pin_memory
        pinning.pin_memory = self._watched_pin(pinning.pin_memory)
        pinning._pin_memory_loop = self._returning(pinning._pin_memory_loop)

    def _opening(self, iterator: Any, loader: Loader, afterwards: ExitStack) -> None:
        """Workers are forked from the thread that opens a loader, and find there what it set."""
        if isinstance(loader.pin_memory, MarkedTrue):
            prefetch = loader.prefetch_factor or 2
            self._here.lender = self._guarded(lambda: self._lender(prefetch))
            afterwards.callback(setattr, self._here, "lender", None)

    def _lender(self, prefetch: int) -> Lender:
        return Lender(self._make, self._token, self._holders, prefetch)

    def _lending(self, original: Callable[..., Storage]) -> Callable[..., Storage]:
        here = self._here

        @functools.wraps(original)
        @transparent
        def _new_shared(
            cls: type[Storage], size: int, *, device: str | torch.device = "cpu"
        ) -> Storage:
            lender = here.lender
            if lender is not None and torch.device(device).type == "cpu":
                lent = self._guarded(lambda: lender.lend(size))
                if lent is not None:
                    return lent
            return original(cls, size, device=device)

        return _new_shared

    def _returning(
        self, original: Callable[Concatenate[Queue, P], None]
    ) -> Callable[Concatenate[Queue, P], None]:
        here = self._here

        @functools.wraps(original)
        @transparent
        def _pin_memory_loop(in_queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> None:
            here.returns = self._guarded(lambda: Returns(self._token, self._holders))
            original(_Arrivals(in_queue, self._give_back), *args, **kwargs)

        return _pin_memory_loop

    def _give_back(self) -> None:
        returns = self._here.returns
        given = None if returns is None else self._guarded(returns.give_back)
        if given:
            self._hooks.applied("workers write into memory that was used before")

    def _watched_pin(
        self, original: Callable[Concatenate[object, P], R]
    ) -> Callable[Concatenate[object, P], R]:
        """Torch's own function calls itself for the parts of a batch."""
        here = self._here

        @functools.wraps(original)
        @transparent
        def pin_memory(data: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if here.returns is None:
                return original(data, *args, **kwargs)
            foreign = here.foreign
            own_way = not isinstance(data, Tensor) and hasattr(data, "pin_memory")
            here.foreign = foreign or own_way
            here.depth += 1
            try:
                pinned = original(data, *args, **kwargs)
            finally:
                here.depth -= 1
                here.foreign = foreign
            self._pinned(data, pinned)
            return pinned

        return pin_memory

    def _pinned(self, data: object, pinned: Any) -> None:
        here = self._here
        if type(data) is Tensor and not here.foreign and here.returns is not None:
            self._guarded(functools.partial(here.returns.copied, data, pinned))
        if here.depth == 0 and here.returns is not None:
            self._guarded(here.returns.finished)

    def _guarded(self, action: Callable[[], R]) -> R | None:
        """After a failure this thread stops reusing: torch allocates, and nothing is given back."""
        try:
            return action()
        except Exception as error:
            self._here.lender = self._here.returns = None
            self._hooks.skipped(f"{type(error).__name__}: {error}")
            return None


class _Thread(threading.local):
    """The segments that this thread lends in its forked children, or has received.

    `depth`: of the calls that pin. `foreign`: a batch pins itself in ways that are not known.
    """

    lender: Lender | None = None
    returns: Returns | None = None
    depth = 0
    foreign = False


class _Arrivals:
    """The queue that a thread pins from: when it asks for a message, it is done with the last."""

    def __init__(self, queue: Queue, done: Callable[[], None]) -> None:
        self._queue = queue
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    @transparent
    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._done()
        return self._queue.get(block, timeout)
