"""When the knob `fused_loss` hands out uncast logits, when it stands aside, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from gpurun.knobs.applied import fused_cross_entropy
from gpurun.knobs.applied.compiling.compilations import Compilations
from gpurun.knobs.applied.uncast import half_of

REAL = torch.randn(8, 4, generator=torch.manual_seed(0))
TARGETS = torch.arange(8) % 4
APPLIED = ("applied", "cross entropy of bfloat16 logits")


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


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Any]]:
    """Nothing is compiled here: what the loss and its gradient are said to compile to."""
    made: dict[str, Callable[..., Any]] = {}
    monkeypatch.setattr(torch, "compile", lambda f: made.get(f.__name__, f))
    monkeypatch.setattr(Compilations, "install", lambda self: None)
    monkeypatch.setattr(Compilations, "run_alone", lambda self, function, *args: function(*args))
    monkeypatch.setattr(fused_cross_entropy, "LEAST_ELEMENTS", 16)
    return made


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def losses(told: Told, compiled: object) -> Any:
    found: Any = fused_cross_entropy.FusedCrossEntropy(told)  # type: ignore[arg-type]
    return found


def half(**changes: Any) -> torch.Tensor:
    return REAL.bfloat16().requires_grad_(changes.get("requires_grad", True))


def test_the_loss_of_what_is_handed_out_is_computed_of_the_half(losses: Any, told: Told) -> None:
    given = half()
    logits = losses.make(given)
    loss = F.cross_entropy(logits, TARGETS)
    loss.backward()
    assert half_of(logits) is not None
    assert loss.item() == pytest.approx(F.cross_entropy(given.float(), TARGETS).item())
    assert type(given.grad) is torch.Tensor
    assert set(told.words) == {APPLIED}


def test_only_large_outputs_of_training_are_handed_out(losses: Any) -> None:
    assert losses.fits(half())
    assert not losses.fits(half()[:2])
    assert not losses.fits(half().view(-1))
    assert not losses.fits(half(requires_grad=False))
    with torch.no_grad():
        assert not losses.fits(half())
    with FlopCounterMode(display=False):
        assert not losses.fits(half())

    def seen(x: torch.Tensor) -> torch.Tensor:
        assert not losses.fits(x.bfloat16())
        return x.sum()

    torch.func.grad(seen)(REAL)


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
    losses: Any, told: Told, named: dict[str, Any], weight: Any
) -> None:
    F.cross_entropy(losses.make(half()), TARGETS, weight, **named).backward()
    assert told.words == []


@pytest.mark.parametrize("shape", [(6, 5), (3, 5, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_loss_and_gradient_are_torchs(
    shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str, ignored: int
) -> None:
    """Of real numbers here: what is rounded to half precision is only the numbers' own type."""
    torch.manual_seed(0)
    logits = torch.randn(shape, dtype=torch.float64)
    logits[0, 3] = -torch.inf if not smoothing else 0.0
    target = torch.randint(0, 3, (shape[0], *shape[2:]))
    target[1] = 1
    weight = torch.rand(5) if weighted else None
    options = (weight, ignored, reduction, smoothing)

    def by_torch(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(
            logits.float(),
            target,
            weight,
            ignore_index=ignored,
            reduction=reduction,
            label_smoothing=smoothing,
        )

    right, gradient_of = torch.func.vjp(by_torch, logits)
    slope = torch.rand_like(right)
    value, scale = fused_cross_entropy.half_cross_entropy(logits, target, *options)
    torch.testing.assert_close(value, right, equal_nan=True)
    for extra in (0, 3) if len(shape) == 2 else (0,):
        gradient = fused_cross_entropy.half_cross_entropy_gradient(
            logits, scale, slope, target, *options, extra
        )
        torch.testing.assert_close(
            gradient[:, :5], gradient_of(slope)[0], atol=1e-6, rtol=1e-5, equal_nan=True
        )
        assert gradient.shape[1] == 5 + extra
        assert not gradient[:, 5:].any()


def test_where_no_target_counts_the_loss_is_what_torch_says(losses: Any) -> None:
    given = half()
    loss = F.cross_entropy(losses.make(given), torch.full((8,), -100))
    assert loss.isnan()
    loss.backward()
    assert given.grad is not None
    assert not given.grad.any()


@pytest.mark.parametrize(
    "target",
    [torch.full((8, 4), 0.25), TARGETS.to(torch.uint8), TARGETS[:1].expand(8)[None].T],
)
def test_targets_other_than_classes_are_torchs(losses: Any, told: Told, target: Any) -> None:
    logits = losses.make(half())
    try:
        right = F.cross_entropy(REAL.bfloat16().float(), target)
    except (RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            F.cross_entropy(logits, target)
    else:
        assert F.cross_entropy(logits, target).item() == pytest.approx(right.item())
    assert told.words == []


@pytest.mark.parametrize("name", ["half_cross_entropy", "half_cross_entropy_gradient"])
def test_a_compiler_that_is_wrong_is_found_out(
    losses: Any, told: Told, compiled: dict[str, Any], name: str
) -> None:
    right = getattr(fused_cross_entropy, name)
    wrong = {
        "half_cross_entropy": lambda *args: (right(*args)[0] * 1.1, right(*args)[1]),
        "half_cross_entropy_gradient": lambda *args: right(*args) * 1.1,
    }
    compiled[name] = wrong[name]
    given = half()
    F.cross_entropy(losses.make(given), TARGETS).backward()
    ((outcome, reason),) = told.words
    assert (outcome, "differ from what torch computes" in reason) == ("revoked", True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(given.float(), TARGETS), given)
    assert torch.equal(given.grad, gradient)
    assert not losses.fits(given)


def test_a_gradient_that_fails_later_is_computed_by_torch(
    losses: Any, told: Told, compiled: dict[str, Any]
) -> None:
    right, fails = fused_cross_entropy.half_cross_entropy_gradient, False

    def gradient(*args: Any) -> Any:
        if fails:
            raise RuntimeError("no kernel")
        return right(*args)

    compiled["half_cross_entropy_gradient"] = gradient
    first, second = half(), half()
    F.cross_entropy(losses.make(first), TARGETS).backward()
    loss = F.cross_entropy(losses.make(second), TARGETS)
    fails = True
    loss.backward()
    assert torch.equal(first.grad, second.grad)
    assert told.words[-1] == ("revoked", "it could not be computed: RuntimeError: no kernel")


def test_an_error_of_the_script_is_torchs_to_raise(losses: Any) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        F.cross_entropy(losses.make(half()), TARGETS[:3])


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (None, "the model returns nothing in half precision"),
        (half()[:2], "the model's output is small"),
        (half(), "the script takes no cross entropy of the model's output"),
    ],
)
def test_where_there_is_no_loss_for_it_it_stands_aside(
    losses: Any, told: Told, output: torch.Tensor | None, reason: str
) -> None:
    for step in (1, 2, 3, 4):
        if output is not None and losses.fits(output):
            losses.make(output).sum().backward()
        losses.step_done(step)
        assert (told.words == []) == (step < fused_cross_entropy.PATIENCE)
    assert told.words == [("revoked", reason)]


def test_a_script_that_compiles_is_left_alone(losses: Any, told: Told) -> None:
    told.traits.add("compile")
    losses.root_found(torch.nn.Linear(2, 2))
    assert told.words == [("revoked", "the script compiles by itself")]
    assert not losses.fits(half())


def test_models_get_plain_tensors_once_something_was_handed_out(losses: Any) -> None:
    given = ((REAL,), {})
    assert losses.inputs(given) is given
    logits = losses.make(half())
    (plain,), _ = losses.inputs(((logits,), {}))
    assert type(plain) is torch.Tensor
