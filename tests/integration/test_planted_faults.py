"""A planted fault is the first finding, with the line; the script without it has no warning.

The faults are far larger than the thresholds, so that they stand out on a busy machine too. One
thread computes: more of them wait for each other there.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpurun.records.finding import CRITICAL, WARNING
from tests.conftest import REPOSITORY, Gpurun

pytestmark = pytest.mark.forked

PLANTED = REPOSITORY / "tests" / "data" / "planted"


def findings_of(
    gpurun: Gpurun, folder: Path, script: str, *args: str, flags: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    document = folder / "profile.json"
    flags = ("--stop", "--quiet", "--json", str(document), *flags)
    done = gpurun("profile", *flags, str(PLANTED / f"{script}.py"), *args, cwd=folder)
    assert done.returncode == 0, done.stderr
    findings: list[dict[str, Any]] = json.loads(document.read_text())["findings"]
    return findings


def figures_of(finding: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in finding["evidence"]}


@pytest.mark.parametrize(
    ("script", "kind", "line", "wrong_cause", "text"),
    [
        ("slow_storage", "data_loading", "time.sleep", "computing", "mostly idle"),
        pytest.param(
            *("heavy_transform", "data_loading", "np.sort", "idle", "waits for data"),
            marks=pytest.mark.slow,
        ),
        ("own_queue", "data_loading", r"batches\.get", "computing", "whatever fills that queue"),
        ("listed_batches", "data_loading", r"sum\(", "idle", "the sampler takes long"),
        pytest.param(
            *("python_bookkeeping", "host_bound", "value|other|counts", None, "in count_in_python"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("step_logging", "host_bound", r"file\.|open\(", None, "writes or logs in each step"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_planted_fault_is_the_first_finding_with_its_line(
    tmp_path: Path,
    gpurun: Gpurun,
    script: str,
    kind: str,
    line: str,
    wrong_cause: str | None,
    text: str,
) -> None:
    finding = findings_of(gpurun, tmp_path, script)[0]
    assert finding["type"] == kind
    assert finding["severity"] > WARNING
    assert text in finding["description"]
    place = finding["location"]
    assert Path(place["file"]).name == f"{script}.py"
    source = (PLANTED / f"{script}.py").read_text().splitlines()
    assert re.search(line, source[place["line"] - 1])
    assert wrong_cause is None or figures_of(finding)["cause"] != wrong_cause
    assert finding["gain_upper_bound"] > 1


@pytest.mark.slow  # quick twin: unit/test_runtime_worker_samples.py
def test_workers_that_sleep_are_named_with_their_line(tmp_path: Path, gpurun: Gpurun) -> None:
    """Also of a script that is stopped, whose workers are killed. Its small model waits for them on
    any machine."""
    words = ("--workers", "2", "--width", "64")
    finding = findings_of(gpurun, tmp_path, "slow_storage", *words)[0]
    assert finding["type"] == "data_loading"
    assert finding["description"].endswith("sleeps or waits in Records.fetch")
    source = (PLANTED / "slow_storage.py").read_text().splitlines()
    assert "time.sleep" in source[finding["location"]["line"] - 1]


@pytest.mark.parametrize(
    "script",
    [
        "slow_storage",
        pytest.param("own_queue", marks=pytest.mark.slow),
        pytest.param("listed_batches", marks=pytest.mark.slow),
        pytest.param("python_bookkeeping", marks=pytest.mark.slow),
        pytest.param("heavy_transform", marks=pytest.mark.slow),
        pytest.param("step_logging", marks=pytest.mark.slow),
    ],
)
def test_the_same_script_without_its_fault_has_no_warning(
    tmp_path: Path, gpurun: Gpurun, script: str
) -> None:
    found = findings_of(gpurun, tmp_path, script, "--clean")
    assert [f for f in found if f["severity"] > WARNING] == []


@pytest.mark.slow  # quick twin: unit/test_recorded_profiles.py
def test_the_rank_that_works_longer_is_named_and_how_much(tmp_path: Path, gpurun: Gpurun) -> None:
    """Two ranks on busy cores are never quite equal: the clean twin is compared, not judged."""
    ranks = ("--nproc-per-node", "2")
    uneven, even = (
        findings_of(gpurun, tmp_path, "uneven_ranks", *clean, flags=ranks)
        for clean in ((), ("--clean",))
    )
    assert uneven[0]["type"] == "load_imbalance"
    assert uneven[0]["severity"] > CRITICAL
    assert figures_of(uneven[0])["slowest_rank"] == 1
    noise = [figures_of(f)["imbalance"] - 1 for f in even if f["type"] == "load_imbalance"]
    assert figures_of(uneven[0])["imbalance"] - 1 > 2 * max(noise, default=0.0)
