"""The parts of hidden data parallelism that need no rank: shares, reductions, draws."""

from __future__ import annotations

import pickle
import random
import weakref
import zlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gpurun.runtime.parallel.provenance import is_output, mark
from gpurun.runtime.parallel.reduction import Reduction, terms_of

from gpurun.runtime.parallel.draws import Draws
from gpurun.runtime.parallel.place import show_one_device
from gpurun.runtime.parallel.shares import Part, Shared, ordered, part_of, read_share

OWN, TOTAL = 16, 32


@pytest.mark.parametrize("total", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("usual", [None, 32])
def test_shares_make_up_the_batch_and_their_weights_its_mean(
    total: int, size: int, usual: int | None
) -> None:
    batch = list(range(total))
    shares = [part_of(batch, rank, size, usual) for rank in range(size)]
    assert {i for own, _ in shares for i in own} == set(batch)
    means = [sum(own) / len(own) * part.weight(size) for own, part in shares]
    assert sum(means) / size == pytest.approx(sum(batch) / total)
    assert all(own for own, _ in shares)  # nobody may sit out a step


def test_what_is_left_at_the_end_is_no_single_sample_for_any_rank() -> None:
    """BatchNorm refuses one; a loader whose batches are as many as ranks has chosen that."""
    assert part_of([4, 5], rank=2, size=3) == ([4, 5], Part(2, 2, repeated=True))
    assert part_of([4, 5, 6], rank=1, size=2, usual=8) == ([4, 5, 6], Part(3, 3, repeated=True))
    assert part_of([4, 5], rank=1, size=2, usual=2) == ([5], Part(1, 2))
    assert part_of([4, 5, 6, 7], rank=1, size=2, usual=8) == ([5, 7], Part(2, 4))


def test_the_order_of_a_batch_is_a_number_that_all_ranks_have() -> None:
    """Also where texts hash differently in each process; where nothing is known it is 0."""
    orders = [ordered(Part(2, 4), indices).order for indices in ([3, 1], [1, 3], ["b", "a"])]
    assert len(set(orders)) == 3
    assert orders[2] == zlib.crc32(b"['b', 'a']")
    assert ordered(Part(2, 4), [object()]).order == 0


def read_all(length: int, places: list[Shared], drop_last: bool = False) -> list[Any]:
    """What each rank reads of a stream, batch by batch, and whether all read it."""
    every = []
    for place in places:
        samples, batches = iter(range(length)), []
        while (found := read_share(samples, place, drop_last)) is not None:
            batches.append(found)
        every.append(batches)
    return every


@pytest.mark.parametrize("length", [0, 3, 8, 9, 10, 23])
def test_ranks_read_a_stream_in_equally_many_batches(length: int) -> None:
    for whole in (False, True):
        places = [Shared([None] * 4, rank, 2, whole) for rank in range(2)]
        first, second = read_all(length, places)
        assert len(first) == len(second)
        assert [repeated for _, repeated in first] == [repeated for _, repeated in second]
        apart = [i for batch, repeated in (*first, *second) for i in batch if not repeated]
        alike = [i for batch, repeated in first for i in batch if repeated]
        assert alike == [i for batch, repeated in second for i in batch if repeated]
        assert len({*apart, *alike}) == len(apart) + len(alike)
        assert length - len(apart) - len(alike) <= (7 if whole else 0)


def test_the_places_of_a_stream_reach_a_worker() -> None:
    places = pickle.loads(pickle.dumps(Shared([None] * 3, 1, 2, False)))
    assert (len(places), places.rank, places.size, places.whole) == (3, 1, 2, False)


def losses() -> dict[str, Any]:
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 10)
    out = layer(torch.randn(OWN, 6))
    labels = torch.randint(0, 10, (OWN,))
    zeros, single = torch.zeros_like(out), F.cross_entropy(out, labels, reduction="none")
    mask, few = labels > 2, torch.arange(OWN) < 2
    penalty = 1e-4 * sum(p.pow(2).sum() for p in layer.parameters())
    summed = F.cross_entropy(out, labels, reduction="sum")
    zero = torch.zeros(())
    added = sum((F.cross_entropy(out[i], labels[i]) for i in range(OWN)), zero)
    return {
        "out": out,
        "mean: cross entropy": F.cross_entropy(out, labels),
        "mean: smoothed": F.cross_entropy(out, labels, label_smoothing=0.1),
        "mean: squares": F.mse_loss(out, zeros),
        "mean: absolute": F.l1_loss(out, zeros),
        "mean: binary": F.binary_cross_entropy_with_logits(out, zeros),
        "mean: divergence": F.kl_div(
            F.log_softmax(out, 1), torch.softmax(zeros, 1), reduction="batchmean"
        ),
        "mean: of singles": single.mean(),
        "mean: by hand": -F.log_softmax(out, 1)[range(OWN), labels].mean(),
        "mean: masked": (single * mask).sum() / mask.sum(),
        "mean: of few": (single * few).sum() / few.sum(),
        "mean: of few, half precision": (single * few).sum() / few.sum().bfloat16(),
        "mean: by what is counted": summed / (labels >= 0).sum(),
        "mean: sum by its length": summed / OWN,
        "mean: scaled": F.cross_entropy(out, labels) * 65536 / 4,
        "mean: with a penalty": F.cross_entropy(out, labels) + penalty,
        "sum: cross entropy": summed,
        "sum: of singles": single.sum(),
        "sum: smoothed": F.cross_entropy(out, labels, label_smoothing=0.1, reduction="sum"),
        "sum: by the batch size": summed / TOTAL,
        "sum: by accumulation": summed / 4,
        "sum: by two": summed / 2.0,
        "sum: by a temperature": summed / torch.tensor(2.5),
        "sum: with a penalty": summed + penalty,
        "sum: autoencoder": F.binary_cross_entropy(torch.sigmoid(out), zeros, reduction="sum")
        - 0.5 * torch.sum(1 + out - out.pow(2)),
        "mean: soft labels": F.cross_entropy(out, torch.softmax(zeros, 1)),
        "mean: of classes that weigh differently": F.cross_entropy(
            out, labels, torch.rand(10), label_smoothing=0.1
        ),
        "mean: of each output": out.pow(2).mean(0).sum(),
        "sum: of each output": out.pow(2).sum(0).mean(),
        "mean: of sums over time": torch.stack([single, single * 2]).sum(0).mean(),
        "sum: of means over time": torch.stack([single, single * 2]).mean(0).sum(),
        "mean: by a factor": summed * (1 / OWN),
        "mean: of two tasks": torch.stack(
            [F.cross_entropy(out, labels), F.mse_loss(out, zeros)]
        ).sum(),
        "sum: of two tasks": torch.stack([summed, out.pow(2).sum()]).mean(),
        "sum: one by one": torch.stack(
            [F.cross_entropy(out[i], labels[i]) for i in range(OWN)]
        ).sum(),
        "sum: as many means as samples": F.cross_entropy(out, labels) * OWN,
        "mean: scaled by a number": F.cross_entropy(out, labels) * (OWN + 1),
        "sum: added up": added,
        "sum: added up, of several numbers": sum(
            (F.mse_loss(out[i : i + 1], zeros[i : i + 1]) for i in range(OWN)), zero
        ),
        "mean: added up": added / OWN,
        "mean: of two tasks that are added": F.mse_loss(out, zeros) + F.cross_entropy(out, labels),
        "mixed: both": F.cross_entropy(out, labels) + out.pow(2).sum(),
        "unknown: root": F.mse_loss(out, zeros).sqrt(),
    }


