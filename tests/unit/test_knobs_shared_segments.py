"""Segments of shared memory: whose they are, and whether anybody else can still read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpurun.knobs.loading.applied.shared_segments import (
    LEAST_BYTES,
    TOKEN,
    TRAILER,
    Segment,
    holders_when_alone,
)

OURS = b"a" * TOKEN


@pytest.fixture
def segment() -> Segment:
    storage = torch.UntypedStorage._new_shared(LEAST_BYTES + TRAILER)
    made = Segment(storage, holders_when_alone())
    made.sign(OURS)
    return made


def tensor_of(segment: Segment) -> torch.Tensor:
    return torch.empty(0).set_(segment.storage, 0, (16, 16))


@pytest.mark.parametrize(
    "derived",
    [
        lambda x: x,
        lambda x: x[3:, ::2].T,
        lambda x: x.numpy()[1:],
        lambda x: memoryview(x.numpy()),
        lambda x: x.untyped_storage(),
        lambda x: x.detach().view(torch.int32),
        lambda x: torch.from_dlpack(x),
        lambda x: torch.nn.Parameter(x),
        lambda x: x.unbind(),
        lambda x: lambda: x,
    ],
)
def test_whatever_leads_to_the_memory_is_seen(
    segment: Segment, derived: Callable[[torch.Tensor], Any]
) -> None:
    assert segment.alone()
    for _ in range(3):
        held = derived(tensor_of(segment))
        assert not segment.alone()
        del held
        assert segment.alone()


def test_tensors_are_counted(segment: Segment) -> None:
    one, other = tensor_of(segment), tensor_of(segment)
    assert segment.held_by(2)
    assert not segment.held_by(1)
    array = other.numpy()
    del other
    assert segment.held_by(2), "an array holds its tensor"
    assert (one.shape, array.shape) == ((16, 16), (16, 16))


def test_a_segment_is_known_by_its_token_and_a_copy_of_its_bytes_is_not(segment: Segment) -> None:
    holders = holders_when_alone()
    assert segment.signed(OURS)
    assert not segment.signed(b"b" * TOKEN)
    in_memory = segment.storage.clone()
    shared = torch.UntypedStorage._new_shared(segment.storage.nbytes()).copy_(segment.storage)
    for copied in (in_memory, shared):
        assert not Segment(copied, holders).signed(OURS)


def test_memory_that_torch_has_moved_is_not_touched(segment: Segment) -> None:
    """As it does to send a segment by the other sharing strategy."""
    assert not segment.retired
    segment.storage._share_filename_cpu_()
    segment.retire()
    segment.state = 7
    assert not segment.alone()
    assert not segment.retired
    assert segment.state == 0


def test_a_torch_that_counts_in_unknown_ways_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda number: 1)
    with pytest.raises(RuntimeError, match="who holds a storage"):
        holders_when_alone()
