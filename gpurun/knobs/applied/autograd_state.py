"""Who records, traces or transforms the operations that run now."""

from __future__ import annotations

import torch

from gpurun.knobs.applied.tensor_trees import leaves


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
