"""See which modules multiply, take a softmax and multiply, while a model runs as it is."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from types import FrameType

import torch
from torch import Tensor
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from gpurun.knobs.applied.replaced_calls import Args, Forward, Kwargs
from gpurun.records.frames import drop_frame

PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")


class AttentionCalls:
    """Counts of products and softmaxes of tensors with three dimensions or more."""

    def __init__(self) -> None:
        self._products: Counter[int] = Counter()
        self._calls: dict[tuple[int, ...], list[weakref.ref[Module]]] = {}

    def mode(self) -> TorchFunctionMode:
        """A context in which torch's functions are seen."""
        return _Seen(self)

    def note(self, name: str, frame: FrameType | None) -> None:
        """A product or a softmax was called from `frame`."""
        calling = _callers(frame)
        if name == "softmax":
            self._calls[tuple(map(id, calling))] = [weakref.ref(m) for m in calling]
        else:
            self._products.update({id(m) for m in calling})

    def found(self) -> list[list[weakref.ref[Module]]]:
        """For each attention: its smallest module of the script's own, and those that call it."""
        return [
            calling[place:]
            for calling in self._calls.values()
            for place in (self._smallest(calling),)
            if place is not None
        ]

    def _smallest(self, calling: list[weakref.ref[Module]]) -> int | None:
        for place, ref in enumerate(calling):
            module = ref()
            own = module is not None and not type(module).__module__.startswith("torch.")
            if own and self._products[id(module)] >= 2:
                return place
        return None


class _Seen(TorchFunctionMode):
    def __init__(self, look: AttentionCalls) -> None:
        super().__init__()
        self._look = look

    def __torch_function__(
        self, func: Forward, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        name = getattr(func, "__name__", "")
        if (name == "softmax" or name in PRODUCTS) and _large(args):
            self._look.note(name, sys._getframe(1))
        try:
            return func(*args, **(kwargs or {}))
        except BaseException as error:
            drop_frame(error)
            raise


def _large(args: Args) -> bool:
    """True if the last two tensors of a function's arguments have three dimensions or more."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    return bool(tensors) and all(x.dim() >= 3 for x in tensors[-2:])


def _callers(frame: FrameType | None) -> list[Module]:
    """The modules that are being called around a frame, the innermost first."""
    code = torch.nn.Module._call_impl.__code__
    found = []
    while frame is not None:
        if frame.f_code is code:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found
