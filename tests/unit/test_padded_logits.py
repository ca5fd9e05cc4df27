"""Logits in rows of whole cache lines: the same numbers and gradients, in another layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn

from gpurun.knobs import padded_logits
from gpurun.knobs.graph_rewrites import REWRITES, compile_in_place
from gpurun.knobs.padded_logits import ENDS_IN_ZEROS, LINE, PADDED, columns, copy_of, padding

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
    with torch.autocast("cpu", torch.bfloat16):
        return model(inputs)


def pair(also: Callable[[torch.Tensor], Any] = alone, width: int = WIDTH, bias: bool = True) -> Any:
    plain, compiled = Model(also, width, bias), Model(also, width, bias)
    compile_in_place(compiled, "default")
    return plain, compiled


@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_whole_lines_and_the_training_is_the_same(bias: bool) -> None:
    plain, compiled = pair(bias=bias)
    right, ours = run(plain)["logits"], run(compiled)["logits"]
    assert ours.shape == right.shape
    assert ours.stride() == (6 * 2 * LINE, 2 * LINE, 1)
    assert PADDED.have(ours)
    torch.testing.assert_close(ours, right)
    for logits in (right, ours):
        F.cross_entropy(logits.float().view(-1, WIDTH), torch.arange(24)).backward()
    for mine, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert mine.grad.shape == theirs.grad.shape
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_gradient_that_ends_in_zeros_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied."""
    plain, compiled = pair(bias=False)
    ours = run(compiled)["logits"]
    whole = torch.zeros(4, 6, 2 * LINE, dtype=torch.bfloat16)
    gradient = columns(whole, WIDTH)
    gradient.normal_()
    ENDS_IN_ZEROS.add(gradient, WIDTH)
    monkeypatch.setattr(F, "pad", None)
    ours.backward(gradient)
    run(plain)["logits"].backward(gradient.clone())
    torch.testing.assert_close(compiled.head.weight.grad, plain.head.weight.grad)


def test_the_gaps_of_other_tensors_are_not_taken_for_zeros() -> None:
    """The gradient of a concatenation is a part of longer rows, too: the rest is another's."""
    plain, compiled = pair(bias=False)
    for model in (plain, compiled):
        logits = run(model)["logits"]
        other = torch.ones(4, 6, 2 * LINE - WIDTH, dtype=torch.bfloat16)
        torch.cat([logits, other], -1).square().sum().backward()
    torch.testing.assert_close(compiled.head.weight.grad, plain.head.weight.grad)


def test_a_part_of_the_columns_is_no_padded_row() -> None:
    logits = run(pair()[1])["logits"]
    assert PADDED.have(logits[1:, 2])
    assert not PADDED.have(logits[..., :-1])
    assert not PADDED.have(logits.transpose(1, 2))
    assert not PADDED.have(logits.contiguous())


def test_copies_keep_their_rows_and_their_place_in_the_graph() -> None:
    _, compiled = pair()
    logits = run(compiled)["logits"]
    copy = copy_of(logits)
    assert copy.stride() == logits.stride()
    assert copy.data_ptr() != logits.data_ptr()
    assert PADDED.have(copy)
    assert torch.equal(copy, logits)
    (gradient,) = torch.autograd.grad(copy.sum(), logits)
    assert torch.equal(gradient, torch.ones_like(logits))
    plain = torch.ones(3, requires_grad=True)
    assert copy_of(plain).grad_fn is not None


def test_a_script_may_change_what_it_got_in_place() -> None:
    plain, compiled = pair()
    for model in (plain, compiled):
        logits = run(model)["logits"]
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
    assert not PADDED.have(first)


def test_small_logits_float32_and_evaluation_are_left_alone() -> None:
    _, compiled = pair()
    with torch.no_grad():
        assert run(compiled)["logits"].is_contiguous()
    assert run(compiled, INPUTS[:1])["logits"].is_contiguous()
    assert compiled(INPUTS)["logits"].is_contiguous()


def test_batches_of_several_sizes_are_padded() -> None:
    plain, compiled = pair()
    for rows in (4, 3, 4, 2, 5):
        inputs = torch.randn(rows, 6, 16)
        ours = run(compiled, inputs)["logits"]
        torch.testing.assert_close(ours, run(plain, inputs)["logits"])
        ours.float().sum().backward()
        assert PADDED.have(ours) == (rows > 1)
