"""Do ranks train as one process does? Trainings of real losses, of one process and of ranks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

from gpurun.ddp import verified_reduction
from gpurun.ddp.rank_trials import RankTrials
from gpurun.ddp.rank_verdict import Kind, TrainedStep, TrainedSteps, judge
from gpurun.errors import Refused, ScriptFailed
from gpurun.records.events import TraitEvent
from gpurun.records.messages.traits import STARTS_PROCESSES, STARTS_PROGRAMS
from gpurun.records.spec import LossReduction

Loss = Callable[[torch.Tensor, torch.Tensor, torch.nn.Module], torch.Tensor]


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
step_now = [0]


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
}
SUMS: dict[str, Loss] = {
    "cross entropy": lambda out, y, net: summed(out, y) / 50,
    "by half the batch": lambda out, y, net: summed(out, y) / 16,
    "einsum": lambda out, y, net: torch.einsum("ij,ij->", out, out) / 50,
    "of a function of one's own": lambda out, y, net: own(out, y, net) / 50,
    "a mean times the samples": lambda out, y, net: F.cross_entropy(out, y) * len(y) / 50,
}
REFUSED: dict[str, Loss] = {
    "a mean beside a sum": lambda out, y, net: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(),
    "a small penalty beside a sum": lambda out, y, net: summed(out, y) + penalty(net, 1e-2),
    "the norm of all": lambda out, y, net: out.norm(),
}


def from_the_start(net: torch.nn.Module) -> torch.Tensor:
    """The squared distance of the weights from the first ones: zero at the first step."""
    first = torch.nn.utils.parameters_to_vector(fresh().parameters()).detach()
    return (torch.nn.utils.parameters_to_vector(net.parameters()) - first).pow(2).sum()


BEGIN_LATER: dict[str, tuple[Loss, int]] = {
    "a distance from the first weights beside a sum": (
        lambda out, y, net: summed(out, y) / 50 + 0.01 * from_the_start(net),
        2,
    ),
    "a mean that warms up beside a sum": (
        lambda out, y, net: summed(out, y) / 50 + step_now[0] / 1000 * out.pow(2).mean(),
        2,
    ),
    "a sum that begins late beside a mean": (
        lambda out, y, net: F.cross_entropy(out, y) + (step_now[0] > 3) * 1e-4 * out.pow(2).sum(),
        5,
    ),
}
"""Losses with a term that is zero at the first step; the step that differs first."""


def fresh() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5))


def trained(loss: Loss, total: int, ranks: int, factor: float = 1.0) -> TrainedSteps:
    """Six steps of so many ranks that average their gradients, as hidden DDP does.

    `factor`: on the loss of each rank: the number of ranks where the loss is known to be a sum.
    """
    net = fresh()
    batches = [(torch.randn(total, 6), torch.randint(0, 5, (total,))) for _ in range(6)]
    found = []
    for step, (x, y) in enumerate(batches):
        step_now[0] = step
        gradients = []
        for rank in range(ranks):
            own_x, own_y = x[rank::ranks], y[rank::ranks]
            part = copy.deepcopy(net)
            value = loss(part(own_x), own_y, part)
            weight = factor if factor != 1 else ranks * len(own_x) / total
            (value * weight).backward()
            gradients.append([p.grad for p in part.parameters()])
        mean = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), mean, strict=True):
                parameter -= 0.05 * gradient
        names = [name for name, _ in net.named_parameters()]
        norms = {n: g.norm().item() for n, g in zip(names, mean, strict=True)}
        found.append(
            TrainedStep(
                {n: tuple(g.flatten().tolist()) for n, g in zip(names, mean, strict=True)},
                norms,
                {n: 0.05 * x for n, x in norms.items()},
            )
        )
    return TrainedSteps(tuple(found), frozenset(range(total)))


@pytest.mark.parametrize("total", [32, 33])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_samples_is_equal(name: str, ranks: int, total: int) -> None:
    one, many = (trained(MEANS[name], total, n) for n in (1, ranks))
    found = judge(one, many, ranks)
    assert (found.kind, found.said) == (Kind.EQUAL, "")
    assert found.apart < 1e-5


@pytest.mark.parametrize("total", [32, 33])
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_samples_is_equal_once_it_is_multiplied(
    name: str, ranks: int, total: int
) -> None:
    one, many = (trained(SUMS[name], total, n) for n in (1, ranks))
    assert judge(one, many, ranks).kind is Kind.SUM
    again = trained(SUMS[name], total, ranks, factor=ranks)
    assert judge(one, again, ranks).kind is Kind.EQUAL


@pytest.mark.parametrize("name", BEGIN_LATER)
def test_a_term_that_is_zero_at_the_first_step_is_seen_where_it_begins(name: str) -> None:
    loss, step = BEGIN_LATER[name]
    one, many = (trained(loss, 32, n) for n in (1, 2))
    found = judge(one, many, 2, rounded=one)
    if found.kind is Kind.SUM:
        found = judge(one, trained(loss, 32, 2, factor=2), 2, rounded=one)
    assert found.kind is not Kind.EQUAL
    assert found.said.startswith(f"in step {step} ")


def test_a_distance_from_the_first_weights_beside_a_mean_is_equal() -> None:
    one, many = (
        trained(lambda out, y, net: F.cross_entropy(out, y) + from_the_start(net), 32, n)
        for n in (1, 2)
    )
    assert judge(one, many, 2).kind is Kind.EQUAL


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_neither_is_refused_or_no_equal_sum(name: str) -> None:
    one, many = (trained(REFUSED[name], 32, n) for n in (1, 2))
    found = judge(one, many, 2)
    if found.kind is Kind.SUM:
        found = judge(one, trained(REFUSED[name], 32, 2, factor=2), 2)
        assert found.kind is not Kind.EQUAL
    else:
        assert found.kind is Kind.REFUSED
    assert found.said.startswith("in step 1 the gradient of ")


def test_a_mean_of_what_batches_have_more_or_less_of_is_trained_with_its_figure() -> None:
    weights = torch.tensor([0.5, 1.0, 1.5, 1.0, 0.8])
    one, many = (
        trained(lambda out, y, net: F.cross_entropy(out, y, weights), 256, n) for n in (1, 2)
    )
    found = judge(one, many, 2)
    assert found.kind is Kind.AS_DDP
    assert 1e-3 < found.apart < 0.2
    assert "of that of one process" in found.said


def test_a_small_sum_beside_a_mean_is_told() -> None:
    """As a mean it would count half on two ranks, in silence."""
    one, many = (
        trained(lambda out, y, net: F.cross_entropy(out, y) + 1e-4 * out.pow(2).sum(), 32, n)
        for n in (1, 2)
    )
    assert judge(one, many, 2).kind is not Kind.EQUAL


def turned(steps: TrainedSteps, number: int, by: float) -> TrainedSteps:
    """All gradients of a step turned aside, as where a sample's loss depends on other samples."""
    step = steps.steps[number]
    torch.manual_seed(1)
    gradients = {}
    for name, values in step.gradients.items():
        own = torch.tensor(values, dtype=torch.double)
        aside = torch.randn_like(own)
        aside -= own * (aside @ own) / (own @ own)
        gradients[name] = tuple((own + by * aside * own.norm() / aside.norm()).tolist())
    changed = [*steps.steps]
    changed[number] = replace(step, gradients=gradients)
    return replace(steps, steps=tuple(changed))


