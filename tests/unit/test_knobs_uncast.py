"""Uncast logits are cast ones to a script, whatever it does with them, and cast only if need be.

Each way to use them runs twice, on `half.float()` and on what stands in for it: results, gradients
of the weights and errors are the same.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from gpurun.knobs.applied.compiling import compiled_roots
from gpurun.knobs.applied.cross_entropy_kernels import (
    half_cross_entropy,
    half_cross_entropy_gradient,
)
from gpurun.knobs.applied.root_calls import COPIED_LATER
from gpurun.knobs.applied.root_outputs import STAND_INS, stand_in_for
from gpurun.knobs.applied.uncast import Computed, half_of, in_float32, of_half, uncast

CLASSES = 8
INPUTS = torch.randn(2, 5, 6, generator=torch.manual_seed(0))
TARGETS = torch.randint(0, CLASSES, (2, 5))
WEIGHTS = torch.randn(CLASSES, 6)

Use = Callable[[torch.Tensor], Any]


def loss_of(logits: Any, further: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """As the knob computes it, but for the compiler."""
    half, target, options = half_of(logits), further[0], (None, -100, "mean", 0.0)
    if half is None:
        return None

    def plainly(logits: torch.Tensor, target: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target)

    def gradient(half: torch.Tensor, slope: torch.Tensor, target: Any, scale: Any) -> torch.Tensor:
        found: torch.Tensor = half_cross_entropy_gradient(half, scale, slope, target, *options, 0)
        return found

    value, scale = half_cross_entropy(half, target, *options)
    return of_half(logits, Computed(value, gradient, plainly), (target, scale))


class Used:
    """What came of one use: what it returned, the gradient of the weights, whether it was cast."""

    def __init__(self, use: Use, stand_in: bool) -> None:
        weights = WEIGHTS.clone().requires_grad_()
        half = F.linear(INPUTS.bfloat16(), weights.bfloat16())
        self.logits = uncast(half, loss_of) if stand_in else half.float()
        self.result = use(self.logits)
        if isinstance(self.result, torch.Tensor) and self.result.grad_fn is not None:
            self.result.sum().backward()
        self.gradient = weights.grad
        self.is_cast = half_of(self.logits) is None if stand_in else True


def same(use: Use) -> Used:
    """Whatever stands in for the cast: nobody can tell by the figures."""
    ours, right = Used(use, stand_in=True), Used(use, stand_in=False)
    for mine, plain in ((ours.result, right.result), (ours.gradient, right.gradient)):
        if isinstance(plain, torch.Tensor):
            assert mine.dtype == plain.dtype
            torch.testing.assert_close(in_float32(mine), plain, rtol=2e-2, atol=2e-3)
        else:
            assert mine == plain
    return ours


def loss(logits: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.view(-1, logits.size(-1)), TARGETS.view(-1))


def after(use: Callable[[torch.Tensor], object]) -> Use:
    """First `use` the logits, then return their loss."""

    def both(logits: torch.Tensor) -> torch.Tensor:
        use(logits)
        return loss(logits)

    return both


def before(use: Use) -> Use:
    """First take the loss and differentiate it, then `use` the logits without gradients."""

    def both(logits: torch.Tensor) -> Any:
        loss(logits).backward()
        with torch.no_grad():
            return use(logits)

    return both


UNREAD: dict[str, Use] = {
    "a loss": loss,
    "as a module": lambda x: torch.nn.CrossEntropyLoss()(x.flatten(0, 1), TARGETS.flatten()),
    "classes first": lambda x: F.cross_entropy(x.transpose(1, 2), TARGETS),
    "permuted": lambda x: F.cross_entropy(x.permute(0, 2, 1).contiguous(), TARGETS),
    "shifted": lambda x: F.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, CLASSES).float(), TARGETS[:, 1:].reshape(-1)
    ),
    "masked": lambda x: F.cross_entropy(x[TARGETS > 2], TARGETS[TARGETS > 2]),
    "one sample": lambda x: F.cross_entropy(x[0].unsqueeze(0).squeeze(0), TARGETS[0]),
    "two losses": lambda x: loss(x) + 0.5 * F.cross_entropy(x[:, -1], TARGETS[:, 0]),
    "accuracy": before(lambda x: (x.argmax(-1) == TARGETS).sum()),
    "best": before(lambda x: x.max(-1).values + x.topk(2).values[..., 0]),
    "what it is": lambda x: (
        x.shape, x.dtype, x.device, x.stride(), x.is_contiguous(), x.requires_grad, x.is_leaf,
        len(x), x.ndim, x.nbytes, x.is_cuda, torch.is_tensor(x), isinstance(x, torch.FloatTensor),
    ),
    "detached": before(lambda x: x.detach().requires_grad),
}  # fmt: skip


@pytest.mark.parametrize("use", UNREAD)
def test_what_needs_no_float32_numbers_casts_nothing(use: str) -> None:
    assert not same(UNREAD[use]).is_cast


def written_through_a_view(logits: torch.Tensor) -> torch.Tensor:
    flat, row = logits.view(-1, CLASSES), logits[0, 0]
    logits.mul_(3)
    row.zero_()
    flat[1] = 1.0
    return logits.pow(2).sum() + flat.sum()


def cleared_before_backward(logits: torch.Tensor) -> torch.Tensor:
    value = loss(logits)
    with torch.no_grad():
        logits.zero_()
    return value


class Squares(torch.autograd.Function):
    """A function of the script's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square().sum()

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * slope


