"""The figures by which the loss guard compares tensors of two trials."""

from __future__ import annotations

import math

import pytest
import torch

from gpurun.runtime.core.tensor_values import (
    COPIED_VALUES,
    SERIAL_VALUES,
    host_copy,
    mean_and_deviation,
    moved_by,
)


def test_the_change_of_a_small_tensor_is_exact() -> None:
    tensor = torch.zeros(3, 4)
    before = host_copy(tensor)
    tensor[1, 2] = 3.0
    tensor[2, 0] = 4.0
    assert moved_by(tensor, before, host_copy(tensor)) == 5.0


def test_of_a_large_tensor_a_part_tells_the_change_of_the_whole() -> None:
    torch.manual_seed(0)
    tensor = torch.randn(1000, 1000)
    before, change = host_copy(tensor), 0.01 * torch.randn(1000, 1000)
    assert before.numel() <= COPIED_VALUES
    tensor += change
    assert moved_by(tensor, before, host_copy(tensor)) == pytest.approx(
        float(change.norm()), rel=0.02
    )


def test_the_layout_in_memory_makes_no_difference() -> None:
    torch.manual_seed(0)
    tensor = torch.randn(64, 32, 9, 9)
    other = tensor.to(memory_format=torch.channels_last)
    assert torch.equal(host_copy(tensor), host_copy(other))
    before = host_copy(tensor)
    other[:, :, 0, 0] += 1.0
    tensor[:, :, 0, 0] += 1.0
    assert moved_by(tensor, before, host_copy(tensor)) == moved_by(other, before, host_copy(other))


def test_complex_numbers_count_with_both_parts() -> None:
    tensor = torch.zeros(2, dtype=torch.complex64)
    before = host_copy(tensor)
    tensor[0] = 3.0 + 4.0j
    assert moved_by(tensor, before, host_copy(tensor)) == 5.0


def test_a_copy_does_not_follow_the_tensor() -> None:
    tensor = torch.ones(8)
    before = host_copy(tensor)
    tensor.zero_()
    assert before.tolist() == [1.0] * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.float64])
def test_mean_and_deviation_are_those_of_torch_however_large_the_tensor(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = (100 * torch.rand(3, 150, 151)).to(dtype)
    numbers = tensor.double()
    assert mean_and_deviation(tensor) == pytest.approx(
        (float(numbers.mean()), float(numbers.std()))
    )


def test_numbers_that_are_not_finite_show_in_the_mean() -> None:
    tensor = torch.zeros(100_000)
    tensor[0], tensor[-1] = float("inf"), float("-inf")
    assert mean_and_deviation(tensor)[0] != mean_and_deviation(tensor)[0]


def test_a_part_of_a_sparse_sample_without_two_numbers_has_no_deviation() -> None:
    sparse = torch.tensor([[0.0, 3.0], [0.0, 0.0]]).to_sparse()
    assert all(math.isnan(figure) for figure in mean_and_deviation(sparse))


def test_no_sum_is_large_enough_for_torch_to_ask_all_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From 32,768 numbers on (at::internal::GRAIN_SIZE) it does."""
    sizes: list[int] = []
    split = torch.Tensor.split

    def parts(tensor: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
        found = split(tensor, size)
        sizes.extend(part.numel() for part in found)
        return found

    monkeypatch.setattr(torch.Tensor, "split", parts)
    mean_and_deviation(torch.rand(3, 224, 224))
    assert sum(sizes) == 3 * 224 * 224
    assert max(*sizes, COPIED_VALUES, SERIAL_VALUES) < 32_768