@pytest.mark.parametrize("step", [0, 1, 5])
def test_gradients_that_point_elsewhere_are_refused_with_the_step(step: int) -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, turned(one, step, 0.5), 2)
    assert found.kind is Kind.REFUSED
    assert found.said.startswith(f"in step {step + 1} ")


def scaled(steps: TrainedSteps, factors: list[float]) -> TrainedSteps:
    """The gradients of each step times a factor of its own."""
    changed = []
    for step, factor in zip(steps.steps, factors, strict=True):
        gradients = {n: tuple(factor * x for x in each) for n, each in step.gradients.items()}
        norms = {n: factor * x for n, x in step.norms.items() if x is not None}
        changed.append(replace(step, gradients=gradients, norms=norms))
    return replace(steps, steps=tuple(changed))


def test_weights_that_cancel_over_the_steps_are_those_of_hand_written_ddp() -> None:
    """Shares have more tokens than others in one step, and fewer in another."""
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, scaled(one, [1.05, 0.85, 1.15, 0.9, 1.1, 0.95]), 2)
    assert found.kind is Kind.AS_DDP
    assert found.said.startswith("in step 1 ")
    assert judge(one, scaled(one, [1.05, 1.15, 1.15, 1.1, 1.1, 1.15]), 2).kind is Kind.REFUSED


