"""Find attention that is written by hand in a captured graph: product, softmax, product.

The graph is one of `torch.fx` as dynamo hands it to a backend: functions and methods of torch as
the script calls them. Shapes and data types are those of `meta["example_value"]`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpurun.knobs.attention_products import Factor, Product, product_of, weighted_sum_of

Node = Any
"""A `torch.fx.Node`."""

NAMES = {
    "mul": ("mul", "mul_", "imul", "multiply"),
    "div": ("div", "div_", "truediv", "itruediv", "divide", "true_divide"),
    "add": ("add", "add_", "iadd"),
    "sub": ("sub", "sub_", "isub"),
    "fill": ("masked_fill", "masked_fill_"),
    "where": ("where",),
    "cast": ("to", "float", "half", "bfloat16", "double", "type", "type_as"),
    "same": ("contiguous",),
    "softmax": ("softmax",),
    "dropout": ("dropout",),
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names}
WITHOUT_EFFECT = frozenset(
    ("mean", "sum", "view", "reshape", "transpose", "permute", "detach", "getitem", "clone")
)
"""What may be computed from the weights for nobody: `nn.MultiheadAttention` averages them so."""
MODES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "set_grad_enabled")
LONGEST = 16
"""Operations between a product and its softmax."""


@dataclass(frozen=True)
class Scale:
    """The scores are multiplied by a number, or by a tensor whose last two sizes are 1."""

    by: float | Node
    divide: bool = False


@dataclass(frozen=True)
class Add:
    """A tensor is added to the scores, or taken away."""

    what: Node
    factor: float = 1.0


@dataclass(frozen=True)
class Fill:
    """The scores where `mask` is True (or is not) become `value`, a number or a tensor of one."""

    mask: Node
    value: float | Node
    where: bool = True


Step = Scale | Add | Fill


@dataclass
class Site:
    """One attention: `result` is softmax(steps(query · key)) · value, with dropout of the weights.

    `chain` are the operations that it replaces, in the graph's order; `leftovers` are those made of
    the weights that nobody uses.
    """

    query: Factor
    key: Factor
    value: Factor
    result: Node
    result_order: tuple[int, ...] | None
    steps: list[Step]
    dropout: float
    chain: list[Node]
    leftovers: list[Node] = field(default_factory=list)


class Unfit(Exception):
    """Why an attention is left as it is written.

    `outside`: a graph of more than this module might show that it can be replaced nevertheless.
    """

    def __init__(self, reason: str, outside: bool = False) -> None:
        super().__init__(reason)
        self.outside = outside


def shape_of(node: Node) -> tuple[Any, ...] | None:
    """The sizes of a node's tensor (ints, or symbols where shapes change), None if it has none."""
    example = node.meta.get("example_value")
    shape = getattr(example, "shape", None)
    return None if shape is None else tuple(shape)


