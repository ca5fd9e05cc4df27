"""Logits in rows of whole cache lines: the same numbers and gradients, in another layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn

from gpurun.knobs.applied import fused_cross_entropy, padded_logits
from gpurun.knobs.applied.compiling.compiled_calls import REWRITES, compile_in_place
from gpurun.knobs.applied.padded_logits import (
    ENDS_IN_ZEROS,
    LINE,
    PADDED,
    UNCONFIRMED,
    columns,
    confirm,
    copy_of,
    padding,
)

WIDTH = 97
INPUTS = torch.randn(4, 6, 16, generator=torch.manual_seed(0))


class Model(nn.Module):
    """One linear layer; `also` is done with its result before it is returned."""

    def __init__(self, also: Callable[[torch.Tensor], Any], width: int, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Linear(16, width, bias)
        self.also = also

    def forward(self, x: torch.Tensor) -> Any:
        return self.also(self.head(x.tanh()))


def alone(logits: torch.Tensor) -> Any:
    return {"logits": logits, "length": 3}


@pytest.fixture(autouse=True)
def padded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The knob's rewrite, for small logits; what it changed is compiled by nothing but autograd."""
    monkeypatch.setattr(padded_logits, "MOST_COLUMNS", 1.0)
    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", lambda *_: by_autograd)
    REWRITES.append(padding(lambda elements: elements >= 1000))
    yield
    REWRITES.clear()
    torch._dynamo.reset()


def by_autograd(graph: Any, inputs: Any) -> Any:
    from torch._dynamo.backends.debugging import aot_eager

    return aot_eager(graph, inputs)


def run(model: nn.Module, inputs: torch.Tensor = INPUTS) -> Any:
    """What the model returns; the knob has it in hand."""
    with torch.autocast("cpu", torch.bfloat16):
        returned = model(inputs)
    if isinstance(returned, dict):
        confirm(returned["logits"])
    return returned


def again(model: nn.Module, inputs: torch.Tensor = INPUTS) -> Any:
    """The logits, once it is known that they are what the model returns."""
    run(model, inputs)
    model.zero_grad()
    return run(model, inputs)["logits"]


def pair(also: Callable[[torch.Tensor], Any] = alone, width: int = WIDTH, bias: bool = True) -> Any:
    plain, compiled = Model(also, width, bias), Model(also, width, bias)
    compile_in_place(compiled, "default", lambda: None)
    return plain, compiled


@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_whole_lines_and_the_training_is_the_same(bias: bool) -> None:
    plain, compiled = pair(bias=bias)
    right, ours = run(plain)["logits"], again(compiled)
    assert ours.shape == right.shape
    assert ours.stride() == (6 * 2 * LINE, 2 * LINE, 1)
    assert PADDED.length(ours) == 2 * LINE
    torch.testing.assert_close(ours, right)
    for logits in (right, ours):
        F.cross_entropy(logits.float().view(-1, WIDTH), torch.arange(24)).backward()
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert mine.grad.shape == theirs.grad.shape
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_gradient_that_ends_in_zeros_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied."""
    plain, compiled = pair(bias=False)
    ours = again(compiled)
    whole = torch.zeros(4, 6, 2 * LINE, dtype=torch.bfloat16)
    gradient = columns(whole, WIDTH)
    gradient.normal_()
    ENDS_IN_ZEROS.add(gradient, WIDTH, 2 * LINE)
    monkeypatch.setattr(F, "pad", None)
    ours.backward(gradient)
    run(plain)["logits"].backward(gradient.clone())
    torch.testing.assert_close(compiled.head.weight.grad, plain.head.weight.grad)


def test_the_gaps_of_other_tensors_are_not_taken_for_zeros() -> None:
    """The gradient of a concatenation is a part of longer rows, too: the rest is another's."""
    plain, compiled = pair(bias=False)
    for model in (plain, compiled):
        logits = again(model)
        other = torch.ones(4, 6, 2 * LINE - WIDTH, dtype=torch.bfloat16)
        torch.cat([logits, other], -1).square().sum().backward()
    torch.testing.assert_close(compiled.head.weight.grad, plain.head.weight.grad)


def test_until_it_is_known_that_the_model_returns_them_there_are_no_gaps() -> None:
    """What a graph returns may be read by the script's own code, after a break of the graph."""
    _, compiled = pair()
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            logits = compiled(INPUTS)["logits"]
            assert logits.is_contiguous()
            assert logits.view(-1).shape == (4 * 6 * WIDTH,)
        logits.float().sum().backward()
        confirm(copy_of(logits))
        assert not compiled(INPUTS)["logits"].is_contiguous()


PARTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "some rows": (lambda x: x[1:, 2], True),
    "the last place": (lambda x: x[:, -1], True),
    "in another order": (lambda x: x.transpose(0, 1), True),
    "one row": (lambda x: x[:1, :1], True),
    "a table": (lambda x: x.view(-1, WIDTH), True),
    "some columns": (lambda x: x[..., :-1], False),
    "columns first": (lambda x: x.transpose(1, 2), False),
    "one row many times": (lambda x: x[:1, 0].expand(7, WIDTH), False),
    "a copy": (lambda x: x.contiguous(), False),
}


