"""Run a captured graph on the script's own tensors, and compare an attention with its replacement.

Results and gradients of both are compared with those in float64: the replacement must be as close
to them as the original. Dropout is left out on both sides; nothing random is drawn.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from gpurun.knobs.applied.attention.attention_sites import Site, Unfit
from gpurun.knobs.applied.attention.score_steps import KINDS, args_of, name_of

Values = dict[Node, Any]

WITHOUT_DROPOUT = ("dropout",)
EXACTLY = ("dropout", "cast")
"""What is left out to compute what an attention means, in all digits."""


def compute(
    module: GraphModule, nodes: Iterable[Node], values: Values, without: Collection[str] = ()
) -> None:
    """Run operations in turn: `values` holds what they are computed from, and gets the results.

    Operations of a kind in `without` hand on what they are given.
    """
    runner = Interpreter(module, garbage_collect_values=False)
    runner.env = values
    for node in nodes:
        kind = KINDS.get(name_of(node))
        if kind in without:
            values[node] = values[args_of(node)[0]]
        elif kind == "softmax" and "cast" in without:
            values[node] = values[args_of(node)[0]].softmax(-1)
        else:
            values[node] = runner.run_node(node)


def replay(
    module: GraphModule,
    inputs: Sequence[Any],
    stops: Mapping[Node, Callable[[Values], None]],
    keep: set[Node],
) -> None:
    """Run a graph up to the last of `stops`, and call each with the values when it is reached.

    The values are those of the nodes in `keep` so far. Inputs that the graph may change are copied,
    random generators and modes are put back, no gradient is recorded.
    """
    devices = {x.device.index for x in inputs if getattr(x, "is_cuda", False)}
    running = _Replay(module, stops, keep)
    with torch.random.fork_rng(sorted(d for d in devices if d is not None)), torch.no_grad():
        try:
            running.run(*map(_copied, inputs))
        except _ReachedAll:
            pass
        finally:
            for mode in reversed(running.entered):
                mode.__exit__(None, None, None)


class _ReachedAll(Exception):
    """There is no further stop: the rest of the graph is of no interest."""


class _Replay(Interpreter):
    def __init__(
        self, module: GraphModule, stops: Mapping[Node, Callable[[Values], None]], keep: set[Node]
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.entered: list[Any] = []
        self._stops, self._keep, self._values = dict(stops), keep, Values()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if name_of(n) == "_enter_autocast":
            self.entered.append(value)
        elif name_of(n) == "_exit_autocast":
            self.entered.pop()
        if n in self._keep:
            self._values[n] = value
        if n in self._stops:
            self._stops.pop(n)(self._values)
            if not self._stops:
                raise _ReachedAll
        return value


def real(value: object) -> Any:
    """A graph's example input as a value that operations take: the number behind a symbol."""
    hint = getattr(getattr(value, "node", None), "hint", None)
    return value if hint is None else hint


def _copied(value: object) -> object:
    """A parameter as what autocast casts without remembering it; else what may be changed."""
    if not isinstance(value, Tensor):
        return value
    return value.detach() if value.requires_grad else value.clone()


