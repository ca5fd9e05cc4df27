"""A torch that is built without CUDA, on a machine with a GPU: one line says so everywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Gpurun
from tests.integration.tunings import lines, report_of, training

SAID = (
    "this torch is built without CUDA: training runs on the CPU although there is a GPU "
    "(NVIDIA H200)"
)
H200 = """
import sys
from tests.unit.test_measure_nvml import StandIn
sys.modules[__name__] = StandIn()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which NVML shows an H200, whatever torch there is."""
    import torch

    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch is built for GPUs")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "pynvml.py").write_text(H200)
    return {"PYTHONPATH": f"{tmp_path / 'driver'}:{REPOSITORY}"}


def test_a_plain_run_notes_it_and_has_no_figures_of_the_gpu(
    tmp_path: Path, gpurun: Gpurun, environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(120, sleep=0.004))
    done = gpurun("--json", "result.json", "train.py", env=environment)
    assert done.returncode == 0
    assert lines(done).count(f"gpurun: note: {SAID}") == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["devices"], result["gpu_utilization_percent"]) == ([], None)


@pytest.mark.slow
def test_tuning_says_it_before_it_tries_anything(
    tmp_path: Path, gpurun: Gpurun, environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(120, sleep=0.004))
    options = ("--optimize", "--tune-only", "--max-trials", "2")
    done = gpurun(*options, "train.py", env=environment, timeout=800)
    assert lines(done).count(f"gpurun: {SAID}") == 1
    assert report_of(tmp_path)["decisions"][0] == SAID


def test_the_doctor_says_it_with_what_to_do(gpurun: Gpurun, environment: dict[str, str]) -> None:
    done = gpurun("doctor", "--quiet", "--json", "-", env=environment)
    checks = {check["what"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["torch"]["state"] == "limited"
    assert checks["torch"]["cost"] == SAID
    assert checks["torch"]["todo"] == "install torch's CUDA build"
