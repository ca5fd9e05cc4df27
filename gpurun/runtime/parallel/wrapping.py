"""DistributedDataParallel around a module, as the spec wants gradients exchanged."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from gpurun.records.spec import Setting

COMPRESSION = "compression"
"""The option that is no argument: "bf16" or "fp16" halves what is exchanged."""


def wrapped(torch: Any, module: Any, unused: bool, options: Sequence[Setting]) -> Any:
    """The wrapper of a module, which it does not keep alive.

    `unused`: some parameters get no gradient. `TypeError` for an option that torch does not know.
    """
    given = {option.knob: option.value for option in options}
    compression = given.pop(COMPRESSION, None)
    if compression == "bf16" and torch.distributed.get_backend() == "gloo":
        raise TypeError("compression=bf16 needs NCCL; fp16 goes over gloo, too")
    wrapper = torch.nn.parallel.DistributedDataParallel(
        module, find_unused_parameters=unused, **given
    )
    if compression is not None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        wrapper.register_comm_hook(None, getattr(default_hooks, f"{compression}_compress_hook"))
    del wrapper._modules["module"]
    wrapper.__dict__["module"] = weakref.proxy(module)
    return wrapper