def saved(logits: torch.Tensor) -> torch.Tensor:
    torch.save(logits, file := io.BytesIO())
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is torch.Tensor
    return loaded.detach()


READ: dict[str, Use] = {
    "sum": lambda x: x.sum(),
    "a loss of its own": lambda x: -x.float().log_softmax(-1).gather(-1, TARGETS[..., None]).mean(),
    "another loss": lambda x: F.mse_loss(x, torch.zeros(2, 5, CLASSES)),
    "a penalty too": lambda x: loss(x) + 0.1 * x.logsumexp(-1).pow(2).mean(),
    "distilled": lambda x: F.cross_entropy(
        x.view(-1, CLASSES), x.detach().view(-1, CLASSES).softmax(-1)
    ),
    "divided in place": after(lambda x: x.div_(2)),
    "changed before backward": cleared_before_backward,
    "written through a view": written_through_a_view,
    "copied from": lambda x: torch.empty(2, 5, CLASSES).copy_(x.detach()),
    "concatenated": lambda x: torch.cat([x, x]).sin(),
    "to another type": lambda x: x.double(),
    "a function": lambda x: Squares.apply(x),  # type: ignore[no-untyped-call]
    "printed": lambda x: f"{x.detach()} {x.sum():.2f}",
    "listed": lambda x: (x.tolist(), x[0, 0, 0].item(), [float(y.sum()) for y in x.detach()]),
    "numpy": lambda x: x.detach().numpy().tobytes(),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "its memory": lambda x: (x.data_ptr() > 0, x.untyped_storage().nbytes()),
    "a deep copy": lambda x: copy.deepcopy(x.detach()),
    "pickled": lambda x: pickle.loads(pickle.dumps(x.detach())),
    "saved": saved,
    "differentiated for": lambda x: torch.autograd.grad(loss(x), x)[0] + 0,
    "vmap": lambda x: torch.func.vmap(lambda y: y.exp().sum())(x),
    "torch.func": lambda x: torch.func.grad(loss)(x.detach()),
    "scripted": lambda x: torch.jit.script(torch.nn.CrossEntropyLoss())(x[0], TARGETS[0]),
    "another module": lambda x: torch.nn.Linear(CLASSES, 1, bias=False)(x) * 0,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("use", READ)
def test_what_reads_the_numbers_reads_float32(use: str) -> None:
    same(READ[use])


def hooked(logits: torch.Tensor) -> torch.Tensor:
    logits.register_hook(lambda gradient: gradient * 3)
    return loss(logits)


def retained(logits: torch.Tensor) -> torch.Tensor:
    logits.retain_grad()
    loss(logits).backward()
    assert logits.grad is not None
    return logits.grad + 0


def again(logits: torch.Tensor) -> torch.Tensor:
    value = loss(logits)
    value.backward(retain_graph=True)
    return value


def penalised(logits: torch.Tensor) -> torch.Tensor:
    value = loss(logits)
    (slope,) = torch.autograd.grad(value, logits, create_graph=True)
    return value + 30 * slope.pow(2).sum()


def recomputed(reentrant: bool) -> Use:
    return lambda x: checkpoint(lambda y: loss(y) + y.sum(), x, use_reentrant=reentrant)


GRAPH: dict[str, Use] = {
    "hooks": hooked,
    "retain_grad": retained,
    "retain_graph": again,
    "twice differentiated": penalised,
    "twice differentiated without a loss": lambda x: (
        torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)[0].pow(2).sum()
    ),
    "checkpoint": recomputed(reentrant=False),
    "reentrant checkpoint": recomputed(reentrant=True),
}


