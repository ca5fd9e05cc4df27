"""DistributedDataParallel around a module that does not know of it."""

from __future__ import annotations

import weakref
from typing import Any


def wrapped(torch: Any, module: Any, unused: bool) -> Any:
    """The wrapper of a module, which it does not keep alive.

    `unused`: some parameters get no gradient. The weights are those of all ranks already: writing
    them once more would break graphs that need them. `TypeError` for an option that torch does not
    know.
    """
    wrapper = torch.nn.parallel.DistributedDataParallel(
        module, find_unused_parameters=unused, init_sync=False
    )
    del wrapper._modules["module"]
    wrapper.__dict__["module"] = weakref.proxy(module)
    return wrapper
