"""Draws that are alike for each row of a batch, whatever part of it a process has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import Process
from subprocess import Popen

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from gpurun.records.events import TraitEvent
from gpurun.records.messages.traits import STARTS_PROCESSES, STARTS_PROGRAMS
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.ddp import sample_by_sample
from gpurun.runtime.ddp.sample_by_sample import SampleBySample


def drawn(rows: int) -> list[torch.Tensor]:
    """What a step draws for so many rows, in a process that has drawn something else before."""
    stand_ins = SampleBySample()
    stand_ins.handed = True
    names = sample_by_sample.DRAWS
    draw = {name: stand_ins._watch_draw(getattr(torch, name)) for name in names}
    in_place = stand_ins._watch_draw(torch.Tensor.normal_)
    x = torch.zeros(rows, 20)
    torch.manual_seed(rows)
    return [
        draw["randn"](rows, 20),
        draw["randn_like"](x),
        draw["rand"]((rows, 20), generator=torch.Generator()),
        draw["randint"](0, 50, (rows, 20)),
        draw["bernoulli"](torch.full((rows, 20), 0.5)),
        in_place(x.clone()),
    ]


def test_each_row_gets_the_same_numbers_whatever_part_of_a_batch_is_there() -> None:
    whole, part = drawn(8), drawn(4)
    for of_all, of_some in zip(whole, part, strict=True):
        assert torch.equal(of_all[:4], of_some)
        assert torch.equal(of_all, of_all[:1].expand_as(of_all))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5, 10))


@pytest.mark.parametrize(
    ("loader", "batch"),
    [
        (lambda: DataLoader(range(5, 10), 5), [5, 7, 9, 6, 8]),  # type: ignore[arg-type]
        (lambda: DataLoader(range(5, 10), batch_sampler=[(4, 3, 2)]), [9, 7, 8]),  # type: ignore
        (lambda: DataLoader(Stream(), 5), [5, 7, 9, 6, 8]),
        (lambda: DataLoader(Stream(), 5, num_workers=1), [5, 7, 9, 6, 8]),
        (lambda: DataLoader([[1, 2, 3]], batch_size=None), [1, 2, 3]),  # type: ignore
    ],
    ids=["list", "tuple", "stream", "stream in a worker", "made by the data set"],
)
def test_one_process_takes_a_batch_share_by_share(
    monkeypatch: pytest.MonkeyPatch, loader: Callable[[], DataLoader[int]], batch: list[int]
) -> None:
    """As the ranks take it."""
    fetcher = torch.utils.data._utils.fetch._BaseDatasetFetcher
    in_order = SampleBySample(shares=2)._share_by_share(fetcher.__init__)
    monkeypatch.setattr(fetcher, "__init__", in_order)
    assert torch.as_tensor(next(iter(loader()))).tolist() == batch


@pytest.mark.parametrize(
    ("starter", "trait"), [(Process, STARTS_PROCESSES), (Popen, STARTS_PROGRAMS)]
)
def test_python_processes_are_told_from_other_programs(
    monkeypatch: pytest.MonkeyPatch, starter: type, trait: str
) -> None:
    told: list[TraitEvent] = []
    monkeypatch.setattr(RECORDER, "event", told.append)
    monkeypatch.setattr(sample_by_sample, "users_line", lambda frame: "train.py:3")
    start = SampleBySample()._watch_start(lambda process: None)
    for _ in range(2):
        start(object.__new__(starter))
    assert [(x.trait, x.detail) for x in told] == [(trait, "train.py:3")]


def test_a_permutation_leaves_all_in_place_and_other_draws_differ_from_each_other() -> None:
    stand_ins = SampleBySample()
    stand_ins.handed = True
    randperm = stand_ins._watch_permutation(torch.randperm)
    assert randperm(5).tolist() == [0, 1, 2, 3, 4]
    first, second, *_ = drawn(8)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("function", "watch"),
    [(torch.randn, "_watch_draw"), (torch.randperm, "_watch_permutation")],
)
def test_what_is_drawn_outside_of_a_step_goes_on_as_if_nothing_had_been_drawn_inside(
    function: Callable[..., torch.Tensor], watch: str
) -> None:
    """Shuffles of the next epoch, too."""
    stand_ins = SampleBySample()
    watched = getattr(stand_ins, watch)(function)
    torch.manual_seed(3)
    expected = function(9)
    torch.manual_seed(3)
    stand_ins.handed = True
    watched(8)
    stand_ins.handed = False
    assert torch.equal(watched(9), expected)


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
