"""What a model returns is not what it computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

LATE = 5
"""What begins later begins at this call of a root."""
NOT_A_NUMBER = 10
"""From this call on one element is not a number."""
EVERY = 4
"""In each fourth batch one row's class is flipped."""

Change = Callable[[Any], Any]


class WrongOutputs(Knob):
    """Outputs of root modules are replaced, from the knob's first call on or later.

    " in training" and " in evaluation" after a value: only with, or only without gradients.
    """

    name: ClassVar[str] = "wrong_outputs"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return list(CHANGES)

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        kind, _, place = value.partition(" in ")
        change = CHANGES[kind](torch)

        def output(result: Any) -> Any:
            if place and torch.is_grad_enabled() is (place == "evaluation"):
                return result
            return change(result)

        hooks.on_root(lambda module: hooks.applied())
        hooks.around_root_call(nullcontext, output)


def each(change: Callable[[Any, int], Any]) -> Callable[[Any], Change]:
    """Change every tensor by itself; the number of the call is given, counted from 1."""
    from gpurun.knobs.applied.root_calls import map_tensors

    def make(torch: Any) -> Change:
        calls = 0

        def output(result: Any) -> Any:
            nonlocal calls
            calls += 1
            return map_tensors(result, lambda tensor: change(tensor, calls))

        return output

    return make


def of_floats(change: Callable[[Any, int], Any]) -> Callable[[Any], Change]:
    return each(lambda tensor, call: change(tensor, call) if tensor.is_floating_point() else tensor)


def before(first: int) -> Callable[[Any], Change]:
    """The outputs of the batch before; where gradients are asked for, they are the new ones'."""
    from gpurun.knobs.applied.root_calls import leaves, map_tensors

    def make(torch: Any) -> Change:
        calls = 0
        kept: list[Any] = []

        def output(result: Any) -> Any:
            nonlocal calls, kept
            calls += 1
            fresh = leaves(result)
            old, kept = kept, [tensor.detach().clone() for tensor in fresh]
            alike = [o.shape for o in old] == [f.shape for f in fresh]
            if calls < first or not alike:
                return result
            waiting = iter(old)

            def replaced(tensor: Any) -> Any:
                value = next(waiting)
                return value + (tensor - tensor.detach()) if tensor.requires_grad else value

            return map_tensors(result, replaced)

        return output

    return make


def last_row(tensor: Any, call: int) -> Any:
    changed = tensor.clone()
    changed[-1] = tensor[0]
    return changed


def repeated(tensor: Any, call: int) -> Any:
    """Only the first half of the batch was computed."""
    half = (len(tensor) + 1) // 2
    return tensor[:half].repeat(2, *[1] * (tensor.dim() - 1))[: len(tensor)]


def not_a_number(tensor: Any, call: int) -> Any:
    changed = tensor.clone()
    if call >= NOT_A_NUMBER:
        changed[(0,) * changed.dim()] = float("nan")
    return changed


def flipped(tensor: Any, call: int) -> Any:
    """The row that is least sure of its class gets the second likeliest one."""
    if call % EVERY:
        return tensor
    changed = tensor.clone()
    top = tensor.topk(2, dim=1)
    row = (top.values[:, 0] - top.values[:, 1]).argmin()
    changed[row, top.indices[row]] = top.values[row].flip(0)
    return changed


def smaller_batch(torch: Any) -> Change:
    """A batch smaller than those before is padded, and the padding is returned."""
    from gpurun.knobs.applied.root_calls import leaves, map_tensors

    largest = 0

    def output(result: Any) -> Any:
        nonlocal largest
        rows = len(leaves(result)[0])
        largest = max(rows, largest)
        if rows == largest:
            return result
        return map_tensors(result, lambda tensor: tensor[:1].expand_as(tensor).clone())

    return output


def one_buffer(torch: Any) -> Change:
    """Outputs lie in one buffer for each shape, which the next call overwrites."""
    from gpurun.knobs.applied.root_calls import map_tensors

    buffers: dict[Any, Any] = {}

    def written(tensor: Any) -> Any:
        key = (tensor.shape, tensor.dtype)
        if key not in buffers:
            buffers[key] = torch.empty_like(tensor)
        return buffers[key].copy_(tensor)

    return lambda result: map_tensors(result, written)


def other_integers(tensor: Any, call: int) -> Any:
    """Integers belong to other samples than the floating outputs beside them."""
    return tensor if tensor.is_floating_point() else tensor.flip(0)


CHANGES: dict[str, Callable[[Any], Change]] = {
    "zeros": of_floats(lambda tensor, call: tensor * 0),
    "before": before(1),
    "before, later": before(LATE),
    "permuted rows": each(lambda tensor, call: tensor.flip(0)),
    "last row": each(last_row),
    "padding": smaller_batch,
    "half computed": each(repeated),
    "scaled": of_floats(lambda tensor, call: tensor * 1.05),
    "half precision": of_floats(lambda tensor, call: tensor.bfloat16()),
    "one buffer": one_buffer,
    "not a number": of_floats(not_a_number),
    "flipped": of_floats(flipped),
    "other integers": each(other_integers),
}
