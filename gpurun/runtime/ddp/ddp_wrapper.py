"""DistributedDataParallel around a module that does not know of it."""

from __future__ import annotations

import inspect
import weakref
from typing import Any


def wrapped(torch: Any, module: Any, unused: bool) -> Any:
    """The wrapper of a module, which it does not keep alive.

    `unused`: some parameters get no gradient. The weights are those of all ranks already: writing
    them once more would break graphs that need them. `TypeError` for an option that torch does not
    know.
    """
    kind = torch.nn.parallel.DistributedDataParallel
    known = inspect.signature(kind.__init__).parameters  # torch 2.4 writes them all the same
    as_they_are = {"init_sync": False} if "init_sync" in known else {}
    wrapper = kind(module, find_unused_parameters=unused, **as_they_are)
    del wrapper._modules["module"]
    wrapper.__dict__["module"] = weakref.proxy(module)
    return wrapper
