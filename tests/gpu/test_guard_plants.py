"""The loss guard on a GPU: trainings broken as only a GPU breaks them, beside their sound twins.

The trials are launched by `scripts/guard_error_rates.py --device cuda`, a process of its own that
runs as many at a time as there are cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.guard_tables import guard_table

pytestmark = pytest.mark.gpu

PLANTED = {
    ("half_precision", "overflows"), ("half_precision", "zeroed"), ("half_precision", "underflows"),
    ("device_buffers", "one"), ("device_buffers", "one later"), ("device_buffers", "late"),
    ("memory_order", "images"), ("memory_order", "weights"), ("memory_order", "activations"),
    ("captured_graph", "stale"), ("captured_graph", "stale later"),
}  # fmt: skip
SOUND = {
    ("half_precision", "fits"), ("device_buffers", "two"), ("memory_order", "right"),
    ("captured_graph", "copied"), ("autocast", "fp16"), ("autocast", "bf16"),
    ("device_prefetch", "ahead"), ("channels_last", True), ("compile", "reduce-overhead"),
}  # fmt: skip


def turned(rows: list[dict[str, Any]]) -> set[tuple[str, Any]]:
    return {(knob, value) for row in rows for knob, value in row["settings"].items()}


def test_trainings_broken_on_the_gpu_are_rejected_and_their_sound_twins_are_not(
    tmp_path: Path,
) -> None:
    table = guard_table(tmp_path, "--device", "cuda")
    broken, sound = ([row for row in table if row["broken"] is wrong] for wrong in (True, False))
    assert turned(broken) >= PLANTED
    assert turned(sound) >= SOUND
    assert [row["name"] for row in broken if not row["rejected"]] == []
    assert [(row["name"], row["reasons"]) for row in sound if row["rejected"]] == []
