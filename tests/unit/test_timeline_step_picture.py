"""The picture of a step: its rows, and how much of each piece is filled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.records.profile_figures import PictureRow
from gpurun.timeline.model import Group, Phase, Timeline
from gpurun.timeline.step_picture import CELLS, step_picture
from tests.unit.timelines import copy, kernel, launch, phase, steps, sync, timeline

STEP = CELLS * 10
"""Microseconds: a cell has ten."""


def rows(of: Timeline) -> dict[str, PictureRow]:
    picture = step_picture(of)
    assert picture is not None
    return {row.name: row for row in picture.rows}


def test_each_row_has_its_events_from_the_steps_begin() -> None:
    found = rows(
        timeline(
            STEP,
            [
                kernel(100, 200, group=Group.MATMUL),
                kernel(200, 300),
                kernel(400, 500, "nccl", Group.COMMUNICATION),
            ],
            steps=steps(1, STEP),
            ranges=[*steps(1, STEP), phase(Phase.FORWARD, 0, 1200)],
            copies=[copy(0, 60)],
            runtime_calls=[launch(20, 1, until=30), sync(600, 1200)],
        )
    )
    assert found["parts of the step"].spans == ((0.0, 1.2, "forward", 1.0),)
    assert found["parts of the step"].busy_share == pytest.approx(0.5)
    assert found["kernels of stream 7"].spans == (
        (0.1, 0.2, "products", 1.0),
        (0.2, 0.3, "other", 1.0),
    )
    assert found["collectives"].spans == ((0.4, 0.5, "collectives", 1.0),)
    assert found["copies"].spans == ((0.0, 0.06, "copies", 1.0),)
    assert found["calls of CUDA"].spans == ((0.02, 0.03, "launches", 1.0), (0.6, 1.2, "waits", 1.0))


def test_short_kernels_fill_only_a_part_of_their_piece() -> None:
    """Else hundreds of them would look like a device at work."""
    tiny = [kernel(at, at + 1) for at in range(0, STEP, 10)]
    (span,) = rows(timeline(STEP, tiny, steps=steps(1, STEP)))["kernels of stream 7"].spans
    assert span == (0.0, pytest.approx(STEP / 1000), "other", 0.25)


def test_the_step_of_median_length_is_shown() -> None:
    marked = [phase(Phase.STEP, *ends) for ends in ((0, 100), (100, 1000), (1000, 1300))]
    picture = step_picture(timeline(1300, [kernel(1000, 1150)], steps=marked))
    assert picture is not None
    assert (picture.step, picture.length_ms) == (3, 0.3)
    assert picture.rows[0].busy_share == pytest.approx(0.5)


def test_events_beyond_the_step_are_cut_at_its_ends() -> None:
    found = rows(timeline(STEP, [kernel(-500, STEP + 500)], steps=steps(1, STEP)))
    assert found["kernels of stream 7"].busy_share == 1


def test_without_a_step_there_is_no_picture() -> None:
    assert step_picture(timeline(100, [kernel(0, 10)])) is None
    nothing = timeline(100, steps=[phase(Phase.STEP, 5, 5)])
    assert step_picture(nothing) is None
    assert rows(replace(nothing, steps=steps(1, 100))) == {}
