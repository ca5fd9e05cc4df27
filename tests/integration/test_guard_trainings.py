"""The loss guard on real trainings: every broken one is rejected, no sound change is.

The trials are forked by a process of its own (`scripts/guard_error_rates.py`), because only one
that has imported torch and not used it may be forked; pytest has used it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
NAMED = {
    "half_precision_overflow", "stale_buffer", "shuffled_labels", "doubled_rate",
    "dropped_gradient", "frozen_average", "wrong_reduction", "skipped_step", "half_data",
    "sometimes_nan",
}  # fmt: skip
"""What a guard must catch whatever else it does."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Each case judged once."""
    path = tmp_path_factory.mktemp("guard") / "table.json"
    script = REPOSITORY / "scripts" / "guard_error_rates.py"
    done = subprocess.run(
        [sys.executable, str(script), "--quick", "--repeats", "1", "--json", str(path)],
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert path.exists(), done.stderr.decode()
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


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
