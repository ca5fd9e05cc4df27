"""Audited samples are loaded again, in a process of their own, whatever the data set does."""

from __future__ import annotations

import copy
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from gpurun.runtime.trial import sample_passes
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS

AUDITED = [[0, 1, 2, 3], [4, 5, 6, 7]]
OF_STREAM = [[None] * 4] * 2


class Plain(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2) + index


class Cached(Plain):
    """Keeps each sample, with its augmentation, from the first time on."""

    def __init__(self) -> None:
        self.kept: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


class OwnGenerator(Plain):
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(2, generator=self.generator) + index


class Transformed(Plain):
    """Its transform draws from a generator that it closes over."""

    def __init__(self) -> None:
        dice = np.random.default_rng(0)
        self.transform = lambda x: x + dice.random()

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.transform(float(index)))


class InSlots(Plain):
    __slots__ = ("dice",)

    def __init__(self) -> None:
        self.dice = random.Random(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.dice.random() + index)


class Counts(Plain):
    """Samples become harder with each one that is loaded."""

    seen = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        self.seen += 1
        return torch.tensor([index, self.seen])


class ChangesInPlace(Plain):
    def __init__(self) -> None:
        self.data = torch.zeros(12, 2)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.data[index] += 1
        return self.data[index].clone()


class RefersToTheLast(Plain):
    """A sample is mixed with the one before it."""

    last = torch.zeros(2)

    def __getitem__(self, index: int) -> torch.Tensor:
        mixed = self.last + index
        self.last = torch.full((2,), float(index))
        return mixed


class DrawsOfEachKind(Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))]) + index


class CachedWhole(Plain):
    """Keeps what it has read; its augmentation is drawn each time."""

    def __init__(self) -> None:
        self.kept: dict[int, float] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.kept.setdefault(index, float(index)) + torch.rand(2)


class InBatches(Plain):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        order = torch.randperm(len(indices)).tolist()
        return [torch.tensor(float(indices[place])) for place in order]


class OwnFileInEachProcess(Plain):
    file, opened_by = -1, 0

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.opened_by != os.getpid():
            self.file, self.opened_by = os.open(__file__, os.O_RDONLY), os.getpid()
        os.lseek(self.file, index, os.SEEK_SET)
        return torch.tensor(list(os.read(self.file, 4)))


class Mapped(Plain):
    def __init__(self) -> None:
        self.rows = np.memmap(__file__, np.uint8, "r")

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.rows[index : index + 4])


