"""Switches off dropout for the whole process, so that two ways to compute can be compared.

Fused, compiled and SDPA kernels draw other masks than plain ones, and other masks hide other
gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported

DROPOUTS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip


def switch_off_dropout() -> None:
    """Replace torch's functions, before the script has imported them.

    What a compiled model draws besides comes from torch's own generator, as without compilation.
    """
    for name in DROPOUTS:
        replace(functional, name, lambda original: lambda input, *args, **kwargs: input)
    replace(functional, "scaled_dot_product_attention", _without_probability)
    replace(torch.nn.RNNBase, "__init__", _without_layers_of_dropout)
    when_imported("torch._inductor.config", _draw_as_uncompiled)


def _draw_as_uncompiled(config: Any) -> None:
    config.fallback_random = True


def _without_probability(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, *args: object, **kwargs: object,
    ) -> Tensor:  # fmt: skip
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attention


def _without_layers_of_dropout(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(layer: torch.nn.RNNBase, *args: object, **kwargs: object) -> None:
        original(layer, *args, **kwargs)
        layer.dropout = 0.0

    return __init__
