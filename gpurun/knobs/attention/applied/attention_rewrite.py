"""Put torch's own attention into a captured graph, in the place of attention written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gpurun.knobs.attention.applied import attention_masks
from gpurun.knobs.attention.applied.attention_masks import Mask, MaskCheck
from gpurun.knobs.attention.applied.attention_products import Factor
from gpurun.knobs.attention.applied.attention_sites import Site, Unfit, find_sites, follow_in_place
from gpurun.knobs.attention.applied.graph_replay import Values, execute, real, replay
from gpurun.knobs.attention.applied.replacement_check import check
from gpurun.knobs.attention.applied.score_steps import KINDS, Argument, name_of, shape_of
from gpurun.knobs.compiling.applied.nested_graphs import flattened, inner_graphs

Held = Callable[[Tensor], bool]
"""True if a module keeps a tensor from call to call."""


@dataclass(frozen=True)
class Rewritten:
    """The outcome of rewriting a graph's attention.

    `masks`: "causal", "nothing" or "other" for each that was replaced; `unfit`: why others were
    not. `holds(arguments)` tells whether the graph may be run on them; else `original` must be.
    """

    masks: list[str]
    unfit: list[Unfit]
    holds: Callable[[Sequence[Any]], bool] | None
    original: Callable[..., Any]


def rewrite(module: GraphModule, inputs: Sequence[Any], held: Held) -> Rewritten:
    """Rewrite a graph module in place, as far as that is shown to be right on `inputs`.

    `inputs` are the real tensors of its first call (numbers may be symbols); `held(tensor)` tells
    whether a module keeps a tensor from call to call. Attention in an inner graph, which several
    calls share, is replaced if it is shown for each of them.
    """
    graphs: list[tuple[GraphModule, Sequence[Node | None]]]
    graphs = [(module, [None]), *inner_graphs(module)]
    if not any(_has_softmax(part.graph) for part, _ in graphs):
        return Rewritten([], [], None, module.forward)
    original = flattened(module)[0].forward
    before = [(part, _copy(part.graph)) for part, _ in graphs]
    try:
        work = _Work(module, inputs, held)
        masks = [mask for part, calls in graphs for mask in work.replace(part.graph, calls)]
    except Exception as error:
        for part, graph in before:
            part.graph = graph
        return Rewritten([], [_unexpected(error)], None, original)
    finally:
        for part, _ in graphs:
            part.recompile()
    checks = work.mask_checks
    holds = (lambda arguments: all(check(arguments) for check in checks)) if checks else None
    return Rewritten(masks, work.unfit, holds, original)


def _has_softmax(graph: Graph) -> bool:
    return any(KINDS.get(name_of(node)) == "softmax" for node in graph.nodes)


def _copy(graph: Graph) -> Graph:
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


def _unexpected(error: Exception) -> Unfit:
    if isinstance(error, Unfit):
        return error
    return Unfit(f"{type(error).__name__}: {error}"[:200])


@dataclass(frozen=True)
class _Plan:
    """What replaces an attention. `rank`: the number of its mask's dimensions."""

    kind: str
    rank: int


