"""`gpurun doctor` names what is there, what is missing and what that costs."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from gpurun.doctor import driver_probe, software_checks, system_checks
from gpurun.doctor.driver_probe import NvmlProbe, ProbedMachine, TorchProbe
from gpurun.records.codec import from_json
from gpurun.records.command_reports import Check, DoctorReport, State
from tests.conftest import Gpurun

H200 = "NVIDIA H200"
CUDA = TorchProbe("2.11.0+cu130", "13.0", 1)
CPU = TorchProbe("2.13.0+cpu", None, 0)


def test_the_table_the_document_and_the_verdict_agree(gpurun: Gpurun, tmp_path: Path) -> None:
    done = gpurun("doctor", "--json", "doctor.json")
    assert done.returncode == 0, done.stderr.decode()
    report = from_json(DoctorReport, json.loads((tmp_path / "doctor.json").read_bytes()))
    shown = done.stderr.decode()
    for check in report.checks:
        assert check.what in shown
        assert check.state.value in shown
        assert check.todo in shown
        absent = check.state in (State.LIMITED, State.MISSING)
        assert bool(check.cost) == absent, "every absence has a price"
    troubled = {State.LIMITED, State.MISSING} & {check.state for check in report.checks}
    assert report.verdict == ("limited" if troubled else "ok")
    assert shown.splitlines()[-1].startswith(f"verdict={report.verdict} exit=0")
    assert done.stdout == b""


def test_tools_that_gpurun_does_not_use_cost_nothing(gpurun: Gpurun, tmp_path: Path) -> None:
    def checks(path: Path) -> dict[str, Check]:
        done = gpurun("doctor", "--quiet", "--json", "-", env={"PATH": str(path)})
        report = from_json(DoctorReport, json.loads(done.stdout))
        return {check.what: check for check in report.checks}

    without = checks(tmp_path)
    for tool in ("dcgmi", "py-spy", "memray"):
        assert (without[tool].state, without[tool].cost) == (State.UNNEEDED, "")
        assert "gpurun" in without[tool].found
    (tmp_path / "py-spy").write_text("#!/bin/sh\n")
    (tmp_path / "py-spy").chmod(0o755)
    assert checks(tmp_path)["py-spy"].state is State.OK


OUTPUT = 'while [ "$1" != -o ]; do shift; done; '
"""Leaves the name of the report in $2, as nsys was asked for it."""


@pytest.mark.parametrize(
    ("does", "state", "found", "todo"),
    [
        (OUTPUT + "touch $2.nsys-rep", State.OK, "nsys", ""),
        (OUTPUT + "touch $2.qdstrm", State.LIMITED, "importer does not start", "libdw1"),
        ("echo not permitted >&2; exit 1", State.LIMITED, "no report: not permitted", "nsys"),
        ("exit 7", State.LIMITED, "it ended with code 7", "nsys status"),
    ],
)
def test_an_nsys_counts_as_working_only_if_it_writes_a_report(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    does: str,
    state: State,
    found: str,
    todo: str,
) -> None:
    (tmp_path / "nsys").write_text(f"#!/bin/sh\n{does}\n")
    (tmp_path / "nsys").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    check = software_checks.nsys_check(ProbedMachine(CUDA, NvmlProbe((H200,), True), (H200,)))
    assert check.state is state
    assert found in check.found
    assert todo in check.todo
    assert bool(check.cost) == (state is State.LIMITED)


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_the_real_nsys_works_here_or_says_why() -> None:
    check = software_checks.nsys_check(ProbedMachine(CPU, "no NVML", ()))
    assert check.state is State.OK or (check.found and check.todo)


def test_an_nsys_that_hangs_does_not_hang_the_doctor(tmp_path: Path) -> None:
    (tmp_path / "nsys").write_text("#!/bin/sh\nexec sleep 1000\n")
    (tmp_path / "nsys").chmod(0o755)
    why, todo = software_checks.nsys_obstacle(str(tmp_path / "nsys"), seconds=0.5)
    assert "no report within" in why
    assert todo


@pytest.mark.parametrize(
    ("torch", "gpus", "state"),
    [
        (TorchProbe("2.11.0+cu130", "13.0", 1, profiles_gpu=True), (H200,), State.OK),
        (CPU, (H200,), State.LIMITED),
        (CPU, (), State.OK),
        ("no torch", (), State.MISSING),
    ],
)
def test_torchs_profiler_is_judged_by_the_gpu_that_is_here(
    torch: TorchProbe | str, gpus: tuple[str, ...], state: State
) -> None:
    check = software_checks.torch_profiler_check(ProbedMachine(torch, "no NVML", gpus))
    assert check.state is state
    assert bool(check.todo) == (state is not State.OK)


def test_nvidias_profilers_are_missed_only_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for look in (software_checks.nsys_check, software_checks.ncu_check):
        missed = look(ProbedMachine(CUDA, NvmlProbe((H200,), True), (H200,)))
        assert missed.state is State.MISSING
        assert missed.cost
        assert missed.todo
        assert look(ProbedMachine(CPU, "no NVML", ())).state is State.UNNEEDED


def test_a_torch_that_cannot_be_imported_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_probe, "TORCH_PROGRAM", "import a_library_that_is_not_there")
    check = software_checks.torch_check(driver_probe.probe())
    assert check.state is State.MISSING
    assert "a_library_that_is_not_there" in check.found


def test_a_driver_that_hangs_does_not_hang_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = driver_probe.answer_of(NvmlProbe, "import time; time.sleep(1000)", seconds=0.5)
    assert isinstance(answer, str)
    assert "no answer" in answer


@pytest.mark.parametrize(
    ("torch", "state", "said"),
    [
        (CUDA, State.OK, ""),
        (CPU, State.LIMITED, "install torch's CUDA build"),
        (TorchProbe("2.11.0+cu130", "13.0", 0), State.LIMITED, "driver too old"),
        (TorchProbe("2.1.0+cu118", "11.8", 1), State.LIMITED, "older than 2.4"),
        ("ModuleNotFoundError: No module named 'torch'", State.MISSING, "do not run"),
    ],
)
def test_torch_is_judged_by_the_gpu_that_is_here(
    torch: TorchProbe | str, state: State, said: str
) -> None:
    check = software_checks.torch_check(ProbedMachine(torch, NvmlProbe((H200,), True), (H200,)))
    assert check.state is state
    assert said in f"{check.cost}; {check.todo}"


def test_a_cpu_build_of_torch_is_fine_where_there_is_no_gpu() -> None:
    assert software_checks.torch_check(ProbedMachine(CPU, "no NVML", ())).state is State.OK


def test_a_gpu_without_nvml_loses_its_figures_and_is_still_seen(tmp_path: Path) -> None:
    entry = tmp_path / "0000:18:00.0"
    entry.mkdir()
    (entry / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 0\n")
    gpus = driver_probe.driver_gpus(tmp_path)
    assert gpus == (H200,)
    machine = ProbedMachine(CUDA, "NVMLError_LibraryNotFound", gpus)
    assert software_checks.nvml_check(machine).state is State.MISSING
    assert software_checks.gpm_check(machine).state is State.LIMITED
    assert software_checks.gpu_check(machine).found == "1 × NVIDIA H200"


@pytest.mark.parametrize(
    ("parameters", "root", "state"),
    [
        ("RmProfilingAdminOnly: 1\n", False, State.LIMITED),
        ("RmProfilingAdminOnly: 1\n", True, State.OK),
        ("RmProfilingAdminOnly: 0\n", False, State.OK),
    ],
)
def test_counters_may_be_for_administrators_only(
    tmp_path: Path, parameters: str, root: bool, state: State
) -> None:
    file = tmp_path / "params"
    file.write_text(parameters)
    check = system_checks.counters_check(True, file, root)
    assert check.state is state
    assert ("NVreg_RestrictProfilingToAdminUsers" in check.todo) == (state is State.LIMITED)


def test_a_quota_below_the_machines_cores_is_said() -> None:
    assert system_checks.cores_check(2.5, 16).state is State.LIMITED
    for gpu, root, state in (
        (False, True, State.UNNEEDED),
        (True, True, State.OK),
        (True, False, State.UNNEEDED),
    ):
        assert system_checks.power_limit_check(gpu, root).state is state
    assert "nvidia-smi -pl" in system_checks.power_limit_check(True, True).found
    assert system_checks.cores_check(2.5, 16).found == "2.5 of 16"
    assert system_checks.cores_check(16, 16).state is State.OK


def test_a_container_with_little_shared_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(
        system_checks.shutil, "disk_usage", lambda path: Usage(64 * 2**20, 0, 64 * 2**20)
    )
    assert system_checks.shared_memory_check().state is State.LIMITED


def test_a_read_only_folder_keeps_its_records_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".gpurun").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    check = system_checks.records_check(tmp_path / "project", None)
    assert check.state is State.LIMITED
    assert check.found == str(tmp_path / "state" / "gpurun")


def test_counters_that_exist_and_are_refused_are_limited_with_the_drivers_words() -> None:
    refused = NvmlProbe((H200,), True, gpm_refused="Insufficient Permissions")
    check = software_checks.gpm_check(ProbedMachine(CUDA, refused, (H200,)))
    assert (check.state, check.found) == (State.LIMITED, "refused: Insufficient Permissions")


def test_a_gpu_in_slices_tells_less() -> None:
    check = software_checks.nvml_check(
        ProbedMachine(CUDA, NvmlProbe((H200,), False, sliced=1), (H200,))
    )
    assert (check.state, check.found) == (State.LIMITED, "1 device, 1 in MIG slices")


def test_the_probe_of_nvml_tells_refusals_and_slices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text(
        "from types import SimpleNamespace as N\n"
        "class NVMLError(Exception): pass\n"
        "def refuse(*_): raise NVMLError('Insufficient Permissions')\n"
        "nvmlInit = nvmlGpmSampleAlloc = nvmlGpmSampleFree = lambda *_: None\n"
        "nvmlDeviceGetCount = lambda: 2\n"
        "nvmlDeviceGetHandleByIndex = lambda index: index\n"
        "nvmlDeviceGetName = lambda handle: b'NVIDIA H100'\n"
        "nvmlGpmQueryDeviceSupport = lambda handle: N(isSupportedDevice=1)\n"
        "nvmlDeviceGetMigMode = lambda handle: [handle, 0]\n"
        "nvmlGpmSampleGet = refuse\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = driver_probe.answer_of(NvmlProbe, driver_probe.NVML_PROGRAM)
    assert answer == NvmlProbe(("NVIDIA H100",) * 2, True, "Insufficient Permissions", 1)
