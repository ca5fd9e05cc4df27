"""Signals while tuning: the trials and their folders are gone, what was measured stays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import gone_within, processes_with, tree
from tests.integration.launched import DEADLINE_SECONDS, ORPHAN_SECONDS, start, wait_for
from tests.integration.tunings import report_of, training

ENDLESS = "import subprocess, sys\nsubprocess.Popen(['sleep', sys.argv[1]])\n" + training(
    5000, sleep=0.003
)
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"


@pytest.fixture
def marker() -> str:
    """A word that only the trials' child processes have in their command line."""
    return f"{600 + os.getpid() / 1e7 + time.monotonic() % 1:.9f}"


def scratch_of(processes: Iterable[int]) -> set[Path]:
    """Where the trials of these processes keep what they write: beside the user's files."""
    named = set()
    for pid in processes:
        with contextlib.suppress(OSError):  # it has ended since
            seen = Path(f"/proc/{pid}/mountinfo").read_text() + os.readlink(f"/proc/{pid}/cwd")
            named |= set(re.findall(r"gpurun-sandbox-\w+", seen))
    places = {Path("/var/tmp"), Path(tempfile.gettempdir())}
    return {place / name for place in places for name in named if (place / name).exists()}


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_tuning_and_keeps_what_was_measured(
    tmp_path: Path, clean_environment: dict[str, str], marker: str, number: int, code: int
) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    before = tree(tmp_path / "train.py")
    launcher = start(tmp_path, clean_environment, "--optimize", "train.py", marker)
    assert wait_for(lambda: bool(list(tmp_path.glob(".gpurun/runs/*/trials/02/events-*"))))
    scratch = scratch_of(processes_with(marker))
    assert scratch
    os.killpg(launcher.pid, number)  # as a terminal does
    os.killpg(launcher.pid, number)  # and again, by an impatient user
    out, err = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == code, err.decode()
    assert gone_within(marker, ORPHAN_SECONDS)
    assert wait_for(lambda: not any(path.exists() for path in scratch), ORPHAN_SECONDS)
    said = err.decode().splitlines()
    assert "gpurun: interrupted; gpurun keeps the figures so far" in said
    assert said[-1].startswith(f"verdict=interrupted exit={code}")
    assert b"Traceback" not in err
    assert out == b""
    report = report_of(tmp_path)
    assert report["verdict"] == "interrupted"
    assert [trial["purpose"] for trial in report["trials"]] == ["probe"]
    assert report["baseline"]["samples_per_second"] > 0
    assert report["statistically_significant"] is False
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", ".gpurun"}
    assert tree(tmp_path / "train.py") == before


def test_a_kill_of_the_launcher_leaves_no_trial_and_no_scratch_folder(
    tmp_path: Path, clean_environment: dict[str, str], marker: str
) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    launcher = start(tmp_path, clean_environment, "--optimize", "train.py", marker)
    assert wait_for(lambda: bool(scratch_of(processes_with(marker))))
    scratch = scratch_of(processes_with(marker))
    launcher.kill()
    launcher.wait()
    assert gone_within(marker, ORPHAN_SECONDS)
    assert wait_for(lambda: not any(path.exists() for path in scratch), ORPHAN_SECONDS)


@pytest.mark.slow  # quick twin: test_launch_process.py
def test_what_nohup_has_switched_off_does_not_interrupt(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(10, sleep=0.02))
    words = ("--optimize", "--tune-only", "train.py")
    launcher = start(tmp_path, clean_environment, *words, nohup=True)
    assert wait_for(lambda: bool(list(tmp_path.glob(".gpurun/runs/*/trials/01/events-*"))))
    os.killpg(launcher.pid, signal.SIGHUP)
    _, err = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert err.decode().splitlines()[-1].startswith("verdict=too_few_steps exit=5")


@pytest.mark.slow  # quick twin: SIGINT above
def test_ctrl_c_gives_the_terminal_back(
    tmp_path: Path, clean_environment: dict[str, str], marker: str
) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "gpurun", "--optimize", "train.py", marker],
        cwd=tmp_path,
        env={**clean_environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(ours, shown), daemon=True)
    reader.start()
    assert wait_for(lambda: bool(list(tmp_path.glob(".gpurun/runs/*/trials/02/events-*"))))
    os.write(ours, b"\x03")
    assert launcher.wait(timeout=DEADLINE_SECONDS) == 130
    assert termios.tcgetattr(theirs) == before
    os.close(theirs)
    reader.join(timeout=DEADLINE_SECONDS)
    text = b"".join(shown)
    assert text.rfind(HIDE_CURSOR) < text.rfind(SHOW_CURSOR) or HIDE_CURSOR not in text
    assert b"verdict=interrupted exit=130" in text
    assert gone_within(marker, ORPHAN_SECONDS)


def read_all(descriptor: int, shown: list[bytes]) -> None:
    """Keep what a terminal shows until nobody writes to it any more."""
    try:
        while block := os.read(descriptor, 65536):
            shown.append(block)
    except OSError:
        pass  # nobody holds the other side
