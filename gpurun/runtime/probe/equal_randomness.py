"""The same random numbers and the same layers, whichever part of a batch is computed.

A part of a batch draws for the whole batch and takes its own rows. Dropout is off. BatchNorm
normalises each sample by itself: over a part of a batch it would be another function, on ranks as
here, and how a loss reduces over samples does not depend on it.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpurun.runtime.core.patching import replace

DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip


def seed_all(torch: Any, seed: int) -> None:
    """Seed every generator that scripts draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(seed % 2**32)


def without_dropout(torch: Any) -> None:
    """Switch off dropout, autocast and statistics of a batch, for the whole process."""
    functional = torch.nn.functional
    for name in DROPOUTS:
        replace(functional, name, lambda original: lambda input, *args, **kwargs: input)
    replace(functional, "scaled_dot_product_attention", _without_probability)
    replace(functional, "batch_norm", lambda original: _by_sample(functional, original))
    replace(torch.nn.RNNBase, "__init__", _without_layers_of_dropout)
    replace(torch.amp.autocast_mode.autocast, "__init__", _disabled)


def _without_probability(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attention


def _by_sample(functional: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def batch_norm(
        input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Any:  # fmt: skip
        if not training:
            return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
        shape = tuple(input.shape[1:])
        several = input[0].numel() > 1
        result = functional.layer_norm(input, shape, eps=eps) if several else input
        across = (1, -1, *[1] * (input.dim() - 2))
        if weight is not None:
            result = result * weight.view(across)
        return result if bias is None else result + bias.view(across)

    return batch_norm


def _without_layers_of_dropout(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(layer: Any, *args: Any, **kwargs: Any) -> None:
        original(layer, *args, **kwargs)
        layer.dropout = 0.0

    return __init__


def _disabled(original: Callable[..., None]) -> Callable[..., None]:
    """Autocast rounds, which would hide a small part of a loss that reduces in another way."""

    def __init__(
        cast: Any, device_type: str, dtype: Any = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        original(cast, device_type, dtype, False, cache_enabled)

    return __init__


def in_full_precision(torch: Any) -> None:
    """Products in full single precision, whatever the script has set meanwhile."""
    with suppress(Exception):  # a script that uses torch's newer names may not use the older ones
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def drawing(torch: Any, start: int, step: int) -> Any:
    """The mode in which a part of a batch draws what the whole batch would.

    `own` and `total`: samples of the batch at hand, 0 while none is.
    """
    from torch.utils import _python_dispatch

    base: Any = _python_dispatch.TorchDispatchMode
    seeded = torch.Tag.nondeterministic_seeded

    class Drawing(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.own = self.total = 0
            self._pid = os.getpid()

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if not self.own or seeded not in func.tags or os.getpid() != self._pid:
                return func(*args, **kwargs)
            if func.overloadpacket is torch.ops.aten.randperm:
                return self._permutation(func, args, kwargs)
            return func(*args, **kwargs) if step == 1 else self._rows(func, args, kwargs)

        def _permutation(self, func: Any, args: Any, kwargs: Any) -> Any:
            """One of samples (mixup) stays within the parts of a batch."""
            parts = max(step, 2)
            if args[0] != self.own or self.total < parts:
                return func(*args, **kwargs)
            drawn = [
                func(len(range(part, self.total, parts)), *args[1:], **kwargs)
                for part in range(parts)
            ]
            if step > 1:
                return drawn[start]
            whole = func(self.total, *args[1:], **kwargs)
            for part, order in enumerate(drawn):
                whole[part::parts] = order * parts + part
            return whole

        def _rows(self, func: Any, args: Any, kwargs: Any) -> Any:
            widened = False

            def widen(value: Any) -> Any:
                nonlocal widened
                if isinstance(value, torch.Tensor) and value.dim() and len(value) == self.own:
                    widened = True
                    index = torch.arange(self.total, device=value.device) // step
                    return value.index_select(0, index.clamp(max=self.own - 1))
                sizes = isinstance(value, (list, tuple)) and value and type(value[0]) is int
                if sizes and value[0] == self.own:
                    widened = True
                    return [self.total, *value[1:]]
                return value

            wide = [widen(value) for value in args]
            named = {name: widen(value) for name, value in kwargs.items()}
            if not widened:
                return func(*args, **kwargs)
            result = func(*wide, **named)
            if func.overloadpacket.__name__.endswith("_"):
                return args[0].copy_(wide[0][start::step])
            return torch.utils._pytree.tree_map_only(torch.Tensor, self._own_rows, result)

        def _own_rows(self, drawn: Any) -> Any:
            whole = drawn.dim() and len(drawn) == self.total
            return drawn[start::step].contiguous() if whole else drawn

    return Drawing()
