"""Figures about tensors of any kind: norms, checksums, a few of their values. None changes them.

And the tensors in a batch, or in the arguments of a module.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, nn

SAMPLED_VALUES = 64
MOST_DEPTH = 8
"""Batches nest no deeper; what holds itself has an end."""
COPIED_VALUES = 30_000
"""Torch works on at most this many numbers in one thread. For more it uses all its threads, and a
busy core (loader workers, the import of the next trial) holds all of them up: eight audited steps
took 5 s on 16 cores."""


def is_tensor(value: object) -> TypeGuard[Tensor]:
    """True if a value is a tensor of torch."""
    return isinstance(value, Tensor)


def plain(tensor: Tensor) -> Tensor:
    """The numbers of a tensor as one dense, real, local tensor.

    Sparse gradients become their values, complex numbers pairs, a sharded tensor its own shard.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.is_sparse else tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor


def norm(tensor: Tensor) -> float:
    """The L2 norm, summed in float32 (float64 for tensors of it)."""
    tensor = plain(tensor)
    if tensor.dtype is not torch.float64:
        tensor = tensor.float()
    return float(torch.linalg.vector_norm(tensor))


def host_copy(tensor: Tensor) -> Tensor:
    """At most `COPIED_VALUES` of its numbers, evenly spread, in the host's memory.

    On the device they would add to its peak, and all of a large model would take seconds to copy.
    """
    return _spread(tensor, COPIED_VALUES).to("cpu", copy=True)


def moved_by(tensor: Tensor, before: Tensor, now: Tensor) -> float:
    """The L2 norm of the change of a tensor between two of its host copies of one size."""
    return norm(now - before) * math.sqrt(plain(tensor).numel() / max(1, now.numel()))


def _spread(tensor: Tensor, count: int) -> Tensor:
    flat = plain(tensor).reshape(-1)
    return flat[:: max(1, -(-flat.numel() // count))]


def values(tensor: Tensor, count: int = SAMPLED_VALUES) -> tuple[float, ...]:
    """At most `count` of its numbers, evenly spread."""
    return tuple(float(f"{x:.6g}") for x in _spread(tensor, count).tolist())


def checksum(value: object) -> int:
    """CRC of a tensor's, array's or any other value's content."""
    if is_tensor(value):
        return zlib.crc32(_bytes(value))
    if hasattr(value, "tobytes"):
        return zlib.crc32(value.tobytes())
    return zlib.crc32(repr(value).encode("utf-8", "backslashreplace"))


def whole_checksum(value: object, known: dict[int, tuple[object, int]] | None = None) -> int:
    """CRC of all that a value holds, through containers and attributes; each object counts once.

    `known`: objects that were seen, which live on as long, so that no other gets their number.
    """
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return checksum(value)
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)][1]
    known[id(value)] = value, 0  # of one that holds itself
    parts: list[object] = []
    if getattr(getattr(value, "dtype", None), "hasobject", False):
        parts = [cast(Any, value).tolist()]  # its bytes are addresses
    elif is_tensor(value) or hasattr(value, "tobytes"):
        parts = [checksum(value)]
    elif isinstance(value, Mapping):
        parts = [*value, *value.values()]
    elif isinstance(value, (list, tuple)):
        parts = [*value]
    elif not isinstance(value, type):
        parts = [*getattr(value, "__dict__", {}).values()]
    sums = [type(value).__name__, *(whole_checksum(part, known) for part in parts)]
    known[id(value)] = value, checksum(sums)
    return known[id(value)][1]


def tensors(value: object, depth: int = MOST_DEPTH) -> Iterator[Tensor]:
    """Every tensor in nested lists, tuples and mappings, `depth` levels deep."""
    if is_tensor(value):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item, depth - 1)


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The first tensor with a dimension in the arguments of a call, None if there is none."""
    for value in args:
        if isinstance(value, Tensor) and value.shape:
            return value
    return next((tensor for tensor in tensors((args, kwargs)) if tensor.shape), None)


def samples_and_tokens(first: Tensor | None, module: nn.Module) -> tuple[int, int]:
    """Samples and tokens that a root module reads.

    Samples: the leading dimension of the first tensor; 1 for a vector that is as wide as the
    module's first linear layer (one observation, without a batch). Tokens: the elements of an
    integer matrix.
    """
    if first is None:
        return 0, 0
    shape, kind = first.shape, first.dtype
    if type(shape[0]) is not int:
        return 0, 0  # traced, by jit or dynamo: reading it would be recorded, or warned of
    if len(shape) == 1 and kind.is_floating_point and shape[0] == _first_width(module):
        return 1, 0
    if len(shape) != 2 or kind.is_floating_point or kind.is_complex or kind is torch.bool:
        return int(shape[0]), 0
    return int(shape[0]), int(shape[0] * shape[1])


def _first_width(module: nn.Module) -> int | None:
    return next((m.in_features for m in module.modules() if isinstance(m, nn.Linear)), None)


def leaves(batch: object, size: int) -> list[Any]:
    """The parts of a batch that have one entry a sample, in a fixed order."""
    if is_tensor(batch):
        return [batch] if batch.dim() and batch.shape[0] == size else []
    if isinstance(batch, Mapping):
        return [leaf for key in batch for leaf in leaves(batch[key], size)]
    if isinstance(batch, (list, tuple)):
        named = hasattr(batch, "_fields")
        if len(batch) == size and not named and not any(is_tensor(x) for x in batch):
            if not any(isinstance(x, (Mapping, list, tuple)) for x in batch):
                return [batch]
        return [leaf for item in batch for leaf in leaves(item, size)]
    return []


def _bytes(tensor: Tensor) -> bytes:
    flat = plain(tensor).cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
