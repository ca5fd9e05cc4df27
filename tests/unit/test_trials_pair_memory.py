"""Memory of two sides that take equal time, and so unequal steps."""

from __future__ import annotations

import pytest

from gpurun.records.messages.turns import Turn
from gpurun.trials.pair_memory import peak_shares

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
    first, second = peak_shares((slow, fast))
    assert first == 1.0
    assert second * fast[-1].peak_bytes == pytest.approx(slow[-1].peak_bytes, rel=1e-6)


def test_growth_by_the_step_is_seen_although_the_side_is_slower() -> None:
    """It keeps 8 % more of each step and takes 8 % fewer of them."""
    before, now = side(100, 10, 1.0), side(92, 10, 1.08)
    first, second = peak_shares((before, now))
    grown = second * now[-1].peak_bytes / (first * before[-1].peak_bytes)
    assert grown == pytest.approx((100 + 1.08 * 920) / (100 + 920), rel=1e-6)


def test_memory_that_does_not_grow_is_left_as_it_is() -> None:
    assert peak_shares((side(10, 10, 0.0), side(30, 10, 0.0))) == (1.0, 1.0)
    assert peak_shares(([], [])) == (1.0, 1.0)
    unknown = [Turn(5, 1)]
    assert peak_shares((unknown, unknown)) == (1.0, 1.0)
