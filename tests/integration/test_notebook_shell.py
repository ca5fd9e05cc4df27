"""`!gpurun train.py` in a notebook: a terminal whose cursor nobody moves, and an interrupt."""

from __future__ import annotations

import json
import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from tests.integration.launched import wait_for

TRAINING = """
import pathlib, sys, time, torch
x = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([x], lr=0.1)
for step in range(int(sys.argv[1])):
    x.square().sum().backward()
    optimizer.step()
    time.sleep(0.01)
    if step == 30:
        pathlib.Path("training").touch()
print("trained")
"""
NOTEBOOK = {"TERM": "xterm-color", "JPY_PARENT_PID": "1", "CLICOLOR": "1", "FORCE_COLOR": "1"}
"""What a kernel of Jupyter gives the commands of its cells."""


@pytest.fixture
def environment(tmp_path: Path, clean_environment: dict[str, str]) -> dict[str, str]:
    (tmp_path / "train.py").write_text(TRAINING)
    return {**clean_environment, **NOTEBOOK}


def cell(folder: Path, environment: dict[str, str], *words: str) -> tuple[int, int]:
    """gpurun in a terminal of its own: its process id, and the notebook's side of the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "gpurun", *words], environment)
    return pid, terminal


def ended(pid: int, terminal: int) -> tuple[int, list[str]]:
    """The exit code, and the lines that the notebook gets until then."""
    text = b""
    try:
        while chunk := os.read(terminal, 65536):
            text += chunk
    except OSError:  # it is closed
        pass
    os.close(terminal)
    assert b"\x1b" not in text, text
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, text.decode().replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(
    "flags",
    [
        ("--live",),
        pytest.param(("--optimize", "--max-trials", "1"), marks=pytest.mark.slow),
    ],
)
def test_a_cell_shows_plain_lines(
    tmp_path: Path, environment: dict[str, str], flags: tuple[str, ...]
) -> None:
    code, lines = ended(*cell(tmp_path, environment, *flags, "train.py", "200"))
    assert code == 0, lines
    assert lines[-1].startswith("verdict=")
    assert "trained" in lines


@pytest.mark.slow  # quick twin: Ctrl-C at a terminal, in test_launch_process.py
def test_an_interrupted_cell_ends_the_training_with_its_record(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Jupyter writes Ctrl-C to the terminal, which sends SIGINT to the whole group."""
    pid, terminal = cell(tmp_path, environment, "train.py", "100000")
    assert wait_for((tmp_path / "training").exists)
    os.write(terminal, b"\x03")
    code, lines = ended(pid, terminal)
    assert code == 128 + signal.SIGINT, lines
    assert "KeyboardInterrupt" in lines
    assert lines[-1].startswith("verdict=killed exit=130")
    (result,) = tmp_path.glob(".gpurun/runs/*/result.json")
    assert json.loads(result.read_text())["steps"] >= 30
