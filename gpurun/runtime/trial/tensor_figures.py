"""Figures about the tensors that a module takes or returns, taken where they are.

Only sampled numbers travel to the host. The places depend on a tensor's shape and the number
of the call alone, so that every trial looks at the same ones.
"""

from __future__ import annotations

import dataclasses
import math
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, SupportsFloat, cast

import torch
from torch import Tensor

from gpurun.records.messages.training_events import TensorFigures
from gpurun.runtime.core.tensor_values import is_tensor, plain

MOST_TENSORS = 512
"""Tensors of one output that are looked at."""
MOST_DEPTH = 6
"""Containers inside containers that are opened."""
LEAST_VALUES = 64
MOST_VALUES = 1024
VALUES_A_CALL = 4096
ROTATIONS = 16
"""Calls after which the same places come again."""
ROWS = 64
"""Rows whose largest number is looked for."""
PLAIN = (bool, int, float, complex, str, bytes, type(None))


def tensors_in(value: object) -> tuple[list[tuple[str, Any]], str]:
    """The tensors and numbers in `value` with their places, and its containers in one line."""
    found: list[tuple[str, Any]] = []
    structure = _walk(value, "", found, ())
    if len(found) > MOST_TENSORS:
        found[MOST_TENSORS:] = [("the further tensors", None)]  # nobody can say what they hold
    return found, structure[:1000]


def _walk(value: object, path: str, found: list[tuple[str, Any]], inside: tuple[int, ...]) -> str:
    """`inside`: the containers that are open, by identity: some hold each other."""
    if is_tensor(value) or hasattr(value, "__array_interface__"):
        found.append((path, value))
        return "*"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        found.append((path, value))
        return "number"
    if isinstance(value, PLAIN):
        return repr(value)[:40]
    name = type(value).__name__
    if len(inside) >= MOST_DEPTH or id(value) in inside or len(found) > MOST_TENSORS:
        return name
    opened = (*inside, id(value))
    parts = [_walk(item, f"{path}{place}", found, opened) for place, item in _items(value)]
    return f"{name}({', '.join(parts)})" if parts else name


def _items(value: object) -> Iterator[tuple[str, Any]]:
    """The items of a container, with the place of each; nothing for any other value."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value))
    elif not hasattr(value, "parameters") and not callable(value):
        held = getattr(value, "__dict__", {})  # a cache of keys and values, detected boxes
        yield from ((f".{name}", item) for name, item in held.items())


class Sampler:
    """Takes figures; the places of a shape are worked out once for each device and turn.

    Calls take turns in which places they look at: a row that one of them passes over is seen by
    another.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def take(self, found: list[tuple[str, Any]], call: int, most: int = MOST_VALUES) -> list[Taken]:
        """Take the figures of what `tensors_in` found in a call; nothing waits for a device."""
        each = max(LEAST_VALUES, min(most, VALUES_A_CALL // max(1, len(found))))
        return [self._figures(path, value, each, call % ROTATIONS) for path, value in found]

    def values(self, tensor: Tensor, count: int, turn: int = 0) -> Tensor:
        """At most `count` numbers of a tensor, on its device."""
        tensor = plain(tensor)
        shape = tuple(tensor.shape)
        if not shape:
            return tensor.reshape(1).clone()
        return tensor[self._of_shape(shape, count, tensor.device, turn)]

    def _of_shape(
        self, shape: tuple[int, ...], count: int, device: torch.device, turn: int
    ) -> tuple[Tensor, ...]:
        key = (shape, count, device, turn)
        known = self._places.get(key)
        if known is None:
            flat = torch.tensor(places(shape, count, turn), dtype=torch.int64)
            unravelled = torch.unravel_index(flat, shape)
            known = self._places[key] = tuple(index.to(device) for index in unravelled)
        return known

    def _figures(self, path: str, value: object, count: int, turn: int) -> Taken:
        try:
            return self._taken(path, value, count, turn)
        except (RuntimeError, NotImplementedError, TypeError):  # nested, without data
            return Taken(path, type(value).__name__, (), (), None, None)

    def _taken(self, path: str, value: object, count: int, turn: int) -> Taken:
        if hasattr(value, "__array_interface__") and not is_tensor(value):
            value = torch.as_tensor(value)
        if not is_tensor(value):
            return Taken(
                path, type(value).__name__, (), (float(cast(SupportsFloat, value)),), None, None
            )
        tensor = plain(value.dequantize() if value.is_quantized else value)
        floating = tensor.is_floating_point()
        if floating and tensor.element_size() == 1:
            tensor = tensor.float()  # torch computes nothing in eight bits
        if tensor.numel() == 0:
            sizes = tuple(value.shape)
            return Taken(path, _dtype(value), sizes, tensor.reshape(-1), None, None)
        wide = torch.float64 if tensor.device.type != "mps" else torch.float32
        if floating:
            norm = torch.linalg.vector_norm(tensor, dtype=wide)
        else:
            norm = torch.sum(tensor, dtype=torch.int64)
        best = two = None
        if floating and tensor.dim() > 1 and tensor.shape[-1] > 1:
            rows = self._of_shape(tuple(tensor.shape[:-1]), ROWS, tensor.device, turn)
            best, two = tensor[rows].argmax(-1), tensor[rows].topk(2, -1).values
        sampled = self.values(tensor, count, turn)
        bad = None
        if floating:
            bad = tensor.numel() - torch.isfinite(tensor).sum()
        return Taken(path, _dtype(value), tuple(value.shape), sampled, norm, best, bad, two)


@dataclasses.dataclass
class Taken:
    """Figures that may still lie on a device."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    values: Tensor | tuple[float, ...]
    norm: Tensor | None
    largest: Tensor | None
    not_finite: Tensor | None = None
    leading: Tensor | None = None
    """The two largest numbers of each row whose `largest` is looked for."""

    def read(self) -> TensorFigures:
        """Bring them to the host, which waits for the device."""
        sampled = self.values
        numbers = sampled.to("cpu").double().tolist() if is_tensor(sampled) else sampled
        rows = [] if self.leading is None else self.leading.to("cpu").double().tolist()
        return TensorFigures(
            path=self.path,
            dtype=self.dtype,
            shape=tuple(int(n) for n in self.shape),
            values=tuple(_shown(x) for x in numbers),
            norm=None if self.norm is None else _shown(float(self.norm)),
            not_finite=0 if self.not_finite is None else int(self.not_finite),
            largest=() if self.largest is None else tuple(self.largest.tolist()),
            tops=tuple(_shown(first) for first, _ in rows),
            margins=tuple(_shown(first - second) for first, second in rows),
        )


def places(shape: tuple[int, ...], count: int, turn: int = 0) -> list[int]:
    """At most `count` places in a tensor of this shape: one at random in each of as many parts."""
    total = math.prod(shape)
    if total <= count:
        return list(range(total))
    draw = random.Random(zlib.crc32(repr((shape, turn)).encode()))
    bounds = [part * total // count for part in range(count + 1)]
    return [draw.randrange(bounds[part], bounds[part + 1]) for part in range(count)]


def _shown(number: float) -> float | None:
    return float(f"{number:.8g}") if math.isfinite(number) else None


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
