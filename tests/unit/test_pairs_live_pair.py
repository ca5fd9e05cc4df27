"""Memory of two sides that take equal time, and so unequal steps."""

from __future__ import annotations

import pytest

from gpurun.pairs.live_pair import peaks_at_same_step
from gpurun.records.messages.turns import Turn

MEGABYTE = 1 << 20


def side(steps_a_turn: int, turns: int, megabytes_a_step: float) -> list[Turn]:
    """A side whose memory grows with each step, from 100 MB on."""
    counts = [steps_a_turn * (n + 1) for n in range(turns)]
    return [
        Turn(
            steps_a_turn,
            1_000_000,
            all_steps=count,
            peak_bytes=int((100 + megabytes_a_step * count) * MEGABYTE),
        )
        for count in counts
    ]


def test_a_faster_side_that_keeps_what_it_read_needs_no_more_memory() -> None:
    slow, fast = side(10, 10, 1.0), side(13, 10, 1.0)
    first, second = peaks_at_same_step((slow, fast))
    assert first == slow[-1].peak_bytes
    assert second == pytest.approx(first, rel=1e-6)


def test_growth_by_the_step_is_seen_although_the_side_is_slower() -> None:
    """It keeps 8 % more of each step and takes 8 % fewer of them."""
    before, now = side(100, 10, 1.0), side(92, 10, 1.08)
    first, second = peaks_at_same_step((before, now))
    assert first is not None
    assert second is not None
    assert second / first == pytest.approx((100 + 1.08 * 920) / (100 + 920), rel=1e-6)


def test_memory_that_does_not_grow_is_left_as_it_is() -> None:
    peak = 100 * MEGABYTE
    assert peaks_at_same_step((side(10, 10, 0.0), side(30, 10, 0.0))) == (peak, peak)


def test_memory_that_no_turn_knows_is_not_claimed() -> None:
    assert peaks_at_same_step(([], [])) == (None, None)
    unknown = [Turn(5, 1)]
    assert peaks_at_same_step((unknown, unknown)) == (None, None)
