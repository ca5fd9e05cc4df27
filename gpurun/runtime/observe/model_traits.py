"""Traits of a model that its first calls show: what a trial or a profile need look for only once.

Attention written by hand is read from the backward graph of a call: torch's autograd names its
operations, so a product of a softmax of a product shows without any wrapper. torch's own attention
has other names. Where the shapes of inputs change all the time, as sentences of any length do, a
compiler compiles more than once, and CUDA graphs are recorded for each shape. Tensors that a
forward pass leaves in the model would be overwritten by CUDA graphs. Padding is the part of a batch
of tokens that is computed and of no use.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpurun.knobs.applied.autograd_state import nodes_before
from gpurun.knobs.applied.compiling.model_parts import KeptTensors
from gpurun.records.messages.traits import CHANGING_SHAPES, KEEPS_TENSORS, PADDING
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.tensor_values import first_tensor, tensors
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

if TYPE_CHECKING:
    from torch.autograd.graph import Node

CALLS = 8
"""Root calls that are looked at: there may be several roots; an evaluation's have no graph."""
CALLS_FOR_SHAPES = 64
"""Root calls with gradients whose input shapes are counted."""
MANY, MORE_EACH = 6, 2
"""One root with a smaller last batch has two shapes, and each further root as many more."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def look_for_attention() -> None:
    """Look at what the next root calls return."""
    left, name = CALLS, "look for attention"

    def returned(result: object) -> object:
        nonlocal left
        left -= 1
        graphs = [tensor for tensor in tensors(result) if tensor.grad_fn is not None]
        if graphs or not left:
            ROOTS.around.remove(name)
        if any(map(_is_weighted_sum, nodes_before(graphs, MOST_NODES))):
            TRAITS.note("manual_attention", "in the backward graph of a root")
        return result

    ROOTS.around.add(name, nullcontext, returned, lambda error: None)


def look_for_changing_shapes() -> None:
    """Count the shapes of what the roots are given while gradients are recorded."""
    left, name = CALLS_FOR_SHAPES, "look for changing shapes"
    shapes: set[torch.Size] = set()

    def given(inputs: Inputs) -> Inputs:
        nonlocal left
        first = first_tensor(*inputs) if torch.is_grad_enabled() else None
        if first is None:
            return inputs
        left -= 1
        shapes.add(first.shape)
        many = len(shapes) >= MANY + MORE_EACH * (len(ROOTS.modules()) - 1)
        if many:
            TRAITS.note(CHANGING_SHAPES, f"{len(shapes)} shapes in {CALLS_FOR_SHAPES - left} calls")
        if many or not left:
            ROOTS.around.remove(name)
        return inputs

    ROOTS.around.add(name, nullcontext, None, lambda error: None, given)


def look_for_kept_tensors() -> None:
    """Look at what the first call of each root leaves in it."""
    left, name = CALLS, "look for kept tensors"
    roots: list[KeptTensors] = []

    def found(module: nn.Module) -> None:
        if left:
            roots.append(KeptTensors(module))

    def returned(result: object) -> object:
        nonlocal left
        left -= 1
        if not left:
            ROOTS.around.remove(name)
        trains = torch.is_grad_enabled()
        for kept in filter(None, [root.new() for root in roots] if trains else []):
            TRAITS.note(KEEPS_TENSORS, kept)
        if trains or not left:
            roots.clear()
        return result

    ROOTS.on_root.append(guarded(name, found))
    ROOTS.around.add(name, nullcontext, returned, lambda error: None)


def look_for_padding() -> None:
    """Look at the first call of a root that records gradients. On a GPU the host waits for it."""
    name = "look for padding"

    def given(inputs: Inputs) -> Inputs:
        if not torch.is_grad_enabled():
            return inputs
        ROOTS.around.remove(name)
        tokens = first_tensor(*inputs)
        if tokens is not None and _are_tokens(tokens):
            masks = (t for t in tensors(inputs) if t is not tokens and t.shape == tokens.shape)
            mask = next(filter(is_mask, masks), None)
            share = _masked(mask) if mask is not None else padding_share(tokens)
            rows, length = tokens.shape
            TRAITS.note(PADDING, f"{share:.3f} of {rows} × {length} tokens")
        return inputs

    ROOTS.around.add(name, nullcontext, None, lambda error: None, given)


# -- attention in a backward graph -------------------------------------------------------------

MOST_NODES = 200_000
PRODUCTS = ("BmmBackward", "BaddbmmBackward")
SOFTMAX = "SoftmaxBackward"
BETWEEN = tuple(
    f"{name}Backward" for name in (
    "UnsafeView", "View", "Reshape", "Expand", "Clone", "ToCopy", "Mul", "Div", "Add", "Sub",
    "MaskedFill", "Where", "Permute", "Transpose", "Unsqueeze", "Squeeze", "NativeDropout",
    "FusedDropout", "Alias",
    )
)  # fmt: skip
"""Operations that may stand between the products and the softmax."""
LONGEST = 24


def _is_weighted_sum(node: Node) -> bool:
    """True if an operation multiplies a softmax of a product."""
    if not node.name().startswith(PRODUCTS):
        return False
    return any(
        _reaches(softmax, PRODUCTS) is not None
        for source, _ in node.next_functions
        for softmax in (_reaches(source, (SOFTMAX,), itself=True),)
        if softmax is not None
    )


def _reaches(node: Node | None, names: tuple[str, ...], itself: bool = False) -> Node | None:
    """The first operation of such a name before `node`, through none that is not in between."""
    nodes = [node] if node is None or itself else [source for source, _ in node.next_functions]
    waiting = [(one, 0) for one in nodes]
    while waiting:
        current, depth = waiting.pop()
        if current is None or depth > LONGEST:
            continue
        name = current.name()
        if name.startswith(names):
            return current
        if name.startswith(BETWEEN):
            waiting.extend((source, depth + 1) for source, _ in current.next_functions)
    return None


# -- padding of tokens -------------------------------------------------------------------------

SHORTEST_RUN = 2
"""So many equal tokens at the end of a row are padding, not a token."""
SHORTEST_ROW = 16
"""Shorter rows of integers are categories rather than tokens."""


def _are_tokens(first: Tensor) -> bool:
    """An integer matrix of long rows, for a model that looks up embeddings."""
    if first.dim() != 2 or first.dtype not in (torch.int64, torch.int32):
        return False
    layers = (layer for root in ROOTS.modules() for layer in root.modules())
    embeds = any(isinstance(layer, nn.Embedding) for layer in layers)
    return embeds and first.shape[0] > 0 and first.shape[1] >= SHORTEST_ROW


def is_mask(tensor: Tensor) -> bool:
    """Ones and zeros. Token types are, too: a mask begins or ends with a one in each row."""
    values = tensor.detach().cpu()
    flags = values.bool()
    return bool(((values == 0) | (values == 1)).all() and (flags[:, 0] | flags[:, -1]).all())


def _masked(mask: Tensor) -> float:
    return 1 - float(mask.detach().cpu().float().mean())


def padding_share(tokens: Tensor) -> float:
    """The share of tokens in runs, at the ends of rows, of the token that most rows end with."""
    rows = tokens.detach().cpu()
    padding = rows[:, -1].mode().values
    trailing = (rows == padding).flip(1).int().cumprod(1).sum(1)
    return float(trailing[trailing >= SHORTEST_RUN].sum()) / rows.numel()