def randomly(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(samples) + torch.rand(())


class OneDescriptor(Plain):
    """Seeks and reads by one position, which forked processes share."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(range(12)))
        self.file = os.open(path, os.O_RDONLY)

    def __getitem__(self, index: int) -> torch.Tensor:
        os.lseek(self.file, index, os.SEEK_SET)
        return torch.tensor(list(os.read(self.file, 1)))


class Stream(IterableDataset[torch.Tensor]):
    """Shuffled when it is opened; its samples are drawn."""

    def __iter__(self) -> Any:
        return (torch.rand(2) + number for number in torch.randperm(2000))


class ShardedStream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(torch.arange(first, 30, step))


class StreamOfOwnGenerator(Stream):
    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Any:
        return iter(torch.randperm(2000, generator=self.generator))


class StreamReadOnce(Stream):
    def __init__(self) -> None:
        self.rest = (torch.tensor(number) for number in range(2000))

    def __iter__(self) -> Any:
        return self.rest


class StreamOfAFile(Stream):
    """Goes on where it stopped."""

    def __init__(self) -> None:
        self.file = os.fdopen(os.open(__file__, os.O_RDONLY))

    def __iter__(self) -> Any:
        return (torch.tensor(list(line.encode()[:1])) for line in self.file)


class Piped(Plain):
    def __init__(self) -> None:
        self.answers, self.other = os.pipe()
        self.file = os.fdopen(self.answers)


class Ends(Plain):
    def __getitem__(self, index: int) -> torch.Tensor:
        os._exit(3)


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        for name in ("__init__", "fetch"):
            monkeypatch.setattr(kind, name, getattr(kind, name))
    SAMPLE_SEEDS.install(7, Path("/nowhere"))
    monkeypatch.setattr(SAMPLE_SEEDS, "_control", tmp_path)
    monkeypatch.setattr(SAMPLE_SEEDS, "_active", True)
    monkeypatch.setattr(sample_passes, "PASS_SECONDS", 60.0)
    monkeypatch.setattr(sample_passes, "HUNG_SECONDS", 120.0)


def again(
    tmp_path: Path, dataset: Any, workers: int = 0, audited: list[Any] = AUDITED, **words: Any
) -> tuple[tuple[int, ...], ...]:
    words.setdefault("batch_size", 4)
    twin = copy.copy(DataLoader(dataset, num_workers=workers, **words))
    answer = tmp_path / f"answer-{len(list(tmp_path.iterdir()))}"
    return tuple(sums for sums, _ in sample_passes.load_again(twin, audited, answer))


def test_passes_are_loaded_that_draw_by_index(tmp_path: Path) -> None:
    found = again(tmp_path, Plain())
    assert [len(one) for one in found] == [1 + 8, 1 + 8, 1 + 1008]
    assert found[0] != found[1]
    assert found == again(tmp_path, Plain())
    for lasting in (False, True):
        assert found == again(tmp_path, Plain(), 2, persistent_workers=lasting)


@pytest.mark.parametrize(
    "make",
    [
        Cached, OwnGenerator, Transformed, InSlots, Counts, ChangesInPlace, RefersToTheLast,
    ],
)  # fmt: skip
def test_what_a_process_keeps_shows_itself_in_workers(
    tmp_path: Path, make: Callable[[], Plain]
) -> None:
    alone = again(tmp_path, make())
    assert alone == again(tmp_path, make())
    for lasting in (False, True):
        assert alone != again(tmp_path, make(), 2, persistent_workers=lasting)


@pytest.mark.parametrize(
    "make", [DrawsOfEachKind, CachedWhole, InBatches, OwnFileInEachProcess, Mapped]
)
def test_sound_data_sets_hand_out_the_same_in_workers(
    tmp_path: Path, make: Callable[[], Plain]
) -> None:
    alone = again(tmp_path, make(), collate_fn=randomly)
    for workers, lasting in ((1, False), (3, False), (3, True)):
        found = again(tmp_path, make(), workers, persistent_workers=lasting, collate_fn=randomly)
        assert alone == found


def test_the_data_set_of_the_script_stays_as_it_was(tmp_path: Path) -> None:
    dataset = OneDescriptor(tmp_path / "data")
    os.lseek(dataset.file, 5, os.SEEK_SET)
    assert len(again(tmp_path, dataset)) == 3
    assert os.lseek(dataset.file, 0, os.SEEK_CUR) == 5
    cached = Cached()
    again(tmp_path, cached)
    assert not cached.kept


@pytest.mark.parametrize("make", [Stream, ShardedStream])
def test_one_worker_hands_out_the_samples_of_a_stream(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    alone = again(tmp_path, make(), audited=OF_STREAM)
    assert [len(one) for one in alone[:2]] == [1 + 8, 1 + 8]
    for lasting in (False, True):
        assert alone == again(tmp_path, make(), 1, OF_STREAM, persistent_workers=lasting)
    assert alone != again(tmp_path, make(), 2, OF_STREAM)


@pytest.mark.parametrize("make", [StreamOfOwnGenerator, StreamReadOnce, StreamOfAFile])
def test_a_stream_that_keeps_a_state_shows_itself_in_one_worker(
    tmp_path: Path, make: Callable[[], Any]
) -> None:
    alone = again(tmp_path, make(), audited=OF_STREAM)
    assert alone == again(tmp_path, make(), audited=OF_STREAM)
    assert alone != again(tmp_path, make(), 1, OF_STREAM)


def test_what_would_be_lost_to_the_script_is_not_read(tmp_path: Path) -> None:
    assert again(tmp_path, Piped()) == ()


def test_the_rate_of_a_pass_shows_what_a_data_set_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_passes, "PASS_SECONDS", 0.2)

    class Slow(Plain):
        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.01)
            return super().__getitem__(index)

    class Kept(Slow):
        known = dict.fromkeys(range(8), torch.zeros(2))

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.known[index] if index in self.known else super().__getitem__(index)

    def slow_checksum(value: object) -> int:
        time.sleep(0.02)
        return 0

    def rates(dataset: Plain) -> list[float]:
        twin = copy.copy(DataLoader(dataset, batch_size=4))
        answer = tmp_path / f"answer-{len(list(tmp_path.iterdir()))}"
        passes = sample_passes.load_again(twin, AUDITED, answer)
        return [rate for _, rate in passes]

    slow, kept = rates(Slow()), rates(Kept())
    assert max(slow) <= 100.0
    assert min(kept) > max(slow)
    monkeypatch.setattr(sample_passes, "checksum", slow_checksum)
    assert min(rates(Kept())) > max(slow), "checksums are gpurun's own, and no loading"


def test_samples_without_batches_are_loaded_one_at_a_time(tmp_path: Path) -> None:
    found = again(tmp_path, Plain(), audited=[3, 1, 2], batch_size=None)
    assert [len(one) for one in found] == [1 + 3, 1 + 3, 1 + 1018]
    assert found == again(tmp_path, Plain(), 2, [3, 1, 2], batch_size=None)


def test_a_tensor_that_is_filled_again_for_each_sample_is_seen(tmp_path: Path) -> None:
    """A worker overwrites it while it is read."""

    class FillsOneTensor(Plain):
        kept = torch.zeros(1000)

        def __getitem__(self, index: int) -> torch.Tensor:
            return self.kept.fill_(index)

    alone = again(tmp_path, FillsOneTensor(), audited=[3, 1, 2], batch_size=None)
    assert alone != again(tmp_path, FillsOneTensor(), 1, [3, 1, 2], batch_size=None)


def test_a_data_set_that_ends_its_process_or_hangs_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert again(tmp_path, Ends()) == ()
    monkeypatch.setattr(sample_passes, "HUNG_SECONDS", 0.2)

    class Hangs(Plain):
        def __getitem__(self, index: int) -> torch.Tensor:
            while True:
                pass

    assert again(tmp_path, Hangs()) == ()


def test_nothing_is_loaded_where_workers_are_started_anew(tmp_path: Path) -> None:
    assert again(tmp_path, Plain(), 1, multiprocessing_context="spawn") == ()
