"""The figures by which the loss guard compares tensors of two trials."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from gpurun.runtime.core.tensor_values import (
    COPIED_VALUES,
    host_copy,
    moved_by,
    whole_checksum,
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


def test_no_copy_is_large_enough_for_torch_to_ask_all_its_threads() -> None:
    """From 32,768 numbers on (at::internal::GRAIN_SIZE) it does."""
    assert COPIED_VALUES < 32_768
    assert host_copy(torch.rand(3, 224, 224)).numel() <= COPIED_VALUES


def test_a_whole_checksum_of_an_array_of_objects_is_that_of_the_objects() -> None:
    def labels(*names: str) -> object:
        return np.array(["".join(name) for name in names], dtype=object)

    assert whole_checksum(labels("cat", "dog")) == whole_checksum(labels("cat", "dog"))
    assert whole_checksum(labels("cat", "dog")) != whole_checksum(labels("cat", "cow"))


def test_a_whole_checksum_sees_all_that_a_batch_holds() -> None:
    class Graph:
        def __init__(self, nodes: object) -> None:
            self.nodes, self.batch = nodes, [self]

    @dataclass
    class Packed:
        rows: object

    def made(value: float) -> list[object]:
        array = np.array([value])
        held = [torch.tensor([value]), array, value, str(value), Graph(array), Packed((array,))]
        return [*held, {"stage": value}, {value: 1}, [[value]]]

    assert [*map(whole_checksum, made(1.0))] == [*map(whole_checksum, made(1.0))]
    for one, other in zip(made(1.0), made(2.0), strict=True):
        assert whole_checksum(one) != whole_checksum(other)
    twice = torch.ones(2)
    assert whole_checksum([twice, twice]) == whole_checksum([torch.ones(2), torch.ones(2)])
