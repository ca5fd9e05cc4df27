"""What a live pair is expected to take."""

from __future__ import annotations

import pytest

from gpurun.pairs.expected_seconds import SideSeconds, live_pair_seconds


def test_a_live_pair_takes_the_longer_start_where_both_have_cores_and_else_the_sum() -> None:
    one, other = SideSeconds(10.0), SideSeconds(30.0)
    alone = live_pair_seconds(one, other, together=True, on_gpu=True)
    assert 30.0 < alone < 30.0 + 20.0
    assert live_pair_seconds(one, other, together=False, on_gpu=True) == alone + 10.0


def test_a_live_pair_waits_for_epochs_that_are_not_too_long() -> None:
    usual = live_pair_seconds(SideSeconds(3.0), SideSeconds(3.0), together=False, on_gpu=True)
    for epoch, more in ((0.5, 0.0), (2.0, 3.0), (20.0, 0.0)):
        sides = SideSeconds(3.0, epoch=epoch), SideSeconds(3.0, epoch=epoch / 2)
        assert live_pair_seconds(*sides, together=False, on_gpu=True) == usual + more


def test_slow_steps_make_the_turns_of_a_pair_longer() -> None:
    quick = live_pair_seconds(
        SideSeconds(10.0, 0.001), SideSeconds(10.0, 0.001), together=True, on_gpu=True
    )
    slow = live_pair_seconds(
        SideSeconds(10.0, 0.3), SideSeconds(10.0, 0.1), together=True, on_gpu=True
    )
    assert slow > quick + 8.0


@pytest.mark.parametrize(("error", "more"), [(None, 0.0), (0.01, 0.0), (0.1, 10.0)])
def test_turns_of_sides_that_scattered_before_go_on_as_long_as_they_may(
    error: float | None, more: float
) -> None:
    side = SideSeconds(10.0, 0.002)
    usual = live_pair_seconds(side, side, together=True, on_gpu=True)
    assert live_pair_seconds(side, side, together=True, on_gpu=True, error=error) == usual + more
