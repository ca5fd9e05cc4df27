"""A signal ends gpurun's work wherever it arrives."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, time
from gpurun import cli
from gpurun.trials.signal_guard import SignalGuard

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.1)

def work():
    last = Last()
    del last  # python ignores what is raised meanwhile
    time.sleep(20)

cli._catch_signals()
try:
    {body}
except KeyboardInterrupt as interrupt:
    print(*interrupt.args)
"""
GUARDED = """with SignalGuard() as guard:
        work()"""


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [("SIGTERM", "work()", "15"), ("SIGINT", "work()", ""), ("SIGTERM", GUARDED, "15")],
)
def test_a_signal_amid_a_finalizer_comes_again(name: str, body: str, told: str) -> None:
    program = PROGRAM.format(name=name, body=body)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr, done.returncode) == (told, "", 0)


def test_other_errors_that_python_ignores_are_told_as_ever() -> None:
    program = PROGRAM.format(name="SIGTERM", body="work()").replace(
        "os.kill(os.getpid(), signal.SIGTERM)", "raise ValueError('mine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program.replace("sleep(20)", "sleep(0)")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "ValueError: mine" in done.stderr
