"""Planted faults on a CPU, as recorded: shares are told as those of a run without profilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.diagnoses.api import share_without
from gpurun.measure.run_summary import read_records
from gpurun.records.finding import Finding
from tests.conftest import REPOSITORY
from tests.recordings import unpacked

RECORDED = REPOSITORY / "tests" / "data" / "cpu_profiles"


def first_finding(name: str, folder: Path) -> Finding:
    run = unpacked(name, folder, RECORDED)
    return diagnose_run(run, read_records(run)).findings[0]


@pytest.mark.parametrize(
    ("name", "share", "place", "told"),
    [
        ("clip_by_hand", 0.585, ("clip_each", 26), "in clip_each"),
        ("slow_len", 0.58, ("Folder.__len__", 23), "in Folder.__len__"),
        ("reward_process", 0.755, ("Reward.__call__", 28), "the main thread waits at"),
        ("checkpoints", 0.635, ("keep", 13), "in keep: it writes or logs every 10 steps"),
        ("slow_collate", 0.625, ("pad", 32), "is busy preparing batches, most of it in pad"),
    ],
)
def test_the_share_of_a_fault_is_within_a_tenth_of_what_it_takes_without_profilers(
    tmp_path: Path, name: str, share: float, place: tuple[str, int], told: str
) -> None:
    """Work and waits of each step and of each tenth; samples in `slow_len` came late by far."""
    finding = first_finding(name, tmp_path)
    assert share_without(finding.gain_upper_bound) == pytest.approx(share, rel=0.1)
    assert told in finding.description
    assert finding.location is not None
    assert (finding.location.function, finding.location.line) == place


def test_samples_of_worker_processes_name_what_the_loader_waits_for(tmp_path: Path) -> None:
    finding = first_finding("remote_pictures", tmp_path)
    assert finding.description.endswith("mostly idle: it sleeps or waits in Remote.read")
    assert finding.location is not None
    assert (finding.location.function, finding.location.line) == ("Remote.read", 23)
