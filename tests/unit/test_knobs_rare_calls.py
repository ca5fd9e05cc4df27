"""The last batches of epochs run as written under `compile`; what is not rare is compiled."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpurun.knobs.applied.compiling.compiled_calls import FIRST_CALLS, RareCalls

MODULE = torch.nn.Linear(4, 4)


def asked(rare: RareCalls, *sizes: int) -> list[bool]:
    return [rare.is_rare([torch.empty(size, 4)]) for size in sizes]


def test_the_last_batch_of_each_epoch_is_rare() -> None:
    rare = RareCalls(MODULE)
    epoch = [16] * 29 + [3]
    assert asked(rare, *epoch * 5) == [size == 3 for size in epoch * 5]


def test_an_evaluation_is_none_of_its_business() -> None:
    """It comes in a row, and the guard looks at what compiled code answers there."""
    rare = RareCalls(MODULE)
    with torch.no_grad():
        assert not any(asked(rare, *[16] * 500))
    assert asked(rare, *[8] * 40, 5) == [False] * 40 + [True]


def test_a_size_that_comes_twice_in_a_row_is_compiled() -> None:
    """A curriculum goes on to another size after many steps."""
    rare = RareCalls(MODULE)
    asked(rare, *[16] * 1000)
    assert asked(rare, *[8] * 5) == [True, False, False, False, False]


def test_shapes_of_the_first_calls_are_usual() -> None:
    rare = RareCalls(MODULE)
    first = [4, 8, 16, 12] * (FIRST_CALLS // 4)
    assert not any(asked(rare, *first, *first))


def test_lengths_that_change_all_the_time_are_left_to_torch() -> None:
    rare = RareCalls(MODULE)
    found = asked(rare, *range(100, 100 - FIRST_CALLS, -1), *range(80, 40, -1))
    assert sum(found) <= 1


def test_a_larger_call_than_the_first_ones_is_never_rare() -> None:
    """Compiled code may be what makes it fit."""
    rare = RareCalls(MODULE)
    assert asked(rare, *[16] * 40, 17, 16, 15) == [False] * 42 + [True]


def test_both_passes_of_a_checkpoint_run_the_same_code() -> None:
    rare = RareCalls(MODULE)
    asked(rare, *[16] * 40)
    found = []

    def part(x: Tensor) -> Tensor:
        found.append(rare.is_rare([x]))
        return x.sin()

    checkpoint(part, torch.ones(3, 4, requires_grad=True), use_reentrant=False).sum().backward()
    assert found == [False, False]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_tensor_without_sizes_is_left_to_torch() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    rare = RareCalls(MODULE)
    assert not rare.is_rare([nested])