def test_a_loss_is_told_to_be_a_mean_or_a_sum() -> None:
    found = losses()
    mark(found.pop("out"))
    for name, loss in found.items():
        expected = Reduction(name.partition(":")[0])
        assert terms_of(loss, OWN, TOTAL, marked=True).kind is expected, name


def test_a_loss_that_the_model_returns_is_told_too() -> None:
    loss = losses()["sum: cross entropy"]
    mark(loss)
    assert terms_of(loss, OWN, TOTAL, marked=True).kind is Reduction.SUM


def test_a_factor_that_is_written_down_is_a_weight_and_no_number_of_samples() -> None:
    out = torch.nn.Linear(6, 4)(torch.randn(10, 6))
    assert terms_of(0.1 * out.sum(), 10, 20, marked=False).kind is Reduction.SUM
    out = torch.nn.Linear(6, 4)(torch.randn(11, 6))
    assert terms_of(1 / 11 * out.sum(), 11, 22, marked=False).kind is Reduction.MEAN


def test_a_mark_keeps_no_activations() -> None:
    """An evaluation without `no_grad` calls a model a thousand times between two passes."""

    class Activation:
        pass

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.kept = Activation()
            kept.append(weakref.ref(ctx.kept))
            return x * 2

    kept: list[weakref.ref[Activation]] = []
    out = Layer.apply(torch.ones(3, requires_grad=True))
    mark((out, {"a": out}))
    following = out.sum().grad_fn.next_functions[0][0]
    assert is_output(following)
    assert kept[0]() is not None
    del out, following
    assert kept[0]() is None


class TestDraws:
    """Two ranks one after the other in this process, each with the generators as they were."""

    @pytest.fixture(autouse=True)
    def _restored(self) -> Any:
        states = torch.get_rng_state(), random.getstate()
        yield
        torch.set_rng_state(states[0])
        random.setstate(states[1])

    def drawn(self, rank: int) -> dict[str, float]:
        draws = Draws(torch, rank)
        draws._seed_torch, draws._seed_random = torch.manual_seed, random.seed
        draws._seed_numpy = lambda seed: None
        torch.manual_seed(1)
        random.seed(1)
        found = {"before": float(torch.rand(()))}
        draws.enter()
        found["apart: dropout"] = float(torch.rand(()))
        found["apart: augmentation"] = random.random()
        with draws.common():
            found["common: order"] = float(torch.rand(()))
        found["apart: noise"] = float(torch.rand(()))
        draws.leave()
        found["common: next order"] = float(torch.rand(()))
        draws.enter()
        found["apart: next dropout"] = float(torch.rand(()))
        return found

    def test_ranks_differ_inside_steps_and_agree_outside(self) -> None:
        first, second = self.drawn(0), self.drawn(1)
        for name in first:
            assert (first[name] != second[name]) == name.startswith("apart"), name

    def test_the_common_order_is_that_of_a_single_process(self) -> None:
        found = self.drawn(1)
        torch.manual_seed(1)
        alone = [float(torch.rand(())) for _ in range(3)]
        assert [found["before"], found["common: order"], found["common: next order"]] == alone


@pytest.mark.parametrize(
    ("local", "visible", "shared", "expected"),
    [
        ("1", None, 0, "1"),
        ("1", None, 1, "0"),
        ("3", None, 2, "1"),
        ("1", "4,6", 0, "6"),
        ("0", "GPU-ab,GPU-cd", 0, "GPU-ab"),
        ("2", "4,6", 2, "4"),
        ("1", "", 0, ""),
    ],
)
def test_each_rank_sees_one_device(
    local: str, visible: str | None, shared: int, expected: str
) -> None:
    environment = {"LOCAL_RANK": local}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    show_one_device(shared, environment)
    assert environment == {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": expected}