def test_later_steps_may_differ_by_what_a_launch_differs_that_only_rounds() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, turned(one, 2, 1e-3), 2)
    assert (found.kind, found.later) == (Kind.AS_DDP, True)
    assert judge(one, turned(one, 2, 1e-3), 2, turned(one, 1, 5e-4)).kind is Kind.EQUAL
    assert judge(one, turned(one, 2, 1e-3), 2, turned(one, 1, 2e-4)).kind is Kind.AS_DDP


def test_first_gradients_may_not_and_a_launch_that_does_more_than_round_tells_nothing() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, turned(one, 0, 1e-3), 2, turned(one, 1, 0.1))
    assert (found.kind, found.later) == (Kind.AS_DDP, False)
    assert judge(one, turned(one, 2, 1e-3), 2, turned(one, 0, 0.1)).kind is Kind.AS_DDP


def test_a_higher_floor_never_refuses_what_a_lower_one_lets_pass() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    near, far = turned(one, 3, 9e-3), turned(one, 3, 2e-2)
    found = [judge(one, near, 2, turned(one, 1, floor)) for floor in (5e-3, 0.99e-2, 1.01e-2, 0.1)]
    assert [each.kind for each in found] == [Kind.EQUAL] * 4
    assert [each.later for each in found] == [False, False, True, True]
    assert found[3].said.startswith("in step 4 ")
    assert judge(one, far, 2, turned(one, 1, 0.99e-2)).kind is Kind.AS_DDP
    assert judge(one, far, 2, turned(one, 1, 1.01e-2)).kind is Kind.EQUAL
    assert judge(one, turned(one, 3, 0.1), 2, turned(one, 1, 1.01e-2)).later is False


def test_a_high_floor_says_nothing_of_the_first_step() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    first = replace(one.steps[0], updates={n: 1.2 * x for n, x in one.steps[0].updates.items()})
    found = judge(one, replace(one, steps=(first, *one.steps[1:])), 2, turned(one, 1, 0.3))
    assert (found.kind is Kind.EQUAL, found.later) == (False, False)


def test_a_launch_that_rounds_nothing_leaves_later_steps_untold() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, turned(one, 2, 1e-3), 2, one)
    assert found.later
    assert found.most == pytest.approx(1e-3, rel=0.1)
    rounds = judge(one, turned(one, 2, 1e-3), 2, turned(one, 1, 1e-6))
    assert (rounds.kind, rounds.later) == (Kind.AS_DDP, False)


def test_a_fault_that_begins_late_and_stays_is_refused() -> None:
    """Averaged over all steps, its slope is 0.92."""
    one = trained(MEANS["cross entropy"], 32, 1)
    assert judge(one, scaled(one, [1, 1, 1, 1, 0.75, 0.75]), 2).kind is Kind.REFUSED
    assert judge(one, scaled(one, [1, 1, 1, 1.2, 0.85, 1.15]), 2).kind is Kind.AS_DDP


def verified(
    monkeypatch: pytest.MonkeyPatch, one: TrainedSteps, **launches: TrainedSteps
) -> tuple[LossReduction, Any] | None:
    """What is made of launches: `mean` and `sum` of ranks, `rounded` of one process."""
    monkeypatch.setattr(verified_reduction, "trained_steps", lambda logs, ranks: logs[0].found)

    def outcome(found: TrainedSteps) -> SimpleNamespace:
        log = SimpleNamespace(steps={0: [1]}, traits=[], found=found)
        return SimpleNamespace(logs=[log], exit_code=0, failure=None)

    trials = SimpleNamespace(
        one=lambda shares=0: outcome(launches["rounded"] if shares else one),
        many=lambda reduction: outcome(launches[reduction.value]),
    )
    return verified_reduction._Verification(cast("RankTrials", trials), 2).run()


