"""Whichever process of a command is killed, nothing of it stays behind, and the next one works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "kill_random.py"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "tune"])
def test_nothing_is_left_of_a_killed_command(command: str) -> None:
    private = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if private.returncode:
        pytest.skip("mounts need a namespace of their own")
    words = [sys.executable, str(SCRIPT), "--kills", "4", "--seed", "3", "--only", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "4 kills, faults: 0" in done.stdout
