"""The parts of hidden data parallelism that need no rank: shares and rng."""

from __future__ import annotations

import pickle
import random
import zlib
from typing import Any

import numpy as np
import pytest
import torch

from gpurun.runtime.ddp.batch_shards import BatchShard, StreamShard, ordered, read_shard, shard_of
from gpurun.runtime.ddp.rank_info import show_one_device
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.ddp.sample_by_sample import SampleBySample
from gpurun.runtime.trial.sample_seeds import SampleSeeds


@pytest.mark.parametrize("total", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("usual", [None, 32])
def test_shares_make_up_the_batch_and_their_weights_its_mean(
    total: int, size: int, usual: int | None
) -> None:
    batch = list(range(total))
    shares = [shard_of(batch, rank, size, usual) for rank in range(size)]
    assert {i for own, _ in shares for i in own} == set(batch)
    means = [sum(own) / len(own) * shard.weight(size) for own, shard in shares]
    assert sum(means) / size == pytest.approx(sum(batch) / total)
    assert all(own for own, _ in shares)  # nobody may sit out a step


def test_what_is_left_at_the_end_is_no_single_sample_for_any_rank() -> None:
    """BatchNorm refuses one; a loader whose batches are as many as ranks has chosen that."""
    assert shard_of([4, 5], rank=2, size=3) == ([4, 5], BatchShard(2, 2, repeated=True))
    assert shard_of([4, 5, 6], rank=1, size=2, usual=8) == (
        [4, 5, 6],
        BatchShard(3, 3, repeated=True),
    )
    assert shard_of([4, 5], rank=1, size=2, usual=2) == ([5], BatchShard(1, 2))
    assert shard_of([4, 5, 6, 7], rank=1, size=2, usual=8) == ([5, 7], BatchShard(2, 4))


def test_the_order_of_a_batch_is_a_number_that_all_ranks_have() -> None:
    """Also where texts hash differently in each process; where nothing is known it is 0."""
    orders = [ordered(BatchShard(2, 4), indices).order for indices in ([3, 1], [1, 3], ["b", "a"])]
    assert len(set(orders)) == 3
    assert orders[2] == zlib.crc32(b"['b', 'a']")
    assert ordered(BatchShard(2, 4), [object()]).order == 0


def read_all(length: int, places: list[StreamShard], drop_last: bool = False) -> list[Any]:
    """What each rank reads of a stream, batch by batch, and whether all read it."""
    every = []
    for place in places:
        samples, batches = iter(range(length)), []
        while (found := read_shard(samples, place, drop_last)) is not None:
            batches.append(found)
        every.append(batches)
    return every


@pytest.mark.parametrize("length", [0, 3, 8, 9, 10, 23])
def test_ranks_read_a_stream_in_equally_many_batches(length: int) -> None:
    for whole in (False, True):
        places = [StreamShard([None] * 4, rank, 2, whole) for rank in range(2)]
        first, second = read_all(length, places)
        assert len(first) == len(second)
        assert [repeated for _, repeated in first] == [repeated for _, repeated in second]
        apart = [i for batch, repeated in (*first, *second) for i in batch if not repeated]
        alike = [i for batch, repeated in first for i in batch if repeated]
        assert alike == [i for batch, repeated in second for i in batch if repeated]
        assert len({*apart, *alike}) == len(apart) + len(alike)
        assert length - len(apart) - len(alike) <= (7 if whole else 0)


def test_the_places_of_a_stream_reach_a_worker() -> None:
    places = pickle.loads(pickle.dumps(StreamShard([None] * 3, 1, 2, False)))
    assert (len(places), places.rank, places.size, places.whole) == (3, 1, 2, False)


class TestDraws:
    """Two ranks one after the other in this process, each with the generators as they were."""

    @pytest.fixture(autouse=True)
    def _restored(self) -> Any:
        states = torch.get_rng_state(), random.getstate()
        yield
        torch.set_rng_state(states[0])
        random.setstate(states[1])

    def drawn(self, rank: int) -> dict[str, float]:
        rng = RankRNG(rank)
        rng._seeds.update(torch=torch.manual_seed, random=random.seed, numpy=lambda seed: None)
        torch.manual_seed(1)
        random.seed(1)
        found = {"before": float(torch.rand(()))}
        rng.draw_apart()
        found["apart: dropout"] = float(torch.rand(()))
        found["apart: augmentation"] = random.random()
        with rng.alike_inside():
            found["common: order"] = float(torch.rand(()))
        found["apart: noise"] = float(torch.rand(()))
        rng.draw_alike()
        found["common: next order"] = float(torch.rand(()))
        rng.draw_apart()
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

    def test_seeds_that_trials_set_in_a_step_do_not_end_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else the next epoch has another order than in one process."""
        watched = [(o, "manual_seed") for o in (torch, torch.random, torch.cuda, torch.cuda.random)]
        watched += [(o, "manual_seed_all") for o in (torch.cuda, torch.cuda.random)]
        for owner, name in (*watched, (random, "seed"), (np.random, "seed")):
            monkeypatch.setattr(owner, name, getattr(owner, name))
        torch.manual_seed(1)
        alone = torch.rand(())
        torch.manual_seed(1)
        rng, by_sample = RankRNG(1), SampleBySample()
        rng.install()
        rng.draw_apart()
        SampleSeeds()._seed_by(None, "1 [3, 4]")
        by_sample.handed = True
        by_sample._watch_draw(torch.randn)(3)
        assert rng._apart
        rng.draw_alike()
        assert torch.rand(()) == alone


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
