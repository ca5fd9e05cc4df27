"""The guard on real scripts: every change that falsifies one is rejected, no sound change is."""

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

OF_THE_BAR = (
    "scored: wrong_outputs", "scored: low_precision_forward", "scored: cpu_threads",
    "forecast: wrong_outputs", "forecast: same_outputs", "forecast: autocast",
    "detected: wrong_outputs=other integers", "embedded: wrong_forward=dropout on",
    "evaluated: wrong_outputs", "evaluated: evaluation_fusion",
)  # fmt: skip
"""Words of `guard_error_rates.py --only`: a few cases of each kind, the rest takes minutes."""


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


@pytest.mark.slow
def test_wrong_outputs_are_rejected_and_those_that_only_round_otherwise_are_kept(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    words = ("--bar", "--quick", "--only", *OF_THE_BAR)
    rows = once(tmp_path_factory, "guard_bar", lambda folder: guard_table(folder, *words))
    scripts = {row["name"].partition(":")[0] for row in rows if row["broken"]}
    assert scripts == {"scored", "forecast", "detected", "embedded", "evaluated"}
    assert {row["knobs"][0] for row in rows if not row["broken"]} >= {
        "low_precision_forward",
        "same_outputs",
    }
    wrong = [row for row in rows if row["rejected"] is not row["broken"]]
    assert [(row["name"], row["reasons"]) for row in wrong] == []
