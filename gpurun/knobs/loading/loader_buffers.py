"""Let loader workers write their batches into shared memory that they have used before."""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, LoaderCall, Skip
from gpurun.knobs.loading.applied.segment_lender import Lender
from gpurun.knobs.loading.applied.segment_returns import Returns
from gpurun.knobs.loading.applied.shared_segments import TOKEN, holders_when_alone
from gpurun.knobs.loading.loader_fitness import start_method
from gpurun.knobs.loading.loader_need import not_fed_from_host, pinned_batches, workers_now
from gpurun.knobs.loading.marked_true import MarkedTrue
from gpurun.records.facts import Facts
from gpurun.records.frames import drop_frame


class LoaderBuffers(KnobBase):
    """Workers collate batches into shared memory that was used before ("reuse").

    Helps when workers deliver large batches that are pinned. For each batch torch makes a new
    segment, which the kernel has to zero and to map page by page, in the worker and again in the
    thread that pins; that takes longer than to write the batch. Once that thread has copied a batch
    to page-locked memory, its segment is free for the next one.

    How it bites: the segments stay allocated while the loader is open, about as many as torch needs
    at its busiest and never more than half of /dev/shm. Only what torch's own `default_collate`
    allocates is meant; batches that hold tensors where torch does not pin them, and tensors that
    the data set keeps or sends again, are never written over. Left alone: workers that are not
    forked, the sharing strategy "file_system".
    """

    name: ClassVar[str] = "loader_buffers"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 17
    likely: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Reuse, where forked workers feed a training on the GPU."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        unfed = not_fed_from_host(facts)
        if unfed is not None:
            return unfed
        if not workers_now(facts):
            return Skip("the loader has no workers")
        if all(x.start_method not in (None, "fork") for x in facts.loaders_of_training()):
            return Skip("the loader's workers are not forked")
        return ["reuse"]

    def companions(self, facts: Facts, value: str) -> dict[str, bool]:
        """Pinned batches."""
        return pinned_batches(facts)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Mark the fit loaders, and stand where workers allocate and where batches are pinned."""
        if value != "reuse":
            hooks.skipped(f"unknown value {value!r}")
            return

        def edit(call: LoaderCall) -> None:
            if call.training is False:
                return
            reason = _unfit(call)
            if reason is None:
                call.arguments["pin_memory"] = MarkedTrue(True)
            else:
                hooks.skipped(f"{call.key}: {reason}")

        def loaders_are_here(dataloader: ModuleType) -> None:
            import torch

            Reuse(torch, hooks).install(dataloader)
            hooks.before_loader(edit)

        hooks.on_import("torch.utils.data.dataloader", loaders_are_here)


def _unfit(call: LoaderCall) -> str | None:
    import torch

    if call.subclass:
        return "a subclass of DataLoader"
    if not call.arguments.get("num_workers"):
        return "no workers"
    if not call.arguments.get("pin_memory") or not torch.cuda.is_available():
        return "its batches are not pinned"
    if start_method(call.arguments) != "fork":
        return "its workers are not forked"
    return None


class Reuse:
    """Connects workers that lend segments with the threads that pin what they have sent."""

    def __init__(self, torch: Any, hooks: Hooks) -> None:
        self._torch = torch
        self._hooks = hooks
        self._token = secrets.token_bytes(TOKEN)
        self._holders = holders_when_alone(torch)
        self._here = _Thread()

    def install(self, dataloader: Any) -> None:
        """Replace what opens a loader, what allocates in its workers, and what pins."""
        storage = self._torch.UntypedStorage
        self._make = storage._new_shared
        storage._new_shared = classmethod(self._lending(storage._new_shared.__func__))
        iterator = dataloader._MultiProcessingDataLoaderIter
        iterator.__init__ = self._opening(iterator.__init__)
        pinning = dataloader._utils.pin_memory
        pinning.pin_memory = self._watched_pin(pinning.pin_memory)
        pinning._pin_memory_loop = self._returning(pinning._pin_memory_loop)

    def _opening(self, original: Callable[..., None]) -> Callable[..., None]:
        """Workers are forked from the thread that opens a loader, and find there what it set."""
        here = self._here

        @functools.wraps(original)
        def __init__(iterator: Any, loader: Any) -> None:
            if isinstance(loader.pin_memory, MarkedTrue):
                here.lender = self._guarded(lambda: self._lender(loader.prefetch_factor))
            try:
                original(iterator, loader)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                here.lender = None

        return __init__

    def _lender(self, prefetch: int) -> Lender:
        return Lender(self._torch, self._make, self._token, self._holders, prefetch)

    def _lending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        here, torch = self._here, self._torch

        @functools.wraps(original)
        def _new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
            lender = here.lender
            if lender is not None and torch.device(device).type == "cpu":
                lent = self._guarded(lambda: lender.lend(size))
                if lent is not None:
                    return lent
            try:
                return original(cls, size, device=device)
            except BaseException as error:
                drop_frame(error)
                raise

        return _new_shared

    def _returning(self, original: Callable[..., None]) -> Callable[..., None]:
        here = self._here

        @functools.wraps(original)
        def _pin_memory_loop(in_queue: Any, *args: Any, **kwargs: Any) -> None:
            here.returns = self._guarded(lambda: Returns(self._torch, self._token, self._holders))
            try:
                original(_Arrivals(in_queue, self._give_back), *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        return _pin_memory_loop

    def _give_back(self) -> None:
        returns = self._here.returns
        if returns is not None and self._guarded(returns.give_back):
            self._hooks.applied("workers write into memory that was used before")

    def _watched_pin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Torch's own function calls itself for the parts of a batch."""
        here, torch = self._here, self._torch

        @functools.wraps(original)
        def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
            if here.returns is None:
                return original(data, *args, **kwargs)
            foreign = here.foreign
            own_way = not isinstance(data, torch.Tensor) and hasattr(data, "pin_memory")
            here.foreign = foreign or own_way
            here.depth += 1
            try:
                pinned = original(data, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                here.depth -= 1
                here.foreign = foreign
            self._pinned(data, pinned)
            return pinned

        return pin_memory

    def _pinned(self, data: Any, pinned: Any) -> None:
        here = self._here
        if type(data) is self._torch.Tensor and not here.foreign and here.returns is not None:
            self._guarded(functools.partial(here.returns.copied, data, pinned))
        if here.depth == 0 and here.returns is not None:
            self._guarded(here.returns.finished)

    def _guarded(self, action: Callable[[], Any]) -> Any:
        """What fails is switched off in this thread: torch allocates, nothing is given back."""
        try:
            return action()
        except Exception as error:
            self._here.lender = self._here.returns = None
            self._hooks.skipped(f"{type(error).__name__}: {error}")
            return None


class _Thread(threading.local):
    """What this thread lends in its forked children, or what it has received.

    `depth`: of the calls that pin. `foreign`: a batch pins itself in ways that are not known.
    """

    lender: Lender | None = None
    returns: Returns | None = None
    depth = 0
    foreign = False


class _Arrivals:
    """The queue that a thread pins from: when it asks for a message, it is done with the last."""

    def __init__(self, queue: Any, done: Callable[[], None]) -> None:
        self._queue = queue
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        self._done()
        try:
            return self._queue.get(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
