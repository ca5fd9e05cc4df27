"""Put torch's own attention into a captured graph, in the place of attention written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from gpurun.knobs.applied.attention import attention_masks
from gpurun.knobs.applied.attention.attention_masks import Mask, MaskCheck
from gpurun.knobs.applied.attention.attention_sites import Site, Unfit, find_sites, follow_in_place
from gpurun.knobs.applied.attention.replacement_check import Values, check, compute, real, replay
from gpurun.knobs.applied.attention.score_steps import (
    KINDS,
    Argument,
    name_of,
    shape_of,
    write_plainly,
)

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
    whether a module keeps a tensor from call to call.
    """
    graph = module.graph
    if not any(KINDS.get(name_of(node)) == "softmax" for node in graph.nodes):
        return Rewritten([], [], None, module.forward)
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    original = torch.fx.GraphModule(module, copied).forward
    try:
        done = _rewritten(module, inputs, held, original)
    except Exception as error:
        done = Rewritten([], [_unexpected(error)], None, original)
    if not done.masks:
        module.graph = copied
    module.recompile()
    return done


def _rewritten(
    module: GraphModule, inputs: Sequence[Any], held: Held, original: Callable[..., Any]
) -> Rewritten:
    write_plainly(module.graph)
    follow_in_place(module.graph)
    found = list(find_sites(module.graph))
    unfit = [x for x in found if isinstance(x, Unfit)]
    sites = [x for x in found if not isinstance(x, Unfit)]
    if not sites:
        return Rewritten([], unfit, None, original)
    work = _Work(module, inputs, held)
    replay(module, work.inputs, {s.result: work.stop(s) for s in sites}, work.needed(sites))
    work.finish()
    mask_checks = work.mask_checks
    holds = (lambda arguments: all(w(arguments) for w in mask_checks)) if mask_checks else None
    return Rewritten([plan.kind for plan in work.plans], unfit + work.unfit, holds, original)


def _unexpected(error: Exception) -> Unfit:
    if isinstance(error, Unfit):
        return error
    return Unfit(f"{type(error).__name__}: {error}"[:200])


@dataclass(frozen=True)
class _Plan:
    site: Site
    new: list[Node]
    kernel: Node
    kind: str


class _Work:
    """The attention of one graph: each is judged and built as the replay reaches it."""

    def __init__(self, module: GraphModule, inputs: Sequence[Any], held: Held) -> None:
        if any(isinstance(x, torch._subclasses.FakeTensor) for x in inputs):
            raise Unfit("this torch shows no real tensors")
        self.inputs = [real(x) for x in inputs]
        self.unfit: list[Unfit] = []
        self.plans: list[_Plan] = []
        self.mask_checks: list[MaskCheck] = []
        self._module = module
        self._held = held
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._given = dict(zip(placeholders, self.inputs, strict=True))

    def needed(self, sites: list[Site]) -> set[Node]:
        """The nodes whose values are wanted when a site is reached."""
        return {node for site in sites for node in (*_inputs(site), site.result)}

    def stop(self, site: Site) -> Callable[[Values], None]:
        """A function to call once the replay has reached the result of a site: it plans the
        rewrite."""

        def reached(values: Values) -> None:
            new: list[Node] = []
            try:
                self.plans.append(self._plan(site, values, new))
            except Exception as error:
                self.unfit.append(_unexpected(error))
                for node in reversed(new):
                    self._module.graph.erase_node(node)

        return reached

    def finish(self) -> None:
        """Carry out the planned replacements, and remove the nodes that are no longer used."""
        graph = self._module.graph
        for plan in self.plans:
            site = plan.site
            plan.new[-1].meta = dict(site.result.meta)
            site.result.replace_all_uses_with(plan.new[-1])
            for node in (*sorted(site.leftovers, reverse=True), *reversed(site.chain)):
                graph.erase_node(node)
            if site.dropout:
                plan.kernel.kwargs = {**plan.kernel.kwargs, "dropout_p": site.dropout}

    def _plan(self, site: Site, values: Values, new: list[Node]) -> _Plan:
        if site.dropout and values[site.result].device.type == "cpu":
            raise Unfit("the CPU has no fast kernel with dropout")
        own = {node: values[node] for node in _inputs(site)}
        mask = attention_masks.build(self._module.graph, site, new)
        built = dict(own)
        compute(self._module, mask.new, built)
        kind, watched = attention_masks.judge(mask, built, self._is_held)
        if watched and mask.node is not None:
            mask_check = MaskCheck(self._module, mask.node, kind)
        if kind != "other":
            for node in reversed(mask.new):
                self._module.graph.erase_node(node)
                new.remove(node)
        rank = 0 if mask.node is None else built[mask.node].dim()
        kernel = _put(self._module.graph, site, mask, rank, kind, new)
        check(self._module, site, own, new, {**own, site.result: values[site.result]})
        if watched:
            self.mask_checks.append(mask_check)
        return _Plan(site, new, kernel, kind)

    def _is_held(self, node: Node) -> bool:
        if node.op == "get_attr":
            return True
        value = self._given[node]
        return not isinstance(value, Tensor) or self._held(value)


def _inputs(site: Site) -> list[Node]:
    """The inputs of an attention."""
    own = set(site.chain)
    found = dict.fromkeys(n for node in site.chain for n in node.all_input_nodes)
    return [node for node in found if node not in own]


def _put(graph: Graph, site: Site, mask: Mask, rank: int, kind: str, new: list[Node]) -> Node:
    """Put the kernel before the result of a site; returns the kernel, `new` ends in the result.

    `rank`: the number of the mask's dimensions.
    """

    def put(name: str, *args: Argument) -> Node:
        new.append(graph.call_method(name, args))
        return new[-1]

    flat = len(shape_of(site.chain[0]) or ()) == 3  # the fast kernels want four dimensions
    with graph.inserting_before(site.result):
        query, key, value = site.query, put("transpose", site.key, -2, -1), site.value
        for step in mask.factors:
            query = put("div" if step.divide else "mul", query, step.by)
        seen = None
        if kind == "other":
            seen = put("to", mask.node, query)
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
        if flat:
            put("squeeze", kernel, 1)
    return kernel
