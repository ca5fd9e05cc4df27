"""TensorBoard events of a run, written by a process of its own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.errors import GpurunError
from gpurun.measure.followed_run import FollowedRun
from gpurun.records.monitor import GpuState, MonitorReport, RankState
from gpurun.report.live import require

if TYPE_CHECKING:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter


PACKAGE = Path(__file__).resolve().parents[2]
WRITER = (
    f"import sys; sys.path[0] = {str(PACKAGE.parent)!r}; "
    "from gpurun.report.live.tensorboard_events import main; sys.exit(main(sys.argv[1:]))"
)
"""Without the current folder on its path: a module of the user's there is none of ours."""
END_SECONDS = 30
"""So long the last events may take after the end of the script."""


class TensorboardProcess:
    """Its standard input is the launcher's word to go on: at its end the process finishes."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "--tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GpurunError(
                f"--tensorboard: {folder} cannot be made: {error.strerror}", "name another folder"
            ) from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise GpurunError(f"--tensorboard: {folder} is not writable", "name another folder")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, run_dir: Path) -> int:
        """Write events of this run from now on; the process id."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run_dir), str(self._folder / run_dir.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the script
        )
        return self._process.pid

    def finish(self) -> str | None:
        """Have it write the last events and end; what went wrong."""
        if self._process is None:
            return None
        try:
            _, told = self._process.communicate(timeout=END_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
            return "--tensorboard: the last events are missing: gpurun did not wait for them longer"
        if self._process.returncode == 0:
            return None
        reason = told.decode(errors="replace").strip().splitlines() or ["no reason given"]
        return f"--tensorboard: events are missing: {reason[-1]}"


SHORTEST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
SHARE_OF_AGE = 0.01
"""The time between points grows with the run, as that between samples."""

NICENESS = 10
"""The script comes first."""


class EventFolders:
    """One folder, which TensorBoard calls a run; each rank of a job has its own, and so has each
    of several GPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[Path, EventFileWriter] = {}
        self._steps: dict[int, int] = {}
        """The latest step that was written, by process."""
        self._alone: int | None = None

    def write(self, report: MonitorReport) -> None:
        """Write one point of each figure, if a step was taken since the last ones."""
        for training in report.trainings:
            for rank in training.ranks:
                self._rank(rank, self._folder / self._name(rank))
            steps = max((rank.steps for rank in training.ranks), default=0)
            for gpu in report.gpus if training.ranks else ():
                own = f"gpu{gpu.gpu_id}" if len(report.gpus) > 1 else ""
                self._gpu(gpu, steps, self._folder / own)
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()

    def _name(self, rank: RankState) -> str:
        """The first process outside a job writes into the folder itself."""
        if rank.rank is not None:
            return f"rank{rank.rank}"
        self._alone = self._alone or rank.pid
        return "" if rank.pid == self._alone else f"process{rank.pid}"

    def _rank(self, rank: RankState, folder: Path) -> None:
        if self._steps.get(rank.pid) == rank.steps:
            return
        self._steps[rank.pid] = rank.steps
        figures = {
            "Loss/train": rank.loss,
            "Learning_Rate": rank.learning_rate,
            "Time/batch": rank.step_time_seconds,
            "Throughput/samples_per_sec": rank.samples_per_second,
        }
        self._scalars(folder, figures, rank.steps, rank.last_step_unix_seconds)

    def _gpu(self, gpu: GpuState, step: int, folder: Path) -> None:
        used = gpu.memory_used_bytes
        figures = {
            "GPU/utilization": gpu.gpu_utilization_percent,
            "GPU/memory_used_gb": None if used is None else used / 1e9,
            "GPU/power_watts": gpu.power_watts,
            "GPU/temperature": gpu.temperature_celsius,
        }
        self._scalars(folder, figures, step, time.time())

    def _scalars(
        self, folder: Path, figures: dict[str, float | int | None], step: int, when: float
    ) -> None:
        """Points that `EventAccumulator.Scalars` reads: simple values, not tensors."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer = self._writers.get(folder)
        if writer is None:
            writer = self._writers[folder] = EventFileWriter(str(folder))
        values = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in figures.items()
            if value is not None
        ]
        writer.add_event(Event(wall_time=when, step=step, summary=Summary(value=values)))


def follow(run_dir: Path, folder: Path, stop: int) -> None:
    """Write points until the file descriptor `stop` ends, and once more then."""
    run, events, began = FollowedRun(run_dir), EventFolders(folder), time.monotonic()
    while True:
        age = time.monotonic() - began
        wait = min(max(age * SHARE_OF_AGE, SHORTEST_SECONDS), LONGEST_SECONDS)
        ended = bool(select.select([stop], [], [], wait)[0])
        events.write(run.report())
        if ended:
            break
    events.close()


def main(folders: Sequence[str]) -> str | int:
    """Follow a run folder; the exit code, or the reason of a failure."""
    os.nice(NICENESS)
    try:
        follow(Path(folders[0]), Path(folders[1]), sys.stdin.fileno())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return 0