class _Work:
    """The attention of a graph: each is judged as the replay of a flat copy of it reaches it."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], held: Held) -> None:
        self.unfit: list[Unfit] = []
        self.mask_checks: list[MaskCheck] = []
        self._plans: dict[Node, _Plan] = {}
        """By the result of an attention in the flat graph."""
        self._flat, self._copies = flattened(module)
        self._held = held
        follow_in_place(self._flat.graph)
        found = list(find_sites(self._flat.graph))
        self.unfit += [x for x in found if isinstance(x, Unfit)]
        sites = [x for x in found if not isinstance(x, Unfit)]
        if not sites:
            return
        if any(isinstance(x, torch._subclasses.FakeTensor) for x in inputs):
            raise Unfit("this torch shows no real tensors")
        given = [real(x) for x in inputs]
        placeholders = self._flat.graph.find_nodes(op="placeholder")
        self._given = dict(zip(placeholders, given, strict=True))
        needed = {node for site in sites for node in _inputs(site)}
        replay(self._flat, given, {site.result: self._stop(site) for site in sites}, needed)

    def replace(self, graph: Graph, calls: Sequence[Node | None]) -> Iterator[str]:
        """Replace attention in a graph where this is right in all calls of it; the kinds of masks,
        one for each attention and call.
        """
        if not self._plans:
            return
        follow_in_place(graph)
        for site in list(find_sites(graph)):
            if isinstance(site, Unfit):
                self.unfit.append(site)
                continue
            plans = {self._plans.get(self._copies[call, site.result]) for call in calls}
            plan = plans.pop()
            if plans:
                self.unfit.append(Unfit("it cannot be replaced alike in all blocks"))
            elif plan is not None:
                _replace(graph, site, plan)
                yield from [plan.kind] * len(calls)

    def _stop(self, site: Site) -> Callable[[Values], None]:
        """A function to call once the replay has reached the result of a site: it plans the
        rewrite."""

        def reached(values: Values) -> None:
            new: list[Node] = []
            try:
                self._plans[site.result] = self._plan(site, values, new)
            except Exception as error:
                self.unfit.append(_unexpected(error))
                for node in reversed(new):
                    self._flat.graph.erase_node(node)

        return reached

    def _plan(self, site: Site, values: Values, new: list[Node]) -> _Plan:
        if site.dropout and values[site.result].device.type == "cpu":
            raise Unfit("the CPU has no fast kernel with dropout")
        own = {node: values[node] for node in _inputs(site)}
        mask = attention_masks.build(self._flat.graph, site, new)
        built = dict(own)
        execute(self._flat, mask.new, built)
        kind, watched = attention_masks.judge(mask, built, self._is_held)
        if watched and mask.node is not None:
            mask_check = MaskCheck(self._flat, mask.node, kind)
        plan = _Plan(kind, 0 if mask.node is None else built[mask.node].dim())
        _put(self._flat.graph, site, mask, plan, new)
        check(self._flat, site, own, new, {**own, site.result: values[site.result]})
        if watched:
            self.mask_checks.append(mask_check)
        return plan

    def _is_held(self, node: Node) -> bool:
        if node.op == "get_attr":
            return True
        value = self._given[node]
        return not isinstance(value, Tensor) or self._held(value)


def _replace(graph: Graph, site: Site, plan: _Plan) -> None:
    """Put the kernel in the place of an attention, and remove the nodes that are no longer used."""
    new: list[Node] = []
    kernel = _put(graph, site, attention_masks.build(graph, site, new), plan, new)
    new[-1].meta = dict(site.result.meta)
    site.result.replace_all_uses_with(new[-1])
    for node in (*sorted(site.leftovers, reverse=True), *reversed(site.chain)):
        graph.erase_node(node)
    if site.dropout:
        kernel.kwargs = {**kernel.kwargs, "dropout_p": site.dropout}


def _inputs(site: Site) -> list[Node]:
    """The inputs of an attention."""
    own = set(site.chain)
    found = dict.fromkeys(n for node in site.chain for n in node.all_input_nodes)
    return [node for node in found if node not in own]


def _put(graph: Graph, site: Site, mask: Mask, plan: _Plan, new: list[Node]) -> Node:
    """Put the kernel before the result of a site; returns the kernel, `new` ends in the result.

    The operations of a mask that the kernel knows without it are taken out again.
    """
    kind, rank = plan.kind, plan.rank
    for node in reversed(mask.new if kind != "other" else []):
        graph.erase_node(node)
        new.remove(node)

    def put(name: str, *args: Argument) -> Node:
        new.append(graph.call_method(name, args))
        return new[-1]

    def ordered(factor: Factor) -> Node:
        return factor.node if factor.order is None else put("permute", factor.node, factor.order)

    flat = len(shape_of(site.chain[0]) or ()) == 3  # the fast kernels want four dimensions
    with graph.inserting_before(site.result):
        query, key, value = map(ordered, (site.query, site.key, site.value))
        for step in mask.factors:
            query = put("div" if step.divide else "mul", query, step.by)
        seen = None
        if kind == "other":
            seen = mask.node if mask.boolean else put("to", mask.node, query)
            if rank in (1, 3):
                seen = put("unsqueeze", seen, 1 if flat and rank == 3 else 0)
        if flat:
            query, key, value = (put("unsqueeze", x, 1) for x in (query, key, value))
        kernel = graph.call_function(
            torch.nn.functional.scaled_dot_product_attention,
            (query, key, value),
            {"attn_mask": seen, "is_causal": kind == "causal", "scale": mask.scale},
        )
        new.append(kernel)
        result = put("squeeze", kernel, 1) if flat else kernel
        if site.result_order is not None:
            put("permute", result, site.result_order)
    return kernel
