"""Rare calls of a compiled module run as written; what is not rare is compiled."""

from __future__ import annotations

import torch

from gpurun.knobs.compiling.applied.rare_calls import FIRST_CALLS, RareCalls


def asked(rare: RareCalls, *sizes: int) -> list[bool]:
    return [rare.is_rare(((torch.empty(size, 4),), {})) for size in sizes]


def test_the_last_batch_of_each_epoch_is_rare() -> None:
    rare = RareCalls()
    epoch = [16] * 29 + [3]
    assert asked(rare, *epoch * 5) == [size == 3 for size in epoch * 5]


def test_an_evaluation_is_rare_while_it_is_short() -> None:
    rare = RareCalls()
    asked(rare, *[16] * 99)
    with torch.no_grad():
        assert asked(rare, *[16] * 5) == [True] * 5
        found = asked(rare, *[16] * 20)
    assert found[0]
    assert not found[-1], "it is no longer short"
    assert asked(rare, 3) == [False], "from then on torch decides"


def test_shapes_of_the_first_calls_are_usual() -> None:
    rare = RareCalls()
    first = [4, 8, 16, 12] * (FIRST_CALLS // 4)
    assert not any(asked(rare, *first, *first))


def test_lengths_that_change_all_the_time_are_left_to_torch() -> None:
    rare = RareCalls()
    found = asked(rare, *range(100, 100 - FIRST_CALLS, -1), *range(80, 40, -1))
    assert sum(found) <= 2


def test_a_larger_call_than_the_first_ones_is_never_rare() -> None:
    """Compiled code may be what makes it fit."""
    rare = RareCalls()
    assert asked(rare, *[16] * 40, 17, 16, 15) == [False] * 42 + [True]
