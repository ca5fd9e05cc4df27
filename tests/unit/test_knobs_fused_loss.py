"""When the knob `fused_loss` computes a loss, when it stands aside, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gpurun.knobs.applied import fused_cross_entropy
from gpurun.knobs.applied.compiling.compilations import Compilations

REAL = torch.randn(8, 4, generator=torch.manual_seed(0))
TARGETS = torch.arange(8) % 4
APPLIED = ("applied", "compiled cross entropy")
PLAIN = F.cross_entropy


class Told:
    """What the knob says, in place of `Hooks`; `traits`: what the script does by itself."""

    def __init__(self) -> None:
        self.words: list[tuple[str, str]] = []
        self.traits: set[str] = set()

    def applied(self, detail: str) -> None:
        self.words.append(("applied", detail))

    def revoked(self, reason: str) -> None:
        self.words.append(("revoked", reason))

    def has_trait(self, trait: str) -> str | None:
        return trait if trait in self.traits else None


class Compiler:
    """Nothing is compiled here: what the loss is said to compile to, and the sizes it was given."""

    def __init__(self) -> None:
        self.made: Callable[..., Tensor] | None = None
        self.sizes: list[int] = []

    def compile(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(logits: Tensor, *others: Any) -> Tensor:
            self.sizes.append(len(logits))
            return (self.made or function)(logits, *others)

        return call


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(torch, "compile", found.compile)
    monkeypatch.setattr(Compilations, "install", lambda self: None)
    monkeypatch.setattr(Compilations, "run_alone", lambda self, function, *args: function(*args))
    monkeypatch.setattr(fused_cross_entropy, "LEAST_ELEMENTS", 16)
    monkeypatch.setattr(fused_cross_entropy, "ROWS", 3)
    return found


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def losses(told: Told, compiler: Compiler) -> Iterator[Any]:
    found: Any = fused_cross_entropy.FusedCrossEntropy(told)  # type: ignore[arg-type]
    found.install()
    yield found
    F.cross_entropy = PLAIN


def logits(rows: int = 8) -> Tensor:
    return REAL[:rows].clone().requires_grad_()


@pytest.mark.usefixtures("losses")
def test_the_loss_of_large_logits_is_compiled_after_a_proof(told: Told, compiler: Compiler) -> None:
    for _ in range(2):
        given, right = logits(), logits()
        loss = torch.nn.CrossEntropyLoss()(given.view(2, 4, 4).transpose(1, 2), TARGETS.view(2, 4))
        loss.backward()
        PLAIN(right, TARGETS).backward()
        assert loss.item() == pytest.approx(PLAIN(right, TARGETS).item())
        torch.testing.assert_close(given.grad, right.grad)
    assert told.words == [APPLIED]
    assert compiler.sizes == [2, 2, 2], "the proof, and both losses"


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_loss_and_gradient_are_torchs(
    told: Told, weighted: bool, smoothing: float, reduction: str, ignored: int
) -> None:
    named: dict[str, Any] = {
        "weight": torch.tensor([0.5, 1.0, 2.0, 0.1]) if weighted else None,
        "ignore_index": ignored,
        "reduction": reduction,
        "label_smoothing": smoothing,
    }
    given, right = logits(), logits()
    losses = F.cross_entropy(given, TARGETS, **named), PLAIN(right, TARGETS, **named)
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward(torch.rand(loss.shape, generator=torch.manual_seed(1)))
    torch.testing.assert_close(given.grad, right.grad)
    assert told.words == [APPLIED]


@pytest.mark.usefixtures("losses")
def test_only_plain_training_on_large_logits_is_compiled(told: Told, compiler: Compiler) -> None:
    F.cross_entropy(logits(3), TARGETS[:3])
    F.cross_entropy(REAL, TARGETS)
    F.cross_entropy(logits().double(), TARGETS)
    with torch.no_grad():
        F.cross_entropy(logits(), TARGETS)
    with FlopCounterMode(display=False):
        F.cross_entropy(logits(), TARGETS)
    torch.func.grad(lambda x: F.cross_entropy(x, TARGETS))(REAL)
    assert (told.words, compiler.sizes) == ([], [])


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize(
    ("named", "weight"),
    [
        ({"size_average": True}, None),
        ({"reduce": True}, None),
        ({}, torch.nn.Parameter(torch.ones(4), requires_grad=False)),
    ],
)
@pytest.mark.filterwarnings("ignore:size_average")
def test_calls_that_are_not_understood_are_torchs(
    told: Told, named: dict[str, Any], weight: Any
) -> None:
    F.cross_entropy(logits(), TARGETS, weight, **named).backward()
    assert told.words == []


@pytest.mark.usefixtures("losses")
def test_where_no_target_counts_the_loss_is_what_torch_says() -> None:
    given = logits()
    loss = F.cross_entropy(given, torch.full((8,), -100))
    assert loss.isnan()
    loss.backward()
    assert given.grad is not None
    assert not given.grad.any()


@pytest.mark.usefixtures("losses")
@pytest.mark.parametrize(
    "target",
    [torch.full((8, 4), 0.25), TARGETS.to(torch.uint8), TARGETS[:1].expand(8)[None].T],
)
def test_targets_other_than_classes_are_torchs(told: Told, target: Any) -> None:
    try:
        right = PLAIN(REAL, target)
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            F.cross_entropy(logits(), target)
    else:
        assert F.cross_entropy(logits(), target).item() == pytest.approx(right.item())
    assert told.words == []


@pytest.mark.parametrize("wrong", ["loss", "gradient"])
def test_a_compiler_that_is_wrong_is_found_out(
    losses: Any, told: Told, compiler: Compiler, wrong: str
) -> None:
    def made(given: Tensor, *others: Any) -> Tensor:
        right = fused_cross_entropy.loss_of_logits(given, *others)
        return right * 1.1 if wrong == "loss" else right + 0.1 * (right - right.detach())

    compiler.made = made
    given, right = logits(), logits()
    F.cross_entropy(given, TARGETS).backward()
    ((outcome, reason),) = told.words
    assert (outcome, "differ from what torch computes" in reason) == ("revoked", True)
    PLAIN(right, TARGETS).backward()
    assert torch.equal(given.grad, right.grad)  # type: ignore[arg-type]


@pytest.mark.usefixtures("losses")
def test_a_compiler_that_fails_leaves_the_loss_to_torch(told: Told, compiler: Compiler) -> None:
    def fails(*args: Any) -> Tensor:
        raise RuntimeError("no kernel")

    compiler.made = fails
    assert F.cross_entropy(logits(), TARGETS).item() == PLAIN(REAL, TARGETS).item()
    assert told.words == [("revoked", "it could not be computed: RuntimeError: no kernel")]


@pytest.mark.usefixtures("losses")
def test_an_error_of_the_script_is_torchs_and_shows_no_line_of_ours() -> None:
    with pytest.raises(ValueError, match="batch_size") as raised:
        F.cross_entropy(logits(), TARGETS[:3])
    files = [entry.path for entry in raised.traceback]
    assert not any("fused_cross_entropy" in str(file) for file in files)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (3, "the model's output is small"),
        (0, "the script takes no cross entropy of the model's output"),
    ],
)
def test_where_there_is_no_loss_for_it_it_stands_aside(
    losses: Any, told: Told, rows: int, reason: str
) -> None:
    for step in (1, 2, 3, 4):
        if rows:
            F.cross_entropy(logits(rows), TARGETS[:rows]).backward()
        losses.step_done(step)
        assert (told.words == []) == (step < fused_cross_entropy.PATIENCE)
    assert told.words == [("revoked", reason)]


@pytest.mark.usefixtures("losses")
def test_a_second_pass_and_one_that_is_differentiated_are_torchs(compiler: Compiler) -> None:
    found = []
    for loss_of in (F.cross_entropy, PLAIN):
        given = logits()
        loss = loss_of(given, TARGETS)
        (slope,) = torch.autograd.grad(loss, given, create_graph=True)
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        slope.pow(2).sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(*found)
    assert compiler.sizes == [3, 8], "the proof and the loss"


def test_a_second_pass_through_a_freed_graph_fails_as_it_should(losses: Any, told: Told) -> None:
    loss = F.cross_entropy(logits(), TARGETS)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert told.words == [APPLIED]


def test_a_script_that_compiles_is_left_alone(losses: Any, told: Told, compiler: Compiler) -> None:
    told.traits.add("compile")
    losses.root_found(torch.nn.Linear(2, 2))
    assert told.words == [("revoked", "the script compiles by itself")]
    F.cross_entropy(logits(), TARGETS)
    assert compiler.sizes == []