def name_of(node: Node) -> str:
    """The name of the function or method that a node calls, "" of what is not torch's own."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    module = str(getattr(node.target, "__module__", None) or "torch").partition(".")[0]
    known = module in ("torch", "_operator", "operator")
    return str(getattr(node.target, "__name__", "")) if known else ""


def in_place(node: Node) -> bool:
    """Whether a node changes its first argument."""
    name = name_of(node)
    if node.op == "call_method":
        return name.endswith("_") and not name.endswith("__")
    inplace_operator = getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE
    return inplace_operator or name == "setitem" or (name.endswith("_") and bool(name.strip("_")))


_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ior", "iand", "imatmul", "ifloordiv", "ipow")


def follow_in_place(graph: Any) -> None:
    """Let what comes after an operation in place use its result, which is the same tensor."""
    for node in list(graph.nodes):
        target: Node = node.args[0] if node.args else None
        if not (in_place(node) and hasattr(target, "users")) or name_of(node) == "setitem":
            continue
        for user in list(target.users):
            if user is not node and user > node:
                user.replace_input_with(target, node)


def find_sites(graph: Any) -> Iterator[Site | Unfit]:
    """Each softmax between two products: the attention that it belongs to, or why it is unfit."""
    for node in list(graph.nodes):
        if KINDS.get(name_of(node)) != "softmax" or not _over_last(node):
            continue
        path = _to_product(node.args[0] if node.args else node.kwargs.get("input"), LONGEST)
        if path is None:
            continue
        try:
            yield _site(graph, node, *path)
        except Unfit as unfit:
            yield unfit


def _over_last(softmax: Node) -> bool:
    dim = softmax.kwargs.get("dim", softmax.args[1] if len(softmax.args) > 1 else None)
    shape = shape_of(softmax)
    return shape is not None and dim in (-1, len(shape) - 1)


Path = tuple[Product, list[Step], list[Node]]


def _to_product(node: Any, left: int) -> Path | None:
    """The product that a value is computed from, the steps from it, and the operations of them."""
    if not hasattr(node, "op") or left == 0:
        return None
    product = product_of(node, name_of(node), shape_of)
    if product is not None:
        steps: list[Step] = [] if product.factor == 1 else [Scale(product.factor)]
        if product.added is not None:
            steps.append(Add(product.added, product.added_factor))
        return product, steps, [node]
    for source, step in _steps(node):
        path = _to_product(source, left - 1)
        if path is not None:
            product, steps, chain = path
            return product, [*steps, *([] if step is None else [step])], [*chain, node]
    return None


def _steps(node: Node) -> Iterator[tuple[Node, Step | None]]:
    """The ways to read an operation as a step that keeps the scores' shape: its source, the step.

    None stands for a step that a softmax, or a kernel that accumulates in float32, does not see.
    """
    kind, args = KINDS.get(name_of(node)), node.args
    plain = not set(node.kwargs) - {"dtype", "input", "other", "mask", "value", "dim"}
    if kind is None or not args or not plain or (len(args) < 2 and kind not in ("cast", "same")):
        return
    first, other = args[0], args[1] if len(args) > 1 else None
    if kind in ("same", "cast"):
        if _floating(node) and _device(node) == _device(first):
            yield first, None
    elif kind in ("mul", "div"):
        if _one_a_row(other):
            yield first, Scale(other, kind == "div")
        if kind == "mul" and _one_a_row(first):
            yield other, Scale(first)
    elif kind in ("add", "sub"):
        if isinstance(other, int | float):
            yield first, None
        elif _keeps_shape(node, first):
            yield first, Add(other, 1.0 if kind == "add" else -1.0)
        if kind == "add" and hasattr(other, "op") and _keeps_shape(node, other):
            yield other, Add(first)
    elif kind == "fill" and len(args) == 3 and _keeps_shape(node, first):
        yield first, Fill(args[1], args[2])
    elif kind == "where" and len(args) == 3:
        yield from _chosen(node, args)


def _chosen(node: Node, args: tuple[Any, ...]) -> Iterator[tuple[Node, Step]]:
    """`torch.where(mask, scores, value)` and the other way round; as a method the mask is second"""
    mask, yes, no = args if node.op == "call_function" else (args[1], args[0], args[2])
    if _single(no) and hasattr(yes, "op") and _keeps_shape(node, yes):
        yield yes, Fill(mask, no, where=False)
    if _single(yes) and hasattr(no, "op") and _keeps_shape(node, no):
        yield no, Fill(mask, yes)


def _site(graph: Any, softmax: Node, product: Product, steps: list[Step], up: list[Node]) -> Site:
    leftovers: list[Node] = []
    for node, following in zip(up, [*up[1:], softmax], strict=True):
        if _users(node, leftovers) != [following]:
            raise Unfit("its scores are used elsewhere", outside=True)
    chain, dropout, node = [*up, softmax], 0.0, softmax
    while True:
        users = _users(node, leftovers)
        if len(users) != 1:
            raise Unfit("its weights are used elsewhere", outside=True)
        user = users[0]
        total = weighted_sum_of(user, name_of(user), node, shape_of)
        if total is not None:
            break
        kind = KINDS.get(name_of(user))
        if kind == "dropout":
            dropout = 1 - (1 - dropout) * (1 - _dropout(user))
        elif kind not in ("cast", "same") or not _floating(user):
            raise Unfit("its weights are changed before they are used")
        chain.append(user)
        node = user
    chain.append(user)
    _same_surroundings(graph, chain)
    site = Site(
        query=product.query,
        key=product.key,
        value=total.value,
        result=user,
        result_order=total.order,
        steps=steps,
        dropout=dropout,
        chain=chain,
        leftovers=leftovers,
    )
    _check_shapes(site, up[0])
    return site


def _users(node: Node, leftovers: list[Node]) -> list[Node]:
    """Who uses a node's result, without those whose own results nobody uses."""
    users = []
    for user in node.users:
        dead: list[Node] = []
        if _dead(user, dead):
            leftovers.extend(n for n in dead if n not in leftovers)
        else:
            users.append(user)
    return users


