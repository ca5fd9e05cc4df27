"""`--live` on an emulated terminal: a line below the script's output, which stays as it was."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Gpurun

pyte = pytest.importorskip("pyte")

COLUMNS, ROWS = 70, 12
TRAIN = """
import sys, time, torch
x = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([x], lr=0.1)
print("\\n" * int(sys.argv[1]), end="")
for step in range(int(sys.argv[2])):
    if step % 25 == 0:
        print(f"epoch {step // 25}", flush=True)
    sys.stderr.write(f"\\rstep {step:4} of the bar")
    sys.stderr.flush()
    x.square().sum().backward()
    optimizer.step()
    time.sleep(0.02)
print("\\nlast words", end="")
"""


class Terminal:
    """A program on a pseudo-terminal, drawn by pyte."""

    def __init__(self, folder: Path, environment: dict[str, str], *words: str) -> None:
        self.screen = pyte.HistoryScreen(COLUMNS, ROWS, history=1000)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, "-m", "gpurun", *words], environment)
        self.resize(ROWS)

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, COLUMNS, 0, 0))
        self.screen.resize(rows, COLUMNS)

    def run_until(self, condition: Callable[[], bool]) -> bool:
        """Draw until the condition is true, or the program has closed the terminal."""
        end = time.monotonic() + 120
        while time.monotonic() < end and not condition():
            if not select.select([self._file], [], [], 0.2)[0]:
                continue
            try:
                self._stream.feed(os.read(self._file, 65536))
            except OSError:
                return condition()
        return condition()

    def finish(self) -> int:
        self.run_until(lambda: False)
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def stop_output(self) -> None:
        """As Ctrl-S does."""
        os.write(self._file, b"\x13")

    def end_within(self, seconds: float) -> int:
        """The exit code of the program, of which nothing more is read."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self._file)
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"it did not end within {seconds:.0f} s")

    def lines(self) -> list[str]:
        """What has scrolled away and what is to be seen, without what gpurun says at the end."""
        scrolled = ["".join(row[x].data for x in range(COLUMNS)) for row in self.screen.history.top]
        text = [line.rstrip() for line in (*scrolled, *self.screen.display)]
        end = next((n for n, line in enumerate(text) if "gpurun: " in line), len(text))
        last = text[end].partition("gpurun: ")[0] if end < len(text) else ""
        return [line for line in (*text[:end], last) if line]


@pytest.fixture
def environment(tmp_path: Path, clean_environment: dict[str, str]) -> dict[str, str]:
    (tmp_path / "train.py").write_text(TRAIN)
    return {**clean_environment, "TERM": "xterm"}


@pytest.mark.parametrize("blank", ["0", pytest.param("30", marks=pytest.mark.slow)])
def test_the_line_stands_below_the_output_and_leaves_nothing(
    blank: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    plain = Terminal(tmp_path, environment, "train.py", blank, "100")
    assert plain.finish() == 0
    live = Terminal(tmp_path, environment, "--live", "train.py", blank, "100")
    assert live.run_until(lambda: live.screen.display[-1].startswith("gpurun: step "))
    assert "of the bar" in "".join(live.screen.display[:-1])
    assert live.screen.margins is not None
    assert live.finish() == 0
    assert live.lines() == plain.lines()
    assert live.lines()[-1] == "last words"
    assert live.screen.margins is None
    left = [line for line in live.screen.display if "gpurun: step" in line]
    assert [line for line in left if "p50" not in line] == []  # gpurun's summary has it


@pytest.mark.slow  # quick twin: the line below the output, above
def test_a_resized_terminal_has_one_line(tmp_path: Path, environment: dict[str, str]) -> None:
    live = Terminal(tmp_path, environment, "--live", "train.py", "0", "400")
    assert live.run_until(lambda: live.screen.display[-1].startswith("gpurun: step "))
    live.resize(ROWS + 5)
    assert live.run_until(lambda: live.screen.display[-1].startswith("gpurun: step "))
    shown = [n for n, line in enumerate(live.screen.display) if "gpurun: step" in line]
    assert shown == [ROWS + 4]
    assert live.finish() == 0


def test_an_interrupted_script_gives_the_row_back(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    live = Terminal(tmp_path, environment, "--live", "train.py", "0", "100000")
    assert live.run_until(lambda: live.screen.display[-1].startswith("gpurun: step "))
    os.kill(live.pid, signal.SIGTERM)
    assert live.finish() == 128 + signal.SIGTERM
    assert live.screen.margins is None


def test_without_a_terminal_there_is_no_line(
    tmp_path: Path, environment: dict[str, str], gpurun: Gpurun
) -> None:
    done = gpurun("--live", "train.py", "0", "5")
    assert done.returncode == 0
    assert b"--live shows nothing: stderr is no terminal\n" in done.stderr
    assert b"\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("words", "shown", "code"),
    [(("--live", "train.py", "0", "9999"), "gpurun: step ", 143), (("monitor",), "processor", 0)],
    ids=["live", "monitor"],
)
def test_sigterm_ends_what_a_stopped_terminal_holds_up(
    tmp_path: Path, environment: dict[str, str], words: tuple[str, ...], shown: str, code: int
) -> None:
    terminal = Terminal(tmp_path, environment, *words)
    assert terminal.run_until(lambda: any(shown in line for line in terminal.screen.display))
    terminal.stop_output()
    time.sleep(2)  # the next drawing finds it stopped
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end_within(60) == code
