"""`--tensorboard`: events of real and recorded runs, read back by TensorBoard's own reader."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Gpurun
from tests.integration.launched import alive, start, wait_for

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gpurun.report.live.tensorboard_events import follow

pytestmark = pytest.mark.forked

H200 = REPOSITORY / "tests" / "data" / "h200_slow_vision" / "as_written"
TRAIN = """
import os, pathlib, time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
data = torch.utils.data.TensorDataset(torch.randn(1600, 8))
loader = torch.utils.data.DataLoader(data, batch_size=16)
for epoch in range(4):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)
while pathlib.Path("wait").exists():
    time.sleep(0.05)
"""
Points = dict[str, list[tuple[int, float]]]


def read(folder: Path) -> Points:
    """(step, value) of each tag."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]
    }


def run_name(folder: Path) -> str:
    (run,) = (folder / ".gpurun" / "runs").iterdir()
    return run.name


def test_a_run_leaves_its_curves(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "absl.py").write_text("raise RuntimeError('not the package of that name')")
    done = gpurun("--tensorboard", "boards/mine", "train.py")
    assert done.returncode == 0, done.stderr.decode()
    assert b"tensorboard" not in done.stderr
    points = read(tmp_path / "boards" / "mine" / run_name(tmp_path))
    names = {"Loss/train", "Learning_Rate", "Time/batch", "Throughput/samples_per_sec"}
    assert set(points) == names
    last_step, rate = points["Throughput/samples_per_sec"][-1]
    assert last_step == 400
    assert rate * points["Time/batch"][-1][1] == pytest.approx(16, rel=1e-3)
    assert {value for _, value in points["Learning_Rate"]} == {0.25}
    steps = [step for step, _ in points["Loss/train"]]
    assert steps == sorted(set(steps))
    assert all(math.isfinite(value) for _, value in points["Loss/train"])


def test_events_come_while_the_script_runs(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "wait").touch()
    launcher = start(tmp_path, clean_environment, "--tensorboard", "tb", "train.py")
    try:
        events = tmp_path / "tb"
        assert wait_for(lambda: any(read(f) for f in events.glob("*")))
        (tmp_path / "wait").unlink()
        assert launcher.wait(120) == 0
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)


def test_the_writer_ends_with_a_killed_launcher(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "wait").touch()
    launcher = start(tmp_path, clean_environment, "--tensorboard", "tb", "train.py")

    def children() -> list[int]:
        listed = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        return [int(word) for word in listed.read_text().split()]

    assert wait_for(lambda: len(children()) == 3)  # the script, its bystander, the writer
    processes = children()
    launcher.kill()
    launcher.wait()
    assert wait_for(lambda: not any(alive(pid) for pid in processes), 60)


@pytest.mark.slow
def test_ranks_have_folders_of_their_own(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    words = ("--nproc-per-node=2", "--tensorboard=tb", "train.py")
    done = gpurun(*words, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr.decode()
    folder = tmp_path / "tb" / run_name(tmp_path)
    assert {path.name for path in folder.iterdir()} == {"rank0", "rank1"}
    assert [read(folder / rank)["Loss/train"][-1][0] for rank in ("rank0", "rank1")] == [400] * 2


def test_a_recorded_h200_has_its_gpu_series(tmp_path: Path) -> None:
    end, write = os.pipe()
    os.close(write)
    follow(H200, tmp_path, end)
    os.close(end)
    points = read(tmp_path)
    gpu = {tag: values[-1][1] for tag, values in points.items() if tag.startswith("GPU/")}
    assert gpu["GPU/power_watts"] == 125.5
    assert gpu["GPU/temperature"] == 37
    assert gpu["GPU/memory_used_gb"] == pytest.approx(1.563164672)
    assert gpu["GPU/utilization"] == pytest.approx(0.151, abs=1e-3)
    assert points["Throughput/samples_per_sec"][-1][1] == pytest.approx(325, rel=0.1)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, in_process: Gpurun) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')")
    (tmp_path / "file").touch()
    done = in_process("--tensorboard", "file", "train.py")
    assert done.returncode == 2
    assert b"--tensorboard: file cannot be made" in done.stderr
    assert not (tmp_path / "started").exists()


def test_without_tensorboard_the_flag_is_refused(
    tmp_path: Path, in_process: Gpurun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpurun.report.live.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text("open('started', 'w')")
    done = in_process("--tensorboard", "tb", "train.py")
    assert done.returncode == 2
    assert b"needs the package tensorboard" in done.stderr
    assert not (tmp_path / "started").exists()
    assert not (tmp_path / "tb").exists()


def test_events_that_cannot_be_written_are_told(tmp_path: Path, gpurun: Gpurun) -> None:
    broken = tmp_path / "broken" / "tensorboard"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no protobuf')")
    (tmp_path / "train.py").write_text(TRAIN)
    path = f"{broken.parent}:{REPOSITORY}"
    done = gpurun("--tensorboard", "tb", "train.py", env={"PYTHONPATH": path})
    assert done.returncode == 0
    assert b"--tensorboard: events are missing: ImportError: no protobuf\n" in done.stderr


@pytest.mark.parametrize("flag", ["--prometheus=9400", "--tensorboard=tb"])
@pytest.mark.parametrize("mode", [("--tune-only",), ("--scale", "1,2")], ids=str)
def test_modes_that_train_nothing_refuse_the_flags(
    flag: str, mode: tuple[str, ...], tmp_path: Path, in_process: Gpurun
) -> None:
    (tmp_path / "train.py").touch()
    done = in_process(*mode, flag, "train.py")
    assert done.returncode == 2
    assert f"gpurun: {flag.partition('=')[0]} is " in done.stderr.decode()
