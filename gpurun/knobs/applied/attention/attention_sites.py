"""Find attention that is written by hand in a captured graph: product, softmax, product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.fx import Graph, Node

from gpurun.knobs.applied.attention.score_steps import (
    KINDS,
    Step,
    args_of,
    dtype_of,
    floating,
    in_place,
    name_of,
    shape_of,
    steps_of,
)

PRODUCTS = ("matmul", "bmm", "__matmul__")
WITHOUT_EFFECT = frozenset(
    ("mean", "sum", "view", "reshape", "transpose", "permute", "detach", "getitem", "clone")
)
"""Operations on the weights whose result nobody uses: `nn.MultiheadAttention` averages them so."""
MODES = ("_enter_autocast", "_exit_autocast", "_set_grad_enabled", "set_grad_enabled")
LONGEST = 16
"""Operations between a product and its softmax."""


@dataclass
class Site:
    """One attention: `result` is softmax(steps(query · key)) · value, with dropout of the weights.

    `key` is transposed already, as the script multiplies by it. `chain` are the operations that
    it replaces, in the graph's order; `leftovers` are those made of the weights that nobody
    uses.
    """

    query: Node
    key: Node
    value: Node
    result: Node
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


def follow_in_place(graph: Graph) -> None:
    """Let later nodes use the result of an operation in place: it is the same tensor."""
    for node in list(graph.nodes):
        target = node.args[0] if node.args else None
        if not (in_place(node) and isinstance(target, Node)) or name_of(node) == "setitem":
            continue
        for user in list(target.users):
            if user is not node and user > node:
                user.replace_input_with(target, node)


def find_sites(graph: Graph) -> Iterator[Site | Unfit]:
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


Path = tuple[list[Step], list[Node]]


def _to_product(node: object, left: int) -> Path | None:
    """The steps from the product that a value is computed from, and the operations from it on."""
    if not isinstance(node, Node) or left == 0:
        return None
    if _is_product(node):
        return [], [node]
    for source, step in steps_of(node):
        path = _to_product(source, left - 1)
        if path is not None:
            steps, chain = path
            return [*steps, *([] if step is None else [step])], [*chain, node]
    return None


def _is_product(node: Node) -> bool:
    plain = name_of(node) in PRODUCTS and len(node.args) == 2 and not node.kwargs
    return plain and len(shape_of(node) or ()) >= 3


def _site(graph: Graph, softmax: Node, steps: list[Step], up: list[Node]) -> Site:
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
        if _is_product(user) and args_of(user)[0] is node and args_of(user)[1] is not node:
            break
        kind = KINDS.get(name_of(user))
        if kind == "dropout":
            dropout = 1 - (1 - dropout) * (1 - _dropout(user))
        elif kind not in ("cast", "same") or not floating(user):
            raise Unfit("its weights are changed before they are used")
        chain.append(user)
        node = user
    chain.append(user)
    _check_operations_between(graph, chain)
    query, key = args_of(up[0])
    site = Site(query, key, args_of(user)[1], user, steps, dropout, chain, leftovers)
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


def _check_operations_between(graph: Graph, chain: list[Node]) -> None:
    """Nothing between the first and the last operation changes a mode, or a tensor in place."""
    first, last = chain[0], chain[-1]
    for node in graph.nodes:
        if first < node < last and node not in chain:
            if name_of(node) in MODES:
                raise Unfit("a mode changes inside of it")
            if in_place(node):
                raise Unfit("a tensor is changed in place inside of it")


def _check_shapes(site: Site, scores: Node) -> None:
    shape, factors = shape_of(scores), (site.query, site.key, site.value)
    sizes = [shape_of(factor) or () for factor in factors]
    if shape is None or len(shape) not in (3, 4) or any(len(s) != len(shape) for s in sizes):
        raise Unfit("its tensors have neither three nor four dimensions")
    if len({str(s[:-2]) for s in sizes}) != 1:
        raise Unfit("its batch dimensions differ")
    types = {str(dtype_of(factor)) for factor in factors}
    cast = {str(dtype_of(scores)), str(dtype_of(site.result))}
    if len(types) > 1 and (len(cast) > 1 or cast == {"torch.float32"}):
        raise Unfit("its tensors differ in data type")
