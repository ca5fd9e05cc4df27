"""The same layers, whichever part of a batch is computed.

Dropout is off. BatchNorm normalises each sample by itself. Over a part of a batch it would be
another function, on ranks as here, and the loss reduction does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional

from gpurun.runtime.core.dropout_off import switch_off_dropout
from gpurun.runtime.core.patching import replace


def disable_dropout() -> None:
    """Switch off dropout, autocast and statistics over a batch, for the whole process."""
    switch_off_dropout()
    replace(functional, "batch_norm", _by_sample)
    replace(torch.amp.autocast_mode.autocast, "__init__", _disabled)


def disable_tf32() -> None:
    """Compute products in full single precision, whatever the script has set meanwhile."""
    with suppress(Exception):  # a script that uses torch's newer names may not use the older ones
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def _by_sample(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def batch_norm(
        input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None,
        training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
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


def _disabled(original: Callable[..., None]) -> Callable[..., None]:
    """Autocast rounds, which would hide a small part of a loss that reduces in another way."""

    def __init__(
        cast: torch.amp.autocast_mode.autocast, device_type: str, dtype: torch.dtype | None = None,
        enabled: bool = True, cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        original(cast, device_type, dtype, False, cache_enabled)

    return __init__
