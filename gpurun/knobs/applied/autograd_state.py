"""What autograd does: who records, traces or transforms the operations that run now, and the graph
that it has recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpurun.knobs.applied.root_calls import leaves

if TYPE_CHECKING:
    from torch.autograd.graph import Node


def is_plain_training() -> bool:
    """True if gradients are recorded, and nobody looks at each operation (traces, transforms).

    Nor at what autograd saves: what a checkpoint computes again has to save the same.
    """
    return (
        torch.is_grad_enabled()
        and torch._C._get_tracing_state() is None
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and torch.autograd.forward_ad._current_level < 0
        and not is_checkpointed()
    )


def is_checkpointed() -> bool:
    """True if something stands in for the tensors that autograd saves, or may do so."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def is_traced() -> bool:
    """True if the script traces its model, or differentiates it with `torch.func` or forwards."""
    return (
        torch._C._get_tracing_state() is not None
        or torch.fx._symbolic_trace._is_fx_tracing_flag
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def recorded_otherwise(given: object = ()) -> bool:
    """True if `given` is traced or transformed by torch.func in what runs now."""
    forbidden = getattr(
        torch._C._autograd, "_saved_tensors_hooks_get_disabled_error_message", lambda: None
    )
    tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    if tracing or forbidden() is not None:
        return True
    transformed = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda tensor: False)
    return any(not isinstance(x, torch.Tensor) or transformed(x) for x in leaves(given))


def nodes_before(tensors: Iterable[Tensor], most: int | None = None) -> Iterator[Node]:
    """The operations that made these tensors, each once, the last first; none is looked for once
    `most` are known."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting and (most is None or len(seen) < most):
        node = waiting.pop()
        yield node
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)


def graph_leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors into which a backward pass from these accumulates gradients."""
    return [
        node.variable  # type: ignore[attr-defined]  # torch declares it nowhere
        for node in nodes_before(tensors)
        if type(node).__name__ == "AccumulateGrad"
    ]