def test_a_sum_trains_where_later_steps_hardly_differ_and_no_floor_explains_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = trained(SUMS["cross entropy"], 32, 1)
    half = scaled(one, [0.5] * 6)
    near, far = turned(one, 3, 5e-3), turned(one, 3, 3e-2)
    found = verified(monkeypatch, one, mean=half, sum=near, rounded=one)
    assert found is not None
    assert found[0] is LossReduction.SUM
    verified_reduction._tell(cast("Any", SimpleNamespace(quiet=False)), *found, 1.0)
    said = capsys.readouterr().err
    assert "later steps were not comparable" in said
    assert "in step 4 the gradient of " in said
    assert "not as one process" not in said
    with pytest.raises(Refused, match="later steps were not comparable") as caught:
        verified(monkeypatch, one, mean=half, sum=far, rounded=one)
    assert "--loss-reduction sum" in caught.value.todo
    with pytest.raises(Refused, match="a penalty or a mean"):
        verified(monkeypatch, one, mean=half, sum=near, rounded=turned(one, 1, 1e-6))


def test_a_mean_whose_later_steps_have_no_floor_is_refused_as_not_comparable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    with pytest.raises(Refused, match="later steps were not comparable") as caught:
        verified(monkeypatch, one, mean=turned(one, 3, 0.9), rounded=one)
    assert "--loss-reduction mean" in caught.value.todo


@pytest.mark.parametrize(
    ("started", "named"),
    [
        ([(STARTS_PROCESSES, "a:1"), (STARTS_PROGRAMS, "b:9")], " (a:1):"),
        ([(STARTS_PROGRAMS, "b:9")], " (b:9):"),
        ([(STARTS_PROCESSES, f"a:{n}") for n in range(1, 6)], " (a:3, a:4, a:5):"),
    ],
)
def test_a_refusal_names_the_lines_that_start_processes(
    started: list[tuple[str, str]], named: str
) -> None:
    traits = [TraitEvent(trait=trait, detail=line) for trait, line in started]
    log = SimpleNamespace(steps={0: [1]}, traits=traits)
    outcome = cast("Any", SimpleNamespace(logs=[log, log]))
    with pytest.raises(Refused) as caught:
        verified_reduction._Verification(cast("RankTrials", None), 2)._one(outcome)
    assert f"processes of its own{named}" in caught.value.what


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        ("Traceback (most recent call last):\n  ...\nKeyError: 'LOCAL_WORLD_SIZE'", False),
        ("Traceback (most recent call last):\n  ...\nValueError: no FRANK_RANKS here", True),
        ("WORLD_SIZE is 1\nno data", True),
    ],
)
def test_a_script_that_fails_for_want_of_torchruns_variables_is_distributed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str, alone: bool
) -> None:
    """Any other fails by itself, and shows its error."""
    printed = f"RANK 1 of the season\n{error}\n"
    (tmp_path / "output.log").write_text(printed)
    log = SimpleNamespace(steps={}, traits=[])
    outcome = SimpleNamespace(logs=[log], exit_code=1, failure=None, run_dir=tmp_path)
    trials = cast("RankTrials", SimpleNamespace(one=lambda: outcome))
    if alone:
        with pytest.raises(ScriptFailed):
            verified_reduction._Verification(trials, 2).run()
        assert capsys.readouterr().err == printed
    else:
        assert verified_reduction._Verification(trials, 2).run() is None


def test_a_learning_rate_that_follows_the_share_is_told() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    steps = [*one.steps]
    steps[1] = replace(steps[1], updates={n: 1.03 * x for n, x in steps[1].updates.items()})
    found = judge(one, replace(one, steps=tuple(steps)), 2)
    assert found.kind is Kind.AS_DDP
    assert "in step 2 the size of an update differs by 3.00%" in found.said


def test_ranks_that_read_other_samples_are_refused() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    found = judge(one, replace(one, samples=frozenset({1, 2})), 2)
    assert found.kind is Kind.REFUSED
    assert "other samples" in found.said


def test_a_parameter_without_a_gradient_on_ranks_is_refused() -> None:
    one = trained(MEANS["cross entropy"], 32, 1)
    steps = [replace(s, norms={**s.norms, "0.weight": None}) for s in one.steps]
    assert judge(one, replace(one, steps=tuple(steps)), 2).kind is Kind.REFUSED


def test_nothing_to_compare_is_refused() -> None:
    none = TrainedSteps((), frozenset())
    found = judge(none, none, 2)
    assert (found.kind, math.isinf(found.apart)) == (Kind.REFUSED, True)
