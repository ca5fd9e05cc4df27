"""`gpurun monitor` for scripts: one look as text and as JSON; what its flags refuse."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gpurun.launch.launch_command import write_spec
from gpurun.measure.machine_state import MachineState
from gpurun.measure.nvml import DeviceSampler
from gpurun.measure.resource_use import read_samples
from gpurun.records.codec import from_json
from gpurun.records.monitor import MonitorReport
from gpurun.records.samples import DeviceSample
from gpurun.records.spec import RunSpec
from tests.conftest import REPOSITORY, Gpurun
from tests.unit.recorded_runs import row, steps, write_events

H200 = REPOSITORY / "tests" / "data" / "h200_slow_vision" / "as_written"
UUID = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A run whose launcher is this process, which has taken forty steps."""
    folder = tmp_path / ".gpurun" / "runs" / "20260102-030405-abcdef"
    folder.mkdir(parents=True)
    write_spec(RunSpec(str(folder), os.getpid()))
    write_events(folder, [steps([row(1000 + 10 * i, loss=0.5) for i in range(40)])])
    return folder


class RecordedGpus(DeviceSampler):
    """NVML as an H200 answered, sample by sample; two processes compute there."""

    def __init__(self) -> None:
        self.samples = iter(read_samples(H200).device[-20:])

    def sample(self, own_pids: set[int]) -> list[DeviceSample]:
        return [next(self.samples)]

    def processes(self) -> dict[str, list[tuple[int, int | None]]]:
        return {UUID: [(os.getpid(), 2**30), (2**22 + 1, None)]}

    def close(self) -> None:
        pass


def test_one_look_without_a_gpu_shows_the_host_and_trainings(
    running: Path, in_process: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = in_process("monitor", "--once")
    told = done.stderr.decode()
    assert done.returncode == 0
    assert running.name in told
    assert "10.0 ms" in told
    assert "cores; memory:" in told
    assert told.endswith("verdict=ok exit=0\n")
    assert done.stdout == b""


def test_the_document_is_a_report(running: Path, in_process: Gpurun, tmp_path: Path) -> None:
    assert in_process("monitor", "--json", "-", "--quiet").returncode == 0
    for words in (("--json", "-"), ("--json", "state.json")):
        done = in_process("monitor", *words)
        text = done.stdout.decode() or (tmp_path / "state.json").read_text()
        report = from_json(MonitorReport, json.loads(text))
        (rank,) = report.trainings[0].ranks
        assert (rank.steps, rank.loss) == (40, 0.5)
        assert report.host is not None
        assert 0 < report.host.memory_used_bytes < report.host.memory_total_bytes


def test_a_gpu_is_shown_with_its_processes_and_a_hint(
    running: Path, in_process: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpurun.measure.machine_state.DeviceSampler", RecordedGpus)
    told = in_process("monitor", "--once").stderr.decode()
    assert "NVIDIA H200" in told
    assert f"{os.getpid()} " in told
    assert "(hidden)" in told
    assert "hint: GPU 0 is" in told
    assert "room for a larger batch" in told


def test_finished_runs_are_not_trainings(running: Path, in_process: Gpurun) -> None:
    (running / "result.json").write_text("{}")
    told = in_process("monitor", "--once").stderr.decode()
    assert "no training runs under gpurun in this folder" in told


def test_use_of_the_processor_is_that_between_looks(tmp_path: Path) -> None:
    machine = MachineState(tmp_path)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    host = machine.look().host
    machine.close()
    assert host is not None
    assert host.cpu_percent is not None
    assert 0 < host.cpu_percent <= 100


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train.py"], "monitor takes no script"),
        (["--once", "--prometheus", "0"], "--once is not for --prometheus"),
        (["--prometheus", "x"], "is no port"),
        (["--prometheus", "70000"], "is no port"),
        (["--prometheus", ":80"], "is no port"),
        (["--json", "no/such/x.json"], "there is no folder"),
        (["--onec"], "did you mean --once?"),
    ],
)
def test_bad_flags_are_one_line(words: list[str], told: str, in_process: Gpurun) -> None:
    done = in_process("monitor", *words)
    assert done.returncode == 2
    assert told in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 3
