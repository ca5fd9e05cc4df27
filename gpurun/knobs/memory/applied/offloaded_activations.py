"""Keep the large tensors that a forward pass saves on the host until its backward pass."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.api import NOT_ON_GPU, Hooks
from gpurun.knobs.applied.autograd_state import recorded_otherwise
from gpurun.knobs.applied.root_calls import RootContext
from gpurun.knobs.memory.memory_need import unfit_root

IN_FLIGHT_BYTES = 64 << 20
"""Copies under way take at most about this much of the device's memory, in either direction."""


class Kept:
    """One tensor on the host; `back`: its copy on the device while that is fetched ahead, and the
    event that says when it is there.
    """

    def __init__(self, host: Tensor, device: torch.device, number: int) -> None:
        self.host = host
        self.device = device
        self.number = number
        self.back: tuple[Tensor, torch.cuda.Event] | None = None


class HostCopies:
    """Copies tensors to the host on `stream`, and back in the opposite order ahead of their use.

    The host waits for the device if it would run further ahead than `IN_FLIGHT_BYTES`. Otherwise
    the allocator could not reuse memory that a copy still reads, and no memory would be saved.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._kept: list[weakref.ref[Kept]] = []
        self._leaving: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._returned: deque[tuple[torch.cuda.Event, int]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, tensor: Tensor) -> Kept:
        """Start to copy a tensor of this device to the host."""
        stream = self._stream
        source = tensor.detach()
        host = torch.empty_like(source, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            host.copy_(source, non_blocking=True)
            done = stream.record_event()
        self._leaving.append((done, source))
        self._wait_for_copies(IN_FLIGHT_BYTES)
        kept = Kept(host, source.device, len(self._kept))
        self._kept.append(weakref.ref(kept))
        return kept

    def finish(self) -> None:
        """The forward pass is over: wait until the device's memory is free."""
        self._wait_for_copies(0)

    def give(self, kept: Kept) -> Tensor:
        """The tensor on its device again, to be used on the present stream."""
        present = torch.cuda.current_stream(kept.device)
        self._returned.append((present.record_event(), kept.host.nbytes))
        while len(self._returned) > 1 and sum(n for _, n in self._returned) > IN_FLIGHT_BYTES:
            self._returned.popleft()[0].synchronize()
        tensor, arrived = self._fetch(kept)
        self._fetch_ahead(kept.number)
        present.wait_event(arrived)
        kept.back = None
        tensor.record_stream(present)
        return tensor

    def _wait_for_copies(self, allowed: int) -> None:
        while sum(source.nbytes for _, source in self._leaving) > allowed:
            self._leaving.popleft()[0].synchronize()

    def _fetch_ahead(self, number: int) -> None:
        """Fetch the tensors that were kept before: a backward pass needs them next."""
        ahead = 0
        for reference in reversed(self._kept[:number]):
            kept = reference()
            if kept is None:
                continue
            ahead += kept.host.nbytes
            if ahead > IN_FLIGHT_BYTES:
                return
            self._fetch(kept)

    def _fetch(self, kept: Kept) -> tuple[Tensor, torch.cuda.Event]:
        """The copy on the device, and the event that says when it is there."""
        if kept.back is None:
            with torch.cuda.stream(self._stream):
                back = torch.empty_like(kept.host, device=kept.device)
                back.copy_(kept.host, non_blocking=True)
                kept.back = back, self._stream.record_event()
        return kept.back


LEAST_BYTES = 1 << 20
"""Smaller tensors stay on the device: a copy of its own costs them more than it saves."""


class OffloadedActivations(RootContext):
    """The context of a root's call; each call that trains has copies of its own."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._roots: list[weakref.ref[Module]] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._lasting: set[int] = set()
        self._copies: HostCopies | None = None
        self._moved = self._failed = False

    def root_found(self, module: Module) -> None:
        """Look at a new root: its device, and what runs its forward."""
        device = next(module.parameters()).device
        reason = unfit_root(module, self._hooks)
        if device.type != "cuda" or reason is not None:
            self._hooks.skipped(reason or NOT_ON_GPU)
            return
        self._roots.append(weakref.ref(module))

    def __enter__(self) -> None:
        self.inner = None
        roots = [root for reference in self._roots if (root := reference()) is not None]
        idle = not roots or self._failed or not torch.is_grad_enabled() or recorded_otherwise()
        if idle or torch.cuda.is_current_stream_capturing():
            return
        device = next(roots[0].parameters()).device
        stream = self._streams.get(device)
        if stream is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._streams[device] = stream
        self._lasting = {
            tensor.untyped_storage().data_ptr()
            for root in roots
            for tensor in (*root.parameters(), *root.buffers())
        }
        copies = self._copies = HostCopies(stream)

        def unpack(saved: Tensor | Kept) -> Tensor:
            return copies.give(saved) if isinstance(saved, Kept) else saved

        self.open_inside(
            torch.autograd.graph.saved_tensors_hooks(
                lambda tensor: self._pack(copies, device, tensor), unpack
            )
        )

    def __exit__(self, *how: Any) -> None:
        super().__exit__(*how)
        if self._copies is not None:
            self._copies.finish()
            self._moved = self._moved or len(self._copies) > 0
            self._copies = None

    def step_done(self, step: int) -> None:
        """Say what became of it in the first step."""
        if step == 1 and self._roots and not self._failed:
            if self._moved:
                self._hooks.applied("saved tensors of 1 MiB and more wait on the host")
            else:
                self._hooks.skipped("no saved tensor is as large as 1 MiB")

    def _pack(self, copies: HostCopies, device: torch.device, tensor: Tensor) -> Tensor | Kept:
        """The object to save in place of a tensor: the tensor itself if it cannot be offloaded."""
        if self._failed or not self._worth_moving(device, tensor):
            return tensor
        try:
            return copies.take(tensor)
        except Exception as error:  # no page-locked memory left: the model's own call must go on
            self._failed = True
            self._hooks.revoked(f"cannot copy to the host ({type(error).__name__})")
            return tensor

    def _worth_moving(self, device: torch.device, tensor: Tensor) -> bool:
        if type(tensor) is not torch.Tensor or tensor.device != device:
            return False
        if tensor.layout is not torch.strided or tensor.nbytes < LEAST_BYTES:
            return False
        storage = tensor.untyped_storage()
        return tensor.nbytes <= storage.nbytes() and storage.data_ptr() not in self._lasting
