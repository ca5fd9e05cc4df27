"""A script, and a launcher started in the background, for tests that send it signals."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE_SECONDS = 300
"""Only a safety net: a machine may stand still for seconds, and share its cores."""
ORPHAN_SECONDS = 60
"""Far less than what tests start lives by itself."""
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def write(folder: Path, source: str, name: str = "script.py") -> str:
    """A script in the folder; its name."""
    (folder / name).write_text(source)
    return name


def obey_permissions() -> None:
    """Before exec: without these capabilities root may read and write only where modes say so."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def start(
    cwd: Path, environment: dict[str, str], *words: str, nohup: bool = False
) -> subprocess.Popen[bytes]:
    """`python -m gpurun words...` in a session of its own.

    A hang-up counts there unless `nohup`, whether or not the tests themselves run under nohup.
    """
    hang_up = signal.SIG_IGN if nohup else signal.SIG_DFL
    return subprocess.Popen(
        [sys.executable, "-m", "gpurun", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hang_up),
    )


def wait_for(condition: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def pids(folder: Path, count: int, seconds: float = DEADLINE_SECONDS) -> list[int]:
    """The process ids that `count` processes of a script left as names `*.pid` in a folder."""
    assert wait_for(lambda: len(list(folder.glob("*.pid"))) >= count, seconds)
    return [int(path.stem) for path in folder.glob("*.pid")]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie that nobody has reaped does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def assert_nothing_outlives_a_kill(launcher: subprocess.Popen[bytes], processes: list[int]) -> None:
    """SIGKILL the launcher: every one of the processes must be gone soon after."""
    assert all(alive(pid) for pid in processes)
    launcher.kill()
    launcher.wait()  # not communicate(): an orphan would hold the pipes open
    try:
        assert wait_for(lambda: not any(alive(pid) for pid in processes), ORPHAN_SECONDS)
    finally:
        for pid in processes:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
