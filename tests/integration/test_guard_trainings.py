"""The loss guard on real trainings: every broken one is rejected, no sound change is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.guard_tables import guard_table
from tests.once import once

NAMED = {
    "half_precision_overflow", "stale_buffer", "shuffled_labels", "doubled_rate",
    "dropped_gradient", "frozen_average", "wrong_reduction", "skipped_step", "half_data",
    "sometimes_nan",
}  # fmt: skip
"""What a guard must catch whatever else it does."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Each case judged once."""
    return once(tmp_path_factory, "guard", lambda folder: guard_table(folder, "--quick"))


@pytest.fixture(scope="module")
def of_devices(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The mistakes that GPUs invite, made without one."""
    words = ("--device", "cpu", "--quick")
    return once(tmp_path_factory, "guard_of_devices", lambda folder: guard_table(folder, *words))


@pytest.mark.slow
def test_broken_trainings_are_rejected(table: list[dict[str, Any]]) -> None:
    broken = [row for row in table if row["broken"]]
    assert {row["knobs"][0] for row in broken} >= NAMED
    assert [row["name"] for row in broken if not row["rejected"]] == []


@pytest.mark.slow
def test_sound_changes_are_not_rejected(table: list[dict[str, Any]]) -> None:
    sound = [row for row in table if not row["broken"]]
    assert len({row["knobs"][0] for row in sound}) >= 10
    assert [(row["name"], row["reasons"]) for row in sound if row["rejected"]] == []


@pytest.mark.slow
def test_the_mistakes_that_gpus_invite_are_rejected_and_nothing_else(
    of_devices: list[dict[str, Any]],
) -> None:
    planted = {row["knobs"][0] for row in of_devices if row["broken"]}
    assert planted == {"half_precision", "device_buffers", "memory_order", "captured_graph"}
    assert planted < {row["knobs"][0] for row in of_devices if not row["broken"]}
    wrong = [row for row in of_devices if row["rejected"] is not row["broken"]]
    assert [(row["name"], row["reasons"]) for row in wrong] == []
