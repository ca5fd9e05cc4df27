"""The process beside a run that writes its TensorBoard events, seen from the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.report.live.required_package import require

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
