"""DistributedDataParallel around a module that does not know of it."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wrapped(module: nn.Module, unused: bool) -> DistributedDataParallel:
    """The wrapper of a module, which it does not keep alive.

    `unused`: some parameters get no gradient. The weights are those of all ranks already: writing
    them once more would break graphs that need them. `TypeError` for an option that torch does not
    know.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # torch 2.4, which does not know the option, writes them all the same
    as_they_are: dict[str, Any] = {"init_sync": False} if "init_sync" in known else {}
    wrapper = DistributedDataParallel(module, find_unused_parameters=unused, **as_they_are)
    del wrapper._modules["module"]
    wrapper.__dict__["module"] = weakref.proxy(module)
    return wrapper
