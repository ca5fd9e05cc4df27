"""See which modules multiply, take a softmax and multiply, while a model runs as it is."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from types import FrameType
from typing import Any

from gpurun.records.frames import drop_frame

PRODUCTS = ("matmul", "__matmul__", "bmm", "baddbmm", "einsum")


class Look:
    """What is seen of products and softmaxes of tensors with three dimensions or more."""

    def __init__(self) -> None:
        self._products: Counter[int] = Counter()
        self._calls: dict[tuple[int, ...], list[weakref.ref[Any]]] = {}

    def mode(self) -> Any:
        """A context in which torch's functions are seen."""
        from torch.overrides import TorchFunctionMode

        look = self

        class Seen(TorchFunctionMode):
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                name = getattr(func, "__name__", "")
                if (name == "softmax" or name in PRODUCTS) and _large(args):
                    look.note(name, sys._getframe(1))
                try:
                    return func(*args, **(kwargs or {}))
                except BaseException as error:
                    drop_frame(error)
                    raise

        return Seen()

    def note(self, name: str, frame: FrameType | None) -> None:
        """A product or a softmax was called from `frame`."""
        calling = _callers(frame)
        if name == "softmax":
            self._calls[tuple(map(id, calling))] = [weakref.ref(m) for m in calling]
        else:
            self._products.update({id(m) for m in calling})

    def found(self) -> list[list[weakref.ref[Any]]]:
        """For each attention: its smallest module of the script's own, and those that call it."""
        return [
            calling[place:]
            for calling in self._calls.values()
            for place in (self._smallest(calling),)
            if place is not None
        ]

    def _smallest(self, calling: list[weakref.ref[Any]]) -> int | None:
        for place, ref in enumerate(calling):
            module = ref()
            own = module is not None and not type(module).__module__.startswith("torch.")
            if own and self._products[id(module)] >= 2:
                return place
        return None


def _large(args: Any) -> bool:
    """Whether the last two tensors of a function's arguments have three dimensions or more."""
    tensors = [x for x in args if hasattr(x, "dim")]
    return bool(tensors) and all(x.dim() >= 3 for x in tensors[-2:])


def _callers(frame: FrameType | None) -> list[Any]:
    """The modules that are being called around a frame, the innermost first."""
    import torch

    code = torch.nn.Module._call_impl.__code__
    found = []
    while frame is not None:
        if frame.f_code is code:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found