@pytest.mark.parametrize("name", PARTS)
def test_what_is_made_of_padded_rows(name: str) -> None:
    take, padded = PARTS[name]
    part = take(again(pair()[1]))
    assert PADDED.length(part) == (2 * LINE if padded else None)
    copy = copy_of(part)
    assert torch.equal(copy, part)
    assert copy.untyped_storage().data_ptr() != part.untyped_storage().data_ptr()
    assert PADDED.length(copy) == PADDED.length(part)


LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a table": lambda x: F.cross_entropy(x.view(-1, WIDTH), torch.arange(24)),
    "the last place": lambda x: F.cross_entropy(x[:, -1], torch.arange(4)),
    "classes in the middle": lambda x: F.cross_entropy(x.transpose(1, 2), torch.ones(4, 6).long()),
    "places for classes": lambda x: F.cross_entropy(x, torch.ones(4, WIDTH).long()),
    "one row many times": lambda x: F.cross_entropy(x[:1, 0].expand(30, WIDTH), torch.arange(30)),
    "two of them": lambda x: (
        F.cross_entropy(x[0], torch.arange(6)) + x[1].float().logsumexp(1).sum()
    ),
    "flat": lambda x: x.view(-1).square().mean(),
    "on the device": lambda x: F.cross_entropy(
        x.view(-1, WIDTH), torch.arange(24, device=x.device)
    ),
}


class Quiet:
    """Hears what the knob says."""

    def applied(self, detail: str) -> None:
        """It takes effect."""

    def revoked(self, reason: str) -> None:
        """It does not, and the test fails."""
        raise AssertionError(reason)

    def has_trait(self, trait: str) -> None:
        """The script does nothing by itself."""


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("places", [6, 1])
def test_losses_of_padded_rows_are_those_of_plain_ones(
    name: str, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, and gradients of the weights; as the knob takes them, but nothing is compiled."""
    if places == 1 and name not in ("a table", "flat", "the last place"):
        return
    monkeypatch.setattr(
        fused_cross_entropy.FusedCrossEntropy,
        "_run",
        lambda self, function, *given: function(*given),
    )
    monkeypatch.setattr(fused_cross_entropy, "LEAST_ELEMENTS", 1000)
    inputs = torch.randn(24 // places, places, 16)
    if name == "the last place" and places == 1:
        loss_of = lambda x: F.cross_entropy(x[:, -1], torch.arange(24))  # noqa: E731
    else:
        loss_of = LOSSES[name]
    plain, compiled = pair(bias=False)
    losses: Any = fused_cross_entropy.FusedCrossEntropy(Quiet())  # type: ignore[arg-type]
    for _ in range(3):
        plain.zero_grad()
        compiled.zero_grad()
        right = loss_of(run(plain, inputs)["logits"].float())
        with torch.autocast("cpu", torch.bfloat16):
            half = compiled(inputs)["logits"]
        assert losses.fits(half)
        ours = loss_of(losses.make(half))
        torch.testing.assert_close(ours, right, rtol=1e-3, atol=1e-3)
        right.backward()
        ours.backward()
        gradient = plain.head.weight.grad
        torch.testing.assert_close(
            compiled.head.weight.grad, gradient, rtol=0.05, atol=0.02 * float(gradient.abs().max())
        )
    assert PADDED.length(half) == 2 * LINE


def test_copies_keep_their_rows_and_their_place_in_the_graph() -> None:
    logits = again(pair()[1])
    copy = copy_of(logits)
    assert copy.stride() == logits.stride()
    (gradient,) = torch.autograd.grad(copy.sum(), logits)
    assert torch.equal(gradient, torch.ones_like(logits))
    plain = torch.ones(3, requires_grad=True)
    assert copy_of(plain).grad_fn is not None


def test_a_script_may_change_what_it_got_in_place() -> None:
    plain, compiled = pair()
    for model in (plain, compiled):
        logits = again(model)
        logits.mul_(0.5)
        logits.float().sin().sum().backward()
    torch.testing.assert_close(compiled.head.weight.grad, plain.head.weight.grad)


@pytest.mark.parametrize(
    ("also", "width"),
    [
        (alone, 2 * LINE),
        (lambda x: x * 2, WIDTH),
        (lambda x: (x, x.sum()), WIDTH),
        (lambda x: x.float(), WIDTH),
        (lambda x: x[:1], WIDTH),
    ],
)
def test_other_results_are_left_alone(also: Callable[[torch.Tensor], Any], width: int) -> None:
    """Logits that are whole lines already, that the model goes on with, or are none."""
    plain, compiled = pair(also, width)
    right, ours = run(plain), run(compiled)
    torch.testing.assert_close(ours, right)
    first = next(iter(ours.values())) if isinstance(ours, dict) else ours[0]
    assert PADDED.length(first) is None
    assert UNCONFIRMED.of(first) is None


def test_small_logits_float32_and_evaluation_are_left_alone() -> None:
    _, compiled = pair()
    with torch.no_grad():
        assert again(compiled).is_contiguous()
    assert again(compiled, INPUTS[:1]).is_contiguous()
    assert compiled(INPUTS)["logits"].is_contiguous()


def test_batches_of_several_sizes_are_padded() -> None:
    plain, compiled = pair()
    for rows in (4, 3, 1, 4, 2, 5):
        inputs = torch.randn(rows, 6, 16)
        ours = again(compiled, inputs)
        torch.testing.assert_close(ours, run(plain, inputs)["logits"])
        ours.float().sum().backward()
        assert (PADDED.length(ours) is not None) == (rows > 1)