FLOORS = {"float64": 1e-9, "float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2}
"""Relative errors (norm of the difference by norm) that rounding explains."""
ON_GPU = 5e-3
"""The same for float32 on a GPU, whose products may be rounded to TF32."""
IN_BACKWARD = {"float16": 3.0, "bfloat16": 3.0}
"""So many times as much in gradients of half precision: fused kernels start them from the rounded
result. An H200 shows 2.1e-2 to 2.8e-2 for bfloat16, which torch's own tests of them allow."""
SLACK = 3.0
"""The replacement's error may be so many times the original's."""
MOST_SCORES = 1 << 24
"""Scores that are computed for the comparison: a part of the batch, if there are more."""
LEAST_NORM = {"float32": 0.1}
"""Gradients this much smaller than the largest are compared on its scale. In a gradient that
cancels to zero (of the scores of one key) only rounding is left, at about 1e-7 of the largest."""
LEAST_NORM_ELSE = 1e-2
"""The same for the other types, whose floors are far from their rounding."""


def check(
    module: GraphModule, site: Site, inputs: Iterable[Node], new: list[Node], values: Values
) -> None:
    """Raise `Unfit` unless the last of `new` computes the result of `site`, and its gradients.

    `inputs`: the nodes that either is computed from, with `values`.
    """
    chain = site.chain
    apart = torch.autograd.graph.saved_tensors_hooks(_same, _same)  # not a checkpoint's
    with apart, torch.inference_mode(False), torch.enable_grad():
        own = _part(site, {node: values[node] for node in inputs})
        learnt = {node for node in own if _is_learnt(site, node) and _floating(own[node])}
        exact = {node: _double(value) for node, value in own.items()}
        device = values[site.result].device.type
        with torch.autocast(device, enabled=False):
            meant = _computed(
                chain[-1], exact, learnt, lambda v: compute(module, chain, v, EXACTLY)
            )
        original = _computed(
            chain[-1], own, learnt, lambda v: compute(module, chain, v, WITHOUT_DROPOUT)
        )
        replacement = _computed(new[-1], own, learnt, lambda v: compute(module, new, v))
    _compare(meant, original, replacement)


ResultAndGradients = tuple[Tensor, list[Tensor | None]]
"""A result, and the gradients of what it is computed from."""


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _computed(
    result: Node, given: Values, learnt: set[Node], run: Callable[[Values], None]
) -> ResultAndGradients:
    """The result, and the gradients of the inputs in `learnt` for a fixed one of the result."""
    values: Values = {node: _own(value, node in learnt) for node, value in given.items()}
    leaves = [value for node, value in values.items() if node in learnt]
    run(values)
    found: Tensor = values[result]
    slope = torch.arange(found.numel(), device=found.device, dtype=torch.float64).cos()
    slope = slope.reshape(found.shape).to(found.dtype)
    unwatched = inspect.unwrap(torch.autograd.grad)  # the clock counts the passes of the script
    gradients = unwatched(found, leaves, slope, allow_unused=True)
    return found.detach(), list(gradients)


def _own(value: object, learnt: bool) -> object:
    """A copy that autograd may keep, also of a tensor made in inference mode."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(learnt)


def _compare(
    exact: ResultAndGradients, original: ResultAndGradients, replacement: ResultAndGradients
) -> None:
    result, slopes = original
    if result.dtype != replacement[0].dtype or result.shape != replacement[0].shape:
        raise Unfit("the replacement's result has another form")
    kind = str(result.dtype).removeprefix("torch.")
    floor = FLOORS.get(kind, FLOORS["float32"])
    if kind == "float32" and result.is_cuda:
        floor = ON_GPU
    _hold("result", (exact[0], result, replacement[0]), _norm(exact[0]), floor)
    norms = [_norm(slope) for slope in exact[1]]
    least = LEAST_NORM.get(kind, LEAST_NORM_ELSE) * max(norms)
    floor *= IN_BACKWARD.get(kind, 1.0)
    for norm, *three in zip(norms, exact[1], slopes, replacement[1], strict=True):
        _hold("gradients", three, max(norm, least), floor)


def _hold(what: str, three: Sequence[Tensor | None], scale: float, floor: float) -> None:
    """Raise `Unfit` where, of exact, original and replacement, the last is too far from exact."""
    exact, original, replacement = three
    before = _distance(original, exact) / (scale or 1.0)
    after = _distance(replacement, exact) / (scale or 1.0)
    if not after <= max(SLACK * before, floor):
        raise Unfit(f"the {what} differ by {after:.1e} where the original's do by {before:.1e}")


def _norm(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None else float(tensor.norm())


def _distance(one: Tensor | None, other: Tensor | None) -> float:
    if one is None or other is None:
        return sum(float(x.double().norm()) for x in (one, other) if x is not None)
    return float((one.double() - other.double()).norm())


def _part(site: Site, values: Values) -> Values:
    """As much of the batch as is compared."""
    query, key = values[site.query], values[site.key]
    batch = query.shape[0]
    each = max(1, math.prod(query.shape[1:-1]) * key.shape[-1])
    most = max(1, MOST_SCORES // each)
    if most >= batch:
        return values
    return {
        node: value[:most] if _has_batch(value, query.dim(), batch) else value
        for node, value in values.items()
    }


def _has_batch(value: object, dimensions: int, batch: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == dimensions and value.shape[0] == batch


def _double(value: object) -> object:
    return value.double() if isinstance(value, Tensor) and _floating(value) else value


def _floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _is_learnt(site: Site, node: Node) -> bool:
    """True if a gradient may be wanted of an input."""
    return node in (site.query, site.key, site.value) or bool(
        getattr(node.meta.get("example_value"), "requires_grad", False)
    )
