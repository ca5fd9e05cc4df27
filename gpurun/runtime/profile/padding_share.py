"""The part of the first training batch of tokens that is padding: computed, and of no use."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from gpurun.records.messages.traits import PADDING
from gpurun.runtime.observe.root_inputs import DEPTH, first_tensor, tensors_of
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

NAME = "look for padding"
SHORTEST_RUN = 2
"""So many equal tokens at the end of a row are padding, not a token."""


SHORTEST_ROW = 16
"""Shorter rows of integers are categories rather than tokens."""


def watch() -> None:
    """Look at the first call of a root that records gradients. On a GPU the host waits for it."""

    def given(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        if not torch.is_grad_enabled():
            return inputs
        ROOTS.around.remove(NAME)
        tokens = first_tensor(*inputs)
        if tokens is not None and _are_tokens(tokens):
            args, kwargs = inputs
            masks = (t for t in tensors_of((*args, *kwargs.values()), DEPTH) if t is not tokens)
            mask = next((t for t in masks if t.shape == tokens.shape and _is_mask(t)), None)
            share = _masked(mask) if mask is not None else padding_share(tokens)
            rows, length = tokens.shape
            TRAITS.note(PADDING, f"{share:.3f} of {rows} × {length} tokens")
        return inputs

    ROOTS.around.add(NAME, nullcontext, None, lambda error: None, given)


def _are_tokens(first: torch.Tensor) -> bool:
    """An integer matrix of long rows, for a model that looks up embeddings."""
    if first.dim() != 2 or first.dtype not in (torch.int64, torch.int32):
        return False
    layers = (layer for root in ROOTS.modules() for layer in root.modules())
    embeds = any(isinstance(layer, torch.nn.Embedding) for layer in layers)
    return embeds and first.shape[0] > 0 and first.shape[1] >= SHORTEST_ROW


def _is_mask(tensor: torch.Tensor) -> bool:
    """Ones and zeros. Token types are, too: a mask begins or ends with a one in each row."""
    values = tensor.detach().cpu()
    flags = values.bool()
    return bool(((values == 0) | (values == 1)).all() and (flags[:, 0] | flags[:, -1]).all())


def _masked(mask: torch.Tensor) -> float:
    return 1 - float(mask.detach().cpu().float().mean())


def padding_share(tokens: torch.Tensor) -> float:
    """The share of tokens in runs, at the ends of rows, of the token that most rows end with."""
    rows = tokens.detach().cpu()
    padding = rows[:, -1].mode().values
    trailing = (rows == padding).flip(1).int().cumprod(1).sum(1)
    return float(trailing[trailing >= SHORTEST_RUN].sum()) / rows.numel()
