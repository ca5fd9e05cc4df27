"""DistributedDataParallel, a script's own and ours, exchanges gradients as the spec says."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gpurun.records.frames import transparent
from gpurun.records.spec import Exchange
from gpurun.runtime.core.patching import replace

COMPRESSION = "compression"
"""The option that is no argument: "bf16" or "fp16" halves what is exchanged."""


def install(exchange: Exchange) -> None:
    """Change how the class is made and when it synchronises; what a script says itself stands."""
    kind: Any = DistributedDataParallel
    if exchange.left_out:
        # `no_sync`, and scripts that accumulate, set it: it is False whatever they set
        kind.require_backward_grad_sync = property(lambda _: False, lambda _, value: None)
    if exchange.options:
        given = {option.knob: option.value for option in exchange.options}
        compression = given.pop(COMPRESSION, None)
        replace(kind, "__init__", lambda make: _with_options(make, given, compression))


def _with_options(
    make: Callable[..., None], given: dict[str, Any], compression: str | None
) -> Callable[..., None]:
    signature = inspect.signature(make)

    @transparent
    def __init__(wrapper: DistributedDataParallel, *args: object, **kwargs: object) -> None:
        said = signature.bind_partial(wrapper, *args, **kwargs).arguments
        mine = {name: value for name, value in given.items() if name not in said}
        make(wrapper, *args, **kwargs, **mine)
        if compression is not None:
            if compression == "bf16" and torch.distributed.get_backend() == "gloo":
                raise TypeError("compression=bf16 needs NCCL; fp16 goes over gloo, too")
            _compress_at_first_call(wrapper, compression)

    return __init__


def _compress_at_first_call(wrapper: DistributedDataParallel, compression: str) -> None:
    """A wrapper takes one hook only, and one of the script's own comes before ours."""

    def before(wrapper: DistributedDataParallel, args: object) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        handle.remove()
        if not wrapper._comm_hooks:
            wrapper.register_comm_hook(None, getattr(default_hooks, f"{compression}_compress_hook"))

    handle = wrapper.register_forward_pre_hook(before)
