"""The script's requests to move a tensor (`to`, `cuda`), and the order of those who answer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gpurun.knobs.applied.replaced_calls import Args, Ask, Kwargs, intercepted

Moved = tuple[torch.device, torch.dtype | None, bool, torch.memory_format | None]
"""Device, type (None: its own), whether without blocking, memory format (None: its own)."""


def move_asked(args: Args, kwargs: Kwargs) -> Moved | None:
    """The request of a call of `Tensor.to`; None if it is not understood."""
    kwargs = {name: value for name, value in kwargs.items() if name != "copy"}
    try:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None
    return None if device is None else (device, dtype, bool(non_blocking), memory_format)


def cuda_asked(args: Args, kwargs: Kwargs) -> Moved | None:
    """The same for `Tensor.cuda`."""
    names = dict(zip(("device", "non_blocking", "memory_format"), args, strict=False)) | kwargs
    device = names.get("device")
    where = ("cuda", device) if isinstance(device, int) else (device or "cuda",)
    non_blocking = bool(names.get("non_blocking", False))
    return torch.device(*where), None, non_blocking, names.get("memory_format")


def numbered(device: torch.device) -> torch.device:
    """The device with its index: `cuda` is the current one."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


Asked = Callable[[Args, Kwargs], Moved | None]
"""The request of a call that moves tensors; None if it is not understood."""


def answer_moves(answering: Callable[[Asked], Ask]) -> None:
    """Replace the moves of tensors; `answering` makes the answer of what understands a call."""
    for name, asked in (("to", move_asked), ("cuda", cuda_asked)):
        setattr(Tensor, name, intercepted(getattr(Tensor, name), answering(asked)))