def _dead(node: Node, found: list[Node]) -> bool:
    name = name_of(node)
    free = name in WITHOUT_EFFECT and node.op != "output"
    if not free or not all(_dead(user, found) for user in node.users):
        return False
    found.append(node)
    return True


def _dropout(node: Node) -> float:
    """The probability with which a dropout acts here, 0 where it does not."""
    names = ("input", "p", "training" if "functional" in node.target.__module__ else "train")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    p, training = given.get("p", 0.5), given.get(names[2], True)
    if not isinstance(p, int | float) or not isinstance(training, bool):
        raise Unfit("its dropout changes from call to call")
    return float(p) if training else 0.0


def _same_surroundings(graph: Any, chain: list[Node]) -> None:
    """Nothing between the first and the last operation changes a mode, or a tensor in place."""
    first, last = chain[0], chain[-1]
    for node in graph.nodes:
        if first < node < last and node not in chain:
            if name_of(node) in MODES:
                raise Unfit("a mode changes inside of it")
            if in_place(node):
                raise Unfit("a tensor is changed in place inside of it")


def _check_shapes(site: Site, scores: Node) -> None:
    shape = shape_of(scores)
    sizes = [site.query.shape(shape_of), site.key.shape(shape_of), site.value.shape(shape_of)]
    if shape is None or len(shape) not in (3, 4) or any(len(s) != len(shape) for s in sizes):
        raise Unfit("its tensors have neither three nor four dimensions")
    if len({str(s[:-2]) for s in sizes}) != 1:
        raise Unfit("its batch dimensions differ")
    types = {str(site.query.dtype), str(site.key.dtype), str(site.value.dtype)}
    cast = {str(_dtype(scores)), str(_dtype(site.result))}
    if len(types) > 1 and (len(cast) > 1 or cast == {"torch.float32"}):
        raise Unfit("its tensors differ in data type")


def _single(value: Any) -> bool:
    """A number, or a tensor of one."""
    if hasattr(value, "op"):
        shape = shape_of(value)
        return shape is not None and math.prod(s if isinstance(s, int) else 2 for s in shape) == 1
    return isinstance(value, int | float)


def _one_a_row(value: Any) -> bool:
    """A number, or a tensor that has one value for all scores of a head."""
    if hasattr(value, "op"):
        shape = shape_of(value)
        return shape is not None and all(isinstance(s, int) and s == 1 for s in shape[-2:])
    return isinstance(value, int | float) and not isinstance(value, bool)


def _keeps_shape(node: Node, source: Node) -> bool:
    return str(shape_of(node)) == str(shape_of(source))


def _dtype(node: Node) -> Any:
    return getattr(node.meta.get("example_value"), "dtype", None)


def _device(node: Node) -> Any:
    return getattr(node.meta.get("example_value"), "device", None)


def _floating(node: Node) -> bool:
    return bool(getattr(_dtype(node), "is_floating_point", False))
