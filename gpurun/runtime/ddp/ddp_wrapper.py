"""Wraps a module in DistributedDataParallel without the module holding the wrapper."""

from __future__ import annotations

import inspect
import weakref
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wrapped(module: nn.Module, unused: bool) -> DistributedDataParallel:
    """Return a wrapper that does not keep its module alive.

    `unused`: some parameters get no gradient. All ranks have the same weights already: writing
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
