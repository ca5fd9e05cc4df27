"""True if a model's attention is written by hand, read from the backward graph of a first call.

Trials look for it once. The graph of torch's autograd names its operations, so a product of a
softmax of a product shows without any wrapper. torch's own attention has other names.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gpurun.knobs.applied.autograd_state import nodes_before
from gpurun.runtime.core.tensor_values import tensors
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

if TYPE_CHECKING:
    from torch.autograd.graph import Node

TRAIT = "manual_attention"
NAME = "look for attention"
CALLS = 8
"""The number of root calls that are examined; calls of an evaluation have no graph."""
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


def watch() -> None:
    """Look at what the next root calls return."""
    left = CALLS

    def returned(result: object) -> object:
        nonlocal left
        left -= 1
        graphs = [tensor for tensor in tensors(result) if tensor.grad_fn is not None]
        if graphs or not left:
            ROOTS.around.remove(NAME)
        if any(map(_is_weighted_sum, nodes_before(graphs, MOST_NODES))):
            TRAITS.note(TRAIT, "in the backward graph of a root")
        return result

    ROOTS.around.add(NAME, nullcontext, returned, lambda error: None)


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
