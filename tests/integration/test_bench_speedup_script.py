"""The benchmark against hand-tuned scripts runs through where there is no GPU, in tiny sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY

BENCH = REPOSITORY / "scripts" / "bench_speedup.py"


def bench(folder: Path, environment: dict[str, str], *flags: str) -> tuple[str, Any]:
    """What it printed and wrote for the tiny GPT, one launch a side."""
    done = subprocess.run(
        [
            sys.executable, BENCH, "--tiny", "--only", "mingpt", "--rounds", "1", "--seconds", "1",
            "--work", folder, "--json", folder / "found.json", *flags,
        ],
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = json.loads((folder / "found.json").read_text())["found"]
    return done.stdout, found


def rate(found: Any, side: str) -> float:
    (launch,) = found["launches"][side]
    assert isinstance(launch["samples_per_second"], float)
    return launch["samples_per_second"]


@pytest.mark.slow
def test_it_tunes_and_sets_the_script_against_the_one_by_hand(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    printed, found = bench(tmp_path, clean_environment, "--budget", "30s")
    assert found["verdict"] in ("faster", "no_gain", "inconclusive")
    by_hand = found["ratios"]["hand-tuned / as written"]
    assert by_hand["value"] == rate(found, "hand-tuned") / rate(found, "as written")
    row = printed.strip().splitlines()[-1]
    assert row.startswith("| mingpt |")
    assert ("chosen" in found["launches"]) is (found["verdict"] == "faster")


@pytest.mark.slow
def test_a_tuning_that_is_there_is_taken_and_both_finalists_are_launched(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    knobs = {"fused_optimizer": "fused"}
    batch = {"batch_size": 8, "from": 4, "via": "--batch-size", "learning_rate": "sqrt"}
    larger = {**knobs, "batch_size": batch}
    finalist = {"knobs": knobs, "samples_per_second": 200.0}
    tuning = {
        "verdict": "faster",
        "tuning_seconds": 61.0,
        "baseline": {"samples_per_second": 100.0},
        "chosen": finalist,
        "larger_batch": {**finalist, "knobs": larger, "batch_size": 8, "guard": None},
    }
    (tmp_path / "mingpt").mkdir()
    (tmp_path / "mingpt" / "tuning.json").write_text(json.dumps(tuning))
    (tmp_path / "mingpt" / "settings.json").write_text(json.dumps({"settings": knobs}))
    printed, found = bench(tmp_path, clean_environment)
    assert "tuning," not in printed
    sides = ["as written", "chosen", "chosen, training too", "hand-tuned"]
    assert list(found["launches"]) == sides
    assert all(rate(found, side) > 0 for side in sides)
    assert found["launches"]["chosen, training too"][0]["not_applied"] == []
    assert "| 1 min 01 s |" in printed
    result = json.loads((tmp_path / "mingpt" / "result.json").read_text())
    assert "hand_tuned" in result["command"][0], "the last turn of an odd round"


def test_what_the_time_did_not_suffice_for_is_said(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    printed, found = bench(tmp_path, clean_environment, "--limit", "1s")
    assert "mingpt: the time is up in round 1, before as written" in printed
    assert found["launches"]["as written"] == [None]
    assert "| mingpt | not measured |" in printed
