"""Samples of audited batches draw by their index; what the script draws itself stays as it was."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

import gpurun
from gpurun.runtime.trial.sample_seeds import SampleSeeds

PACKAGE = Path(gpurun.__file__).parent


class Draws(Dataset[tuple[float, float, float]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())


class Still(Draws):
    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return float(index), 0.0, 0.0


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SampleSeeds:
    """Samples are seeded as in an audited trial."""
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        for name in ("__init__", "fetch"):
            monkeypatch.setattr(kind, name, getattr(kind, name))
    made = SampleSeeds()
    made.install(7, tmp_path)
    made.begin()
    return made


def loaded(dataset: Any, order: list[int], **words: Any) -> dict[int, list[float]]:
    """By index, what a loader hands out in this order."""
    loader: Any = DataLoader(dataset, batch_size=4, sampler=order, **words)
    rows = [row for batch in loader for row in torch.stack(list(batch), 1).tolist()]
    return dict(zip(order, rows, strict=True))


def test_a_sample_draws_by_its_index_whatever_was_drawn_before(seeds: SampleSeeds) -> None:
    forward = loaded(Draws(), list(range(12)))
    torch.rand(5), random.random(), np.random.rand(3)
    assert loaded(Draws(), list(range(11, -1, -1))) == forward
    assert len({tuple(row) for row in forward.values()}) == 12
    assert seeds.drew
    assert seeds.seeded == 6


def test_workers_draw_the_same(seeds: SampleSeeds) -> None:
    alone = loaded(Draws(), list(range(12)))
    assert loaded(Draws(), list(range(12)), num_workers=2) == alone
    assert seeds.seeded == 3, "those of this process"


def test_the_next_pass_draws_anew_in_workers_that_live_on_too(seeds: SampleSeeds) -> None:
    def passes(**words: Any) -> list[Any]:
        loader = DataLoader(Draws(), batch_size=4, **words)
        return [[torch.stack(list(batch), 1).tolist() for batch in loader] for _ in range(2)]

    first, second = passes()
    assert first != second
    assert passes(num_workers=2) == [first, second]
    assert passes(num_workers=2, persistent_workers=True) == [first, second]


def test_workers_end_with_the_audit(seeds: SampleSeeds) -> None:
    loader = DataLoader(Draws(), batch_size=4, num_workers=1, persistent_workers=True)
    audited = [batch[0].tolist() for batch in loader]
    seeds.end()
    later = [[batch[0].tolist() for batch in loader] for _ in range(2)]
    assert later[0] != later[1]
    assert audited not in later


class Stream(IterableDataset[torch.Tensor]):
    """A stream that is shuffled when it is opened, and draws."""

    def __iter__(self) -> Any:
        return iter([torch.rand(()) + 10 * i for i in torch.randperm(12)])


def test_a_stream_draws_the_same_in_one_worker(seeds: SampleSeeds) -> None:
    def loaded(count: int) -> list[list[float]]:
        return [batch.tolist() for batch in DataLoader(Stream(), batch_size=4, num_workers=count)]

    assert loaded(0) == loaded(1)
    assert loaded(0) != loaded(2), "each worker hands out the whole stream"


def test_what_workers_draw_is_known(seeds: SampleSeeds) -> None:
    loaded(Still(), list(range(12)), num_workers=1)
    assert not seeds.drew
    loaded(Draws(), list(range(12)), num_workers=1)
    assert seeds.drew


def test_the_script_draws_on_as_if_samples_drew_nothing(seeds: SampleSeeds) -> None:
    def drawn() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    def seeded() -> None:
        torch.manual_seed(1), random.seed(1), np.random.seed(1)

    seeded()
    expected = drawn()
    seeded()
    fetcher = _MapDatasetFetcher(Draws(), True, list, False)
    fetcher.fetch([3, 4])
    assert drawn() == expected


def test_samples_after_the_audit_draw_from_the_scripts_own_stream(seeds: SampleSeeds) -> None:
    fetcher: Any = _MapDatasetFetcher(Draws(), True, list, False)
    audited = [fetcher.fetch([0]) for _ in range(2)]
    assert audited[0] == audited[1]
    seeds.end()
    assert fetcher.fetch([0]) != fetcher.fetch([0])


def test_batches_that_a_data_set_makes_itself_are_seeded_by_their_first_index(
    seeds: SampleSeeds,
) -> None:
    class Batched(Draws):
        def __getitems__(self, indices: list[int]) -> list[tuple[float, float, float]]:
            return [self[index] for index in indices]

    whole = [loaded(Batched(), list(range(12))) for _ in range(2)]
    assert whole[0] == whole[1]
    parts = [loaded(Subset(Draws(), list(range(12))), list(range(12))) for _ in range(2)]
    assert parts[0] == parts[1]


def test_an_error_of_a_data_set_shows_nothing_of_ours(seeds: SampleSeeds) -> None:
    class Broken(Draws):
        def __getitem__(self, index: int) -> tuple[float, float, float]:
            raise ValueError(index)

    fetcher: Any = _MapDatasetFetcher(Broken(), True, list, False)
    with pytest.raises(ValueError, match="0") as caught:
        fetcher.fetch([0])
    assert not [frame for frame in caught.traceback if PACKAGE in Path(frame.path).parents]
    assert type(fetcher.dataset) is Broken


def test_libraries_with_generators_of_their_own_are_seeded_by_the_table(
    seeds: SampleSeeds,
) -> None:
    class Flip:
        def __init__(self) -> None:
            self.own = random.Random()

        def set_random_seed(self, seed: int) -> None:
            self.own.seed(seed)

    class Flipped(Draws):
        def __init__(self) -> None:
            self.transform = Flip()

        def __getitem__(self, index: int) -> tuple[float, float, float]:
            return self.transform.own.random(), 0.0, 0.0

    assert loaded(Flipped(), [0, 1, 2, 3]) != loaded(Flipped(), [0, 1, 2, 3])
    Flip.__module__ = "albumentations.core"
    assert loaded(Flipped(), [0, 1, 2, 3]) == loaded(Flipped(), [3, 2, 1, 0])
