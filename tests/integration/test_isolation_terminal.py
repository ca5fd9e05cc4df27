"""Trials have a terminal, as scripts expect, and it neither hangs them nor fills the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.isolation.pseudo_terminal import CUT, PseudoTerminal
from tests.integration.isolation_launcher import ME

LOOKS = """
import getpass, os, shutil, subprocess, sys, termios
print(subprocess.run(["stty", "size"], capture_output=True, text=True, check=True).stdout.strip())
print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), shutil.get_terminal_size())
for attempt in range(3):
    try: input()
    except EOFError: print("end of file")
termios.tcflush(0, termios.TCIFLUSH)
print(repr(sys.stdin.read()))
try: getpass.getpass("")
except EOFError: print("no password")
print(open("/dev/tty").read() == "")
"""


@pytest.mark.parametrize("mode", ["overlay", "landlock", "in place"])
def test_a_script_finds_a_terminal_on_which_nobody_types(mode: str, tmp_path: Path) -> None:
    cwd = tmp_path / "project"
    cwd.mkdir()
    said = ME.script(cwd, LOOKS, mode=mode)
    assert said["log"].split("\n") == [
        "24 80",
        "True True True os.terminal_size(columns=80, lines=24)",
        "end of file",
        "end of file",
        "end of file",
        "''",
        "no password",
        "True",
        "",
    ]
    assert said["code"] == 0


def test_all_that_a_trial_prints_is_in_the_log_when_it_has_ended(tmp_path: Path) -> None:
    cwd = tmp_path / "project"
    cwd.mkdir()
    said = ME.sandbox(cwd, "sh", "-c", "seq 1 60000; echo to stderr >&2")
    assert said["log"].split("\n") == [*map(str, range(1, 60001)), "to stderr", ""]


def test_an_endless_printer_keeps_only_the_end_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "log"
    terminal = PseudoTerminal(log, limit=10_000)
    writer = os.dup(terminal.slave)
    terminal.start()
    for number in range(5000):
        os.write(writer, b"%d\n" % number)
    os.close(writer)
    terminal.finish(timeout=300)
    text = log.read_bytes()
    assert len(text) <= 10_000 + len(CUT)
    assert text.startswith(CUT)
    assert text.endswith(b"\n4998\n4999\n")


def test_an_interruption_while_it_starts_closes_no_descriptor_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time it could be a descriptor of somebody else."""
    terminal = PseudoTerminal(tmp_path / "output.log")
    closed: list[int] = []

    def interrupted(descriptor: int) -> None:
        os_close(descriptor)
        closed.append(descriptor)
        if len(closed) == 1:
            raise KeyboardInterrupt

    os_close = os.close
    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        terminal.start()
    terminal.finish()
    assert len(closed) == len(set(closed)) == 4