@pytest.mark.parametrize("use", GRAPH)
def test_the_graph_of_autograd_is_that_of_the_cast(use: str) -> None:
    same(GRAPH[use])


def test_the_cast_is_made_once_and_the_half_is_let_go() -> None:
    numbers = (logits := uncast(torch.ones(4, 4, dtype=torch.bfloat16)))._numbers
    logits.sum()
    full = numbers.data
    logits.view(2, 8).exp()
    assert numbers.data is full
    assert full.dtype is torch.float32


def test_a_second_pass_through_a_freed_graph_fails_as_it_should() -> None:
    logits = uncast(torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True), loss_of)
    value = F.cross_entropy(logits, torch.arange(4))
    value.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        value.backward()


def test_an_error_shows_no_line_of_ours() -> None:
    logits = uncast(torch.ones(4, 4, dtype=torch.bfloat16, requires_grad=True))
    with pytest.raises(RuntimeError) as caught:
        logits.view(3, 3)
    assert not [x for x in caught.traceback if "knobs/uncast.py" in str(x.path)]


def test_models_are_given_plain_tensors() -> None:
    logits = uncast(torch.ones(2, 2, dtype=torch.bfloat16, requires_grad=True))
    (given,), named = in_float32(((logits,), {"x": [logits], "y": TARGETS}))
    assert type(given) is type(named["x"][0]) is torch.Tensor
    assert given.grad_fn is not None
    assert named["y"] is TARGETS


GAPPED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "columns of longer rows": lambda half: half[..., :4],
    "transposed": lambda half: half.transpose(0, 2)[:4],
    "expanded": lambda half: half[:1].expand(3, 3, 6),
}


@pytest.mark.parametrize("name", GAPPED)
@pytest.mark.parametrize(
    "use",
    [
        lambda x: x,
        lambda x: x.view(-1, x.size(-1)) if x.is_contiguous() else x,
        lambda x: x.view(-1) if x.is_contiguous() else x.reshape(-1),
        lambda x: x[:, :-1].contiguous().view(-1, x.size(-1)),
        lambda x: x.transpose(1, 2).flatten(),
        lambda x: x.unsqueeze(0)[0, 1:],
    ],
)
def test_gaps_between_rows_are_not_seen(name: str, use: Use) -> None:
    """Strides, views and gradients are those of the cast, which has no gaps."""
    real = torch.arange(54.0).reshape(3, 3, 6).bfloat16()
    given, again = real.clone().requires_grad_(), real.clone().requires_grad_()
    half = GAPPED[name](given)
    logits, cast = uncast(half), GAPPED[name](again).float()
    ours, right = use(logits), use(cast)
    assert (logits.stride(), logits.is_contiguous()) == (cast.stride(), cast.is_contiguous())
    assert (ours.shape, ours.stride()) == (right.shape, right.stride())
    assert logits.device == ours.device == cast.device
    assert half_of(logits) is not None, "nothing was cast"
    assert torch.equal(ours.detach() * 2, right.detach() * 2)
    (ours * ours).sum().backward()
    (right * right).sum().backward()
    assert torch.equal(given.grad, again.grad)


class OnGpu:
    """A tensor as the knob `compile` looks at it."""

    is_cuda = True

    def clone(self) -> str:
        return "a copy"


class Stands:
    """Stands in for every tensor."""

    def fits(self, tensor: Any) -> bool:
        return True

    def make(self, tensor: Any) -> Any:
        return tensor


def test_outputs_of_cuda_graphs_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast is a copy; what stands in for it is none."""
    graphs = compiled_roots._GraphSteps(print)
    graphs.modules.append(None)
    monkeypatch.setattr("gpurun.knobs.applied.root_outputs.STAND_INS", [])
    monkeypatch.setattr("gpurun.knobs.applied.compiling.compiled_roots.COPIED_LATER", later := [])
    output: Any = OnGpu()
    assert graphs.output(output) is output, "not what map_tensors takes for a tensor"
    assert (COPIED_LATER, STAND_INS) == ([], [])
    assert compiled_roots._clone(output) == "a copy"
    later.append(lambda tensor: stand_in_for(tensor) is None)
    assert compiled_roots._clone(output) is output
    monkeypatch.setattr("gpurun.knobs.applied.root_outputs.STAND_INS", [Stands()])
    assert compiled_roots._clone(output) == "a copy"
