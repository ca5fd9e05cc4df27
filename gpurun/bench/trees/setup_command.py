"""The setup command of a benchmark (`pip install -e .`, `make`), run on one side."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from gpurun.errors import ExitCode, GpurunError
from gpurun.launch.exit_code import exit_code_of
from gpurun.records.script_arguments import masked_text

LAST_LINES = 3
"""Lines of its output that a message repeats: about what fits on a screen's line."""
GUARDED = (
    "exec 3<&0 </dev/null; { read -r word <&3 || kill -s KILL 0; } & "
    '/bin/sh -c "$0" 3<&-; code=$?; kill $!; exit $code'
)
"""Runs $0 beside a process that kills the whole group once our end of its standard input closes.

If gpurun is killed, the kernel would tell the shell alone, and not what the shell has started."""


def run_setup(
    command: str, side: str, folder: Path, environment: Mapping[str, str], logs: Path
) -> None:
    """Run `command` by the shell in `folder`, its output to `setup-<side>.log` in `logs`.

    `GpurunError` tells the last lines of one that fails: a commit that does not build. If gpurun is
    interrupted or killed, the command ends with all processes that it started.
    """
    log = logs / f"setup-{side}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    reader, writer = os.pipe()
    with (
        open(writer, "wb") as alive,
        open(reader, "rb") as stdin,
        log.open("wb") as output,
        subprocess.Popen(
            ["/bin/sh", "-c", GUARDED, command],
            cwd=folder,
            env=dict(environment),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            code = exit_code_of(child.wait())
        finally:
            alive.close()
    if code:
        with log.open(encoding="utf-8", errors="replace") as lines:
            last = deque((" ".join(line.split()) for line in lines if line.strip()), LAST_LINES)
        words = " | ".join(last) if last else "it wrote nothing"
        what = f"setup failed on the {side} side: {command!r} ended with {code}: {words}"
        what = masked_text(what, command.split())
        raise GpurunError(what, f"its whole output is in {log}", ExitCode.BENCHMARK_FAILED)
