"""Mean or sum: gradients of real losses, of a batch and of its halves, are judged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from gpurun.probing.mean_or_sum import judge_reduction
from gpurun.records.events import GradientEvent
from gpurun.records.spec import LossReduction

Loss = Callable[[torch.Tensor, torch.Tensor, torch.nn.Module], torch.Tensor]
MEAN, SUM = LossReduction.MEAN, LossReduction.SUM


def penalty(net: torch.nn.Module, weight: float) -> torch.Tensor:
    return weight * torch.stack([p.pow(2).sum() for p in net.parameters()]).sum()


def summed(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out, y, reduction="sum")


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, out: torch.Tensor) -> torch.Tensor:
        return out.sum()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.ones(gradient_rows[0], 5)


gradient_rows = [0]


def own(out: torch.Tensor, y: torch.Tensor, net: torch.nn.Module) -> torch.Tensor:
    gradient_rows[0] = len(out)
    return Own.apply(out.pow(2))  # type: ignore[no-any-return]


MEANS: dict[str, Loss] = {
    "cross entropy": lambda out, y, net: F.cross_entropy(out, y),
    "smoothed": lambda out, y, net: F.cross_entropy(out, y, label_smoothing=0.1),
    "a sum by its length": lambda out, y, net: summed(out, y) / len(y),
    "a sum by a factor": lambda out, y, net: summed(out, y) * (1 / len(y)),
    "with a penalty": lambda out, y, net: F.cross_entropy(out, y) + penalty(net, 0.3),
    "of each output": lambda out, y, net: out.pow(2).mean(0).sum(),
    "added up": lambda out, y, net: (
        sum(
            (F.cross_entropy(a[None], b[None]) for a, b in zip(out, y, strict=True)),
            torch.zeros(()),
        )
        / len(y)
    ),
}
SUMS: dict[str, Loss] = {
    "cross entropy": lambda out, y, net: summed(out, y),
    "by half the batch": lambda out, y, net: summed(out, y) / 16,
    "by a temperature": lambda out, y, net: summed(out, y) / torch.tensor(2.5),
    "einsum": lambda out, y, net: torch.einsum("ij,ij->", out, out),
    "of a function of one's own": own,
    "a mean times the samples": lambda out, y, net: F.cross_entropy(out, y) * len(y),
    "autoencoder": lambda out, y, net: summed(out, y) - 0.5 * (1 + out - out.exp()).sum(),
}
REFUSED: dict[str, Loss] = {
    "a mean beside a sum": lambda out, y, net: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(),
    "a small penalty beside a sum": lambda out, y, net: summed(out, y) + penalty(net, 1e-2),
    "a small mean beside a sum": lambda out, y, net: summed(out, y) + 0.01 * out.pow(2).mean(),
    "a penalty alone would count as a mean, a sum beside it not": lambda out, y, net: (
        summed(out, y) + penalty(net, 5.0)
    ),
    "the norm of all": lambda out, y, net: out.norm(),
}


def passes(loss: Loss, total: int) -> list[tuple[GradientEvent, ...]]:
    """Of a batch and of its halves, two passes."""
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 5)
    found: list[tuple[GradientEvent, ...]] = [(), (), ()]
    for number in range(2):
        x, y = torch.randn(total, 6), torch.randint(0, 5, (total,))
        for i, rows in enumerate((slice(None), slice(0, None, 2), slice(1, None, 2))):
            net.zero_grad()
            loss(net(x[rows]), y[rows], net).backward()
            sketches = {
                f"0.0.{k}": tuple(p.grad.reshape(-1).double().tolist())
                for k, p in enumerate(net.parameters())
                if p.grad is not None
            }
            event = GradientEvent(number, len(x[rows]), total, 1.0, 1.2e-7, sketches)
            found[i] = (*found[i], event)
    return found


@pytest.mark.parametrize("total", [32, 33])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_samples_is_known(name: str, total: int) -> None:
    found = judge_reduction(*passes(MEANS[name], total))
    assert (found.reduction, found.exact) == (MEAN, True), found
    assert found.residual < 1e-5


@pytest.mark.parametrize("total", [32, 33])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_samples_is_known_whatever_divides_it(name: str, total: int) -> None:
    found = judge_reduction(*passes(SUMS[name], total))
    assert (found.reduction, found.exact) == (SUM, True), found


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_neither_is_refused(name: str) -> None:
    found = judge_reduction(*passes(REFUSED[name], 32))
    assert found.reduction is None
    assert found.what
    assert "--loss-reduction" in found.todo


def test_a_mean_of_what_batches_have_more_or_less_of_is_trained_with_its_figure() -> None:
    weights = torch.tensor([0.5, 1.0, 1.5, 1.0, 0.8])
    found = judge_reduction(*passes(lambda out, y, net: F.cross_entropy(out, y, weights), 256))
    assert found.reduction is MEAN
    assert not found.exact
    assert 1e-3 < found.residual < 0.2
    assert f"{found.residual:.2%}" in found.what


def test_a_loss_that_depends_on_other_samples_is_refused_with_its_own_cure() -> None:
    """As with a queue of earlier samples: on average a mean, but each half goes its own way."""
    whole, *halves = passes(MEANS["cross entropy"], 32)

    def turned(event: GradientEvent) -> GradientEvent:
        torch.manual_seed(1)
        sketches = {}
        for name, values in event.sketches.items():
            sketch = torch.tensor(values, dtype=torch.double)
            aside = torch.randn_like(sketch)
            aside -= sketch * (aside @ sketch) / (sketch @ sketch)
            sketches[name] = tuple((sketch + aside * sketch.norm() / aside.norm() / 2).tolist())
        return GradientEvent(event.number, event.own, event.total, 1.0, 1.2e-7, sketches)

    found = judge_reduction(whole, *([turned(e) for e in half] for half in halves))
    assert found.reduction is None
    assert "depends on other samples" in found.what
    assert "does by hand" in found.todo


def test_a_small_sum_beside_a_mean_is_told() -> None:
    """As a mean it would count half on two ranks, in silence."""
    found = judge_reduction(
        *passes(lambda out, y, net: F.cross_entropy(out, y) + 1e-5 * out.pow(2).sum(), 32)
    )
    assert not found.exact


def test_passes_that_disagree_are_refused() -> None:
    means, sums = passes(MEANS["cross entropy"], 32), passes(SUMS["cross entropy"], 32)
    mixed = [(a[0], b[1]) for a, b in zip(means, sums, strict=True)]
    found = judge_reduction(*mixed)
    assert found.reduction is None
    assert "reduce in different ways" in found.what


def test_a_parameter_of_small_gradients_counts_too() -> None:
    """Of a head that learns slowly the loss is a sum, of all else a mean."""
    whole, first, second = passes(MEANS["cross entropy"], 32)

    def with_head(event: GradientEvent, value: float) -> GradientEvent:
        sketches = {**event.sketches, "0.0.9": (value,)}
        return GradientEvent(event.number, event.own, event.total, 1.0, 1.2e-7, sketches)

    found = judge_reduction(
        [with_head(e, 2e-4) for e in whole],
        [with_head(e, 1e-4) for e in first],
        [with_head(e, 1e-4) for e in second],
    )
    assert not found.exact


def test_nothing_to_compare_is_refused() -> None:
    whole, first, second = passes(MEANS["cross entropy"], 32)
    moved = [GradientEvent(e.number, e.own, e.total, 2.0, e.precision, e.sketches) for e in first]
    assert judge_reduction(whole, moved, second).reduction is None
    assert judge_reduction((), (), ()).reduction is None
