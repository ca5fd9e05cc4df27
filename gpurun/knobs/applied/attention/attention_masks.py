"""The mask of an attention: built for the kernel, and looked at on real tensors.

A mask that only hides what comes later lets the fastest kernels run, which take no mask but a flag.
The tensors themselves show this, and it holds only as long as they stay the same and unchanged.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gpurun.knobs.applied.attention.attention_sites import Site, Unfit
from gpurun.knobs.applied.attention.score_steps import Add, Argument, Fill, Scale, name_of

HIDES = -1e4
"""A score this low has no weight beside one that is not: exp(-1e4) is 0 in every precision."""
DROWNS = -1e9
"""Added to a score in float32 this replaces it, as filling does, even in a row of nothing else."""
RANDOM = ("rand", "bernoulli", "dropout", "normal", "multinomial", "empty", "new_empty")


@dataclass
class Mask:
    """The rest of an attention's steps.

    `scale`: the number that the scores are multiplied by. `node`: what is added to the scores, None
    for nothing. `factors`: for the queries. `new`: the operations that were put into the graph for
    it. `low`: the values that hidden scores are filled with.
    """

    scale: float
    node: Node | None
    factors: list[Scale]
    new: list[Node]
    low: list[float | Node]


def build(graph: Graph, site: Site, new: list[Node]) -> Mask:
    """Put the mask of a site into the graph, right before its result; `new` gets the operations."""
    low = [step.value for step in site.steps if isinstance(step, Fill)]
    mask = Mask(1.0, None, [], [], low)

    def put(function: Callable[..., object], *args: Argument) -> Node:
        node = graph.call_function(function, args)
        new.append(node)
        mask.new.append(node)
        return node

    with graph.inserting_before(site.result):
        for step in site.steps:
            if isinstance(step, Scale):
                _scale(mask, step, put)
            elif isinstance(step, Add):
                what = step.what if step.factor == 1 else put(torch.mul, step.what, step.factor)
                mask.node = what if mask.node is None else put(torch.add, mask.node, what)
            else:
                before = 0.0 if mask.node is None else mask.node
                pair = (step.value, before) if step.where else (before, step.value)
                mask.node = put(torch.where, step.mask, *pair)
    return mask


def _scale(mask: Mask, step: Scale, put: Callable[..., Node]) -> None:
    by = step.by
    if isinstance(by, int | float):
        factor = 1 / by if step.divide and by else float(by)
        if not (factor > 0 and math.isfinite(factor)):
            raise Unfit("the scale of its scores is not positive")
        mask.scale *= factor
    else:
        mask.factors.append(step)
    if mask.node is not None:
        mask.node = put(torch.div if step.divide else torch.mul, mask.node, by)


def judge(mask: Mask, values: dict[Node, Any], held: Callable[[Node], bool]) -> tuple[str, bool]:
    """The kind of a mask (see `kind_of`), and True if it must be watched (see `MaskCheck`).

    `values` holds its real tensors. `held(input)`: an input of the graph is a tensor that a module
    keeps from call to call. Only for such inputs the result lasts.
    """
    if mask.node is None:
        return "nothing", False
    filled = [values[x] if isinstance(x, Node) else x for x in mask.low]
    if not lasts(mask.node, held):
        if any(not _drowns(x) for x in filled):
            raise Unfit("its mask changes, and may hide all of a row")
        return "other", False
    looked_at = values[mask.node]
    kind = kind_of(looked_at)
    if bool(_hidden(looked_at).all(-1).any()):
        raise Unfit("its mask hides all of a row")
    if kind == "other" and any(not _drowns(x) for x in filled):
        raise Unfit("its mask fills in a value that is not low enough")
    return kind, kind != "other"


def _drowns(value: SupportsFloat) -> bool:
    return float(value) <= DROWNS


def _hidden(mask: Tensor) -> Tensor:
    return mask <= HIDES


def kind_of(mask: Tensor) -> str:
    """The positions that an addend of the scores hides: "nothing", "causal" or "other".

    Causal: every query sees the keys up to its own place, counted from the first. Waits for the
    device.
    """
    hidden = _hidden(mask)
    if not bool(((mask == 0) | hidden).all()):
        return "other"
    if not bool(hidden.any()):
        return "nothing"
    if mask.dim() < 2:
        return "other"
    later = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device).triu(1)
    return "causal" if bool((hidden == later).all()) else "other"


def ancestors(node: Node) -> list[Node]:
    """The nodes that a node is computed from, itself included, in the graph's order."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            waiting.extend(current.all_input_nodes)
    return sorted(found)


def lasts(node: Node, held: Callable[[Node], bool]) -> bool:
    """True if a value follows from sizes, constants and tensors that modules keep."""
    for found in ancestors(node):
        if found.op in ("placeholder", "get_attr"):
            if not held(found):
                return False
        elif found.op == "call_module" or name_of(found).startswith(RANDOM):
            return False
    return True


Refs = tuple[weakref.ref[Tensor] | None, ...]


class MaskCheck:
    """Tells whether a mask is still what it was taken for, from the arguments of the graph.

    Tensors are compared by identity, place and version, which costs about a microsecond; only what
    was not seen before is computed and looked at.
    """

    MOST = 4096

    def __init__(self, module: GraphModule, mask: Node, kind: str) -> None:
        self._kind = kind
        needed = ancestors(mask)
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._places = [i for i, n in enumerate(inputs) if n in needed]
        graph = torch.fx.Graph()
        copies: dict[Node, Node] = {}
        for node in (*inputs, *(n for n in needed if n.op != "placeholder")):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[mask])
        self._mask = torch.fx.GraphModule(module, graph).forward
        self._known: dict[tuple[object, ...], tuple[Refs, bool]] = {}

    def __call__(self, args: Sequence[Any]) -> bool:
        """True if the mask of a call with these arguments is what it was."""
        found = [args[place] for place in self._places]
        key = tuple(map(_mark, found))
        known = self._known.get(key)
        if known is not None:
            refs, same = known
            if all(ref is None or ref() is x for ref, x in zip(refs, found, strict=True)):
                return same
        return self._look(args, key, found)

    def _look(self, args: Sequence[Any], key: tuple[object, ...], found: Sequence[object]) -> bool:
        with torch.no_grad():
            same = kind_of(self._mask(*args)) == self._kind
        if len(self._known) >= self.MOST:
            self._known.clear()
        refs = tuple(weakref.ref(x) if isinstance(x, Tensor) else None for x in found)
        self._known[key] = refs, same
        return same


def _mark(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    version = -1 if value.is_inference() else value._version
    return id(value), value.data_ptr(), version
