"""The parts of a profiler. A file of this folder defines one class of them.

A profiler works inside the script's process (the runtime starts and stops it by the spec), around
its command line, or beside it in the launcher. It is summarised in the launcher.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from gpurun.errors import GpurunError
from gpurun.measure.run_events import ProcessLog
from gpurun.records.messages.profile_events import ProfileEvent
from gpurun.timeline.model import Timeline


class Profiler:
    """One source of a profile.

    `name`: its word of `--sources`. `title`: as people know it. `tool`: the program that it needs;
    one that needs none is on unless somebody chooses. `order`: of two sources that measured the
    same thing the lower one counts. `launches_again`: it needs a launch of its own (`after_run`),
    all others are recorded in the script's.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    tool: ClassVar[str | None] = None
    order: ClassVar[int] = 50
    launches_again: ClassVar[bool] = False

    def obstacle(self) -> GpurunError | None:
        """Why it cannot work on this machine; None where it can."""
        if self.tool is None or shutil.which(self.tool) is not None:
            return None
        todo = f"install {self.title} and put {self.tool} on PATH"
        return GpurunError(f"{self.tool} is not installed", todo)

    def command(self, command: Sequence[str], folder: Path) -> tuple[str, ...]:
        """The command line that runs `command` under this profiler, recording into `folder`."""
        return tuple(command)

    def after_run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        kernels: Sequence[str],
    ) -> bool:
        """Launch `command` again after the run, if it must; true where that recorded more.

        `environment`: that of the run. `kernels`: names of those that took longest, the longest
        first. `GpurunError` where the launch failed: the rest of the profile is whole.
        """
        return False

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """Its recording of one process's window; None if there is none."""
        return None

    def in_window(self, log: ProcessLog, window: ProfileEvent, **measured: Any) -> Timeline:
        """A timeline of what it measured in the window."""
        rank = log.process.rank
        return Timeline((self.name,), window.begin_ns, window.end_ns, rank=rank, **measured)
