"""Draws that are alike for each row of a batch, whatever part of it a process has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.utils.data import DataLoader

from gpurun.runtime.ddp import sample_by_sample
from gpurun.runtime.ddp.sample_by_sample import SampleBySample


@pytest.fixture
def draws() -> Iterator[Callable[[int], list[torch.Tensor]]]:
    """What a step draws for so many rows, in a process that has drawn something else before."""
    own = torch.Generator()

    def drawn(rows: int) -> list[torch.Tensor]:
        stand_ins = SampleBySample()
        stand_ins.handed = True
        wrapped = {
            name: stand_ins._watch_draw(getattr(torch, name)) for name in sample_by_sample.DRAWS
        }
        normal_ = stand_ins._watch_draw(torch.Tensor.normal_)
        randperm = stand_ins._watch_permutation(torch.randperm)
        x = torch.zeros(rows, 20)
        torch.manual_seed(rows)
        return [
            wrapped["randn"](rows, 20),
            wrapped["randn_like"](x),
            wrapped["rand"]((rows, 20), generator=own),
            wrapped["randint"](0, 50, (rows, 20)),
            wrapped["bernoulli"](torch.full((rows, 20), 0.5)),
            normal_(x.clone()),
            x[randperm(rows)] + torch.arange(float(rows))[randperm(rows)][:, None] * 0,
        ]

    yield drawn


def test_each_row_gets_the_same_numbers_whatever_part_of_a_batch_is_there(
    draws: Callable[[int], list[torch.Tensor]],
) -> None:
    whole, part = draws(8), draws(4)
    for of_all, of_some in zip(whole, part, strict=True):
        assert torch.equal(of_all[:4], of_some)
        assert torch.equal(of_all, of_all[:1].expand_as(of_all))


def test_a_permutation_leaves_all_in_place_and_other_draws_differ_from_each_other(
    draws: Callable[[int], list[torch.Tensor]],
) -> None:
    stand_ins = SampleBySample()
    stand_ins.handed = True
    randperm = stand_ins._watch_permutation(torch.randperm)
    assert randperm(5).tolist() == [0, 1, 2, 3, 4]
    first, second, *_ = draws(8)
    assert not torch.equal(first, second)


def test_what_is_drawn_outside_of_a_step_goes_on_as_if_nothing_had_been_drawn_inside() -> None:
    stand_ins = SampleBySample()
    randn = stand_ins._watch_draw(torch.randn)
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    stand_ins.handed = True
    randn(8, 4)
    stand_ins.handed = False
    assert torch.equal(randn(4), expected)


def test_a_batch_is_handed_out_until_the_next_one_is_asked_for() -> None:
    stand_ins = SampleBySample()
    seen = []

    def read(iterator: Iterator[int]) -> int:
        seen.append(stand_ins.handed)
        return next(iterator)

    wrapped = stand_ins._watch_next(read)
    iterator = iter(DataLoader([1, 2], batch_size=None))
    for _ in range(2):
        wrapped(iterator)
        assert stand_ins.handed
    assert seen == [False, False]


def test_batches_are_normalised_by_running_statistics() -> None:
    batch_norm = sample_by_sample._by_running_statistics(torch.nn.functional.batch_norm)
    x, mean, var = torch.randn(6, 3), torch.ones(3), torch.full((3,), 4.0)
    found = batch_norm(x, mean, var, training=True)
    assert torch.allclose(found, (x - 1) / (4 + 1e-5) ** 0.5)
    assert mean.tolist() == [1, 1, 1]
    of_batch = batch_norm(x, None, None, training=True)
    assert torch.allclose(of_batch.mean(0), torch.zeros(3), atol=1e-6)
