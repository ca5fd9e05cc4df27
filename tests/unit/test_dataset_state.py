"""Which changes of a data set gpurun notices by comparing its state."""

from __future__ import annotations

import functools
import random
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, default_collate

from gpurun.knobs.loading.dataset_state import State, changed_names, dataset_state, listed

OPENED: dict[str, int] = {}
TOLD: dict[str, int] = {}
SUBSETS: dict[int, Subset[Any]] = {}


@functools.lru_cache
def computed(index: int) -> int:
    return index


def opened(name: str) -> int:
    return OPENED.setdefault(name, len(OPENED))


@dataclass
class Config:
    level: int = 0


CONFIG = Config()
MODEL = torch.nn.Linear(1, 1)


class Reading(Dataset[int]):
    """`read` is called for each sample."""

    table: Any = None
    kept: ClassVar[deque[int]] = deque()

    def __init__(self) -> None:
        self.held, self.rng = [1, 1, 2], random.Random(0)
        self.numpys, self.torchs = np.random.default_rng(0), torch.Generator()
        TOLD["built"] = 1

    def __getitem__(self, index: int) -> int:
        MODEL(torch.zeros(1))
        return computed(index) + opened("a") + CONFIG.level


def state(dataset: Any, collate: Any = default_collate) -> State:
    subset = SUBSETS.setdefault(id(dataset), Subset(dataset, [0]))
    found = dataset_state(subset, collate)
    assert found is not None
    return found


CHANGES: dict[str, Callable[[Any], object]] = {
    "an item that another equals": lambda data: data.held.__setitem__(1, 2),
    "a class attribute": lambda data: setattr(Reading, "table", object()),
    "a deque of the class": lambda data: data.kept.append(1),
    "a cached function": lambda data: computed(random.random()),
    "a global of a function": lambda data: OPENED.__setitem__(str(len(OPENED)), 1),
    "an object that code names": lambda data: setattr(CONFIG, "level", CONFIG.level + 1),
    "python's generator": lambda data: data.rng.random(),
    "numpy's generator": lambda data: data.numpys.random(),
    "torch's generator": lambda data: torch.rand(1, generator=data.torchs),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str) -> None:
    data = Reading()
    before = state(data)
    assert state(data) == before
    CHANGES[change](data)
    assert state(data) != before
    assert changed_names(before, state(data))


def test_what_has_changed_has_a_name() -> None:
    data = Reading()
    before = state(data)
    data.held.append(1)
    data.rng.random()
    assert {*changed_names(before, state(data))} == {"held", "rng"}
    assert changed_names(before, before) == changed_names(None, before) == []
    quiet = dataset_state(data, draws=False)
    data.rng.random()
    assert dataset_state(data, draws=False) == quiet
    data.held[:] = reversed(data.held)
    data.held[0], data.held[1] = data.held[1], data.held[0]
    assert {*changed_names(quiet, dataset_state(data, draws=False))} == {"held"}
    assert listed(["a", "b", "a", "c", "d"]) == "a, b, c"


def test_what_loading_does_not_read_is_no_change() -> None:
    data = Reading()
    before = state(data)
    TOLD["steps"] = 1
    with torch.no_grad():
        MODEL.weight.add_(1)
    assert state(data) == before


def test_another_collate_function_is_a_change() -> None:
    kept: dict[str, int] = {}
    data, functions = Namespace(), [lambda x: (x, kept) for _ in range(2)]
    states = [state(data, function) for function in functions]
    assert states[0] != states[1]
    kept["new"] = 1
    assert state(data, functions[0]) != states[0]


def test_a_large_data_set_is_compared_quickly() -> None:
    data = Reading()
    vars(data).update(names=[str(i) for i in range(60_000)], sizes=list(range(60_000)))
    vars(data).update(known={i: str(i) for i in range(1_000)})
    state(data)
    seconds = []
    for _ in range(10):
        begun = time.perf_counter()
        state(data)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.005
