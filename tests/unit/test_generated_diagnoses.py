"""The page of diagnoses says what the code does."""

from __future__ import annotations

import subprocess
import sys

from gpurun.diagnoses.diagnosis_report import all_diagnoses
from gpurun.diagnoses.kinds.machine_settings import EFFECTS
from gpurun.records.switches import HURTFUL, hurtful_switches
from scripts.generate_diagnoses import END, PAGE, page
from tests.conftest import REPOSITORY


def test_the_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_diagnoses.py", "--check"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_stale_page_is_seen() -> None:
    text = PAGE.read_text(encoding="utf-8")
    stale = text.replace(END.format("thresholds"), "an old row\n" + END.format("thresholds"))
    assert page(stale) == text


def test_each_kind_begins_with_a_whole_sentence() -> None:
    for diagnosis in all_diagnoses():
        first, _, rest = diagnosis.documentation.partition("\n")
        assert first.endswith("."), diagnosis.type
        assert rest.startswith("\n") or not rest, diagnosis.type


def test_each_variable_that_is_recorded_has_its_effect_told() -> None:
    assert EFFECTS.keys() == HURTFUL.keys()


def test_only_values_that_hurt_are_named() -> None:
    environment = {
        "CUDA_LAUNCH_BLOCKING": "1",
        "NCCL_P2P_DISABLE": "0",
        "NVIDIA_TF32_OVERRIDE": "0",
        "OMP_NUM_THREADS": "8",
        "TORCH_DISTRIBUTED_DEBUG": "detail",
        "API_TOKEN": "hunter2",
    }
    assert set(hurtful_switches(environment)) == {
        "CUDA_LAUNCH_BLOCKING",
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_DISTRIBUTED_DEBUG",
    }
    assert hurtful_switches({}) == ()
