"""What the script moves itself goes by way of another copy: it gets the values it had, in its form.

There is no second device here: moves to the CPU stand in for those to a GPU, and a clone for
page-locked memory. The copy without waiting is tested on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpurun.knobs.applied.staged_moves import LARGEST_BYTES, StagedMoves

Told = list[tuple[str, str]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def staged() -> list[Any]:
    """The tensors that were staged."""
    return []


@pytest.fixture
def staging(told: Told, staged: list[Any]) -> Iterator[StagedMoves]:
    """Installed, with a step behind it."""

    def stage(tensor: Any) -> Any:
        staged.append(tensor)
        return tensor.clone()

    hooks: Any = SimpleNamespace(
        applied=lambda detail: told.append(("applied", detail)),
        revoked=lambda reason: told.append(("revoked", reason)),
    )
    before = torch.Tensor.to, torch.Tensor.cuda
    made = StagedMoves(hooks, "cpu", stage)
    made.install()
    made.step_done(1)
    yield made
    torch.Tensor.to, torch.Tensor.cuda = before  # type: ignore[method-assign]


def test_what_is_done_to_the_buffer_afterwards_changes_nothing(
    staging: StagedMoves, told: Told
) -> None:
    buffer = torch.arange(6.0)
    moved = buffer.to("cpu")
    buffer.zero_()
    assert moved.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert told == [("applied", "by way of page-locked memory")]


def test_type_and_layout_are_those_that_were_asked_for(staging: StagedMoves) -> None:
    images = torch.randn(2, 3, 4, 4)
    moved = images.to("cpu", torch.float64, memory_format=torch.channels_last)
    assert moved.dtype is torch.float64
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved, images.double())
    turned = images.permute(0, 2, 3, 1)
    assert turned.to("cpu").stride() == turned.stride()


def test_only_plain_tensors_of_a_batchs_size_are_staged(
    staging: StagedMoves, staged: list[Any]
) -> None:
    learned = torch.ones(2, requires_grad=True)
    for tensor in (
        learned,
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(2).to_sparse(),
        torch.empty(LARGEST_BYTES + 1, dtype=torch.uint8),
    ):
        assert tensor.to("cpu") is tensor
    assert torch.ones(2).to(torch.float64).dtype is torch.float64, "which moves nothing"
    assert not staged


def test_before_the_first_step_nothing_is_staged(staging: StagedMoves, staged: list[Any]) -> None:
    staging._training = False
    data = torch.ones(4)
    assert data.to("cpu") is data
    assert not staged


def test_where_memory_runs_out_the_scripts_own_move_does_it_from_then_on(
    told: Told, staging: StagedMoves, staged: list[Any]
) -> None:
    def fail(tensor: Any) -> Any:
        staged.append(tensor)
        raise RuntimeError("no page-locked memory")

    staging._stage = fail
    data = torch.ones(4)
    assert data.to("cpu") is data
    staging.step_done(2)
    assert data.to("cpu") is data
    assert told == [("revoked", "RuntimeError: no page-locked memory")]
    assert len(staged) == 1
