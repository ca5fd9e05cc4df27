"""One process: signals reach the script, and nothing outlives a killed launcher."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.launched import (
    DEADLINE_SECONDS,
    alive,
    assert_nothing_outlives_a_kill,
    pids,
    start,
    wait_for,
    write,
)

PATIENT = """
import os, pathlib, signal, sys, time
def note(number, frame):
    pathlib.Path(f"{signal.Signals(number).name}.{time.monotonic_ns()}.seen").touch()
    if number != signal.SIGUSR1:
        sys.exit(40 + number)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), note)
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    time.sleep(0.05)
"""

LOADER = """
import os, pathlib, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

class Blocked(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        pathlib.Path(f"{os.getpid()}.pid").touch()
        if index >= 2:
            time.sleep(1000)
        return torch.zeros(1)

def train():
    loader = DataLoader(Blocked(), num_workers=2, multiprocessing_context=sys.argv[1])
    for batch in loader:
        pass

if __name__ == "__main__":
    pathlib.Path(f"{os.getpid()}.pid").touch()
    training = threading.Thread(target=train)
    training.start()
    training.join()
"""


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 143),
        (signal.SIGINT, 130),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
        pytest.param(signal.SIGQUIT, 131, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_script_and_is_the_exit_code(
    tmp_path: Path, clean_environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    launcher = start(tmp_path, clean_environment, write(tmp_path, PATIENT))
    (script,) = pids(tmp_path, 1)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == code
    assert errors.splitlines()[-1].startswith(f"verdict=killed exit={code}".encode())
    assert not alive(script)


def test_script_handles_signals_itself(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    launcher = start(
        tmp_path, clean_environment, write(tmp_path, PATIENT), "SIGTERM", "SIGUSR1", "SIGINT"
    )
    pids(tmp_path, 1)
    launcher.send_signal(signal.SIGUSR1)
    assert wait_for(lambda: bool(list(tmp_path.glob("SIGUSR1.*.seen"))))
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == 40 + signal.SIGTERM


def test_a_script_that_does_not_end_is_killed_after_its_grace(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    script = write(tmp_path, PATIENT.replace("sys.exit(40 + number)", "pass"))
    launcher = start(tmp_path, clean_environment, "--grace", "1", script, "SIGTERM")
    (process,) = pids(tmp_path, 1)
    launcher.terminate()
    _, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert list(tmp_path.glob("SIGTERM.*.seen"))
    assert launcher.returncode == 128 + signal.SIGKILL
    told = b"gpurun: the script did not end within 1 s; gpurun kills it (--grace)"
    assert told in errors.splitlines()
    assert not alive(process)


def test_a_job_of_slurm_that_was_warned_is_put_back(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\n")
    scontrol.chmod(0o755)
    path = f"{scontrol.parent}{os.pathsep}{clean_environment['PATH']}"
    environment = {**clean_environment, "PATH": path, "SLURM_JOB_ID": "7"}
    launcher = start(tmp_path, environment, "--requeue", write(tmp_path, PATIENT), "SIGUSR2")
    pids(tmp_path, 1)
    launcher.send_signal(signal.SIGUSR2)
    _, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == 40 + signal.SIGUSR2
    assert b"gpurun: SIGUSR2 came: job 7 is back in SLURM's queue" in errors.splitlines()
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def test_a_signal_to_all_processes_reaches_the_script_once_and_so_does_one_to_the_launcher(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    launcher = start(tmp_path, clean_environment, write(tmp_path, PATIENT), "SIGUSR1", "SIGTERM")
    pids(tmp_path, 1)

    def seen() -> int:
        return len(list(tmp_path.glob("SIGUSR1.*.seen")))

    for sent, send in enumerate((os.killpg, os.killpg, os.kill, os.kill), 1):
        send(launcher.pid, signal.SIGUSR1)
        assert wait_for(lambda sent=sent: seen() >= sent)
        time.sleep(0.3)  # a second one would have come by now
        assert seen() == sent
    launcher.terminate()
    assert launcher.wait(DEADLINE_SECONDS) == 40 + signal.SIGTERM


def test_two_signals_to_all_processes_reach_the_script_once_each(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    # one right after the other, as systemd sends SIGTERM and SIGHUP
    script = write(tmp_path, PATIENT.replace("!= signal.SIGUSR1", "== signal.SIGTERM"))
    launcher = start(tmp_path, clean_environment, script, "SIGUSR1", "SIGUSR2", "SIGTERM")
    pids(tmp_path, 1)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        os.killpg(launcher.pid, number)
    for name in ("SIGUSR1", "SIGUSR2"):
        assert wait_for(lambda name=name: bool(list(tmp_path.glob(f"{name}.*.seen"))))
    time.sleep(0.5)  # a second one would have come by now
    assert len(list(tmp_path.glob("*.seen"))) == 2
    launcher.terminate()
    assert launcher.wait(DEADLINE_SECONDS) == 40 + signal.SIGTERM


def test_a_signal_by_the_scripts_name_reaches_it_once_and_runs_no_other_program(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """What ran beside the script was `sleep`, called by a name that can be a program's."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sleep").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (programs / "sleep").chmod(0o755)
    paths = {"PATH": f"{programs}:{os.environ['PATH']}"}
    words = (write(tmp_path, PATIENT, "named.py"), "SIGUSR1", "SIGTERM")
    launcher = start(tmp_path, {**clean_environment, **paths}, *words)
    pids(tmp_path, 1)
    launcher_and_below = [psutil.Process(launcher.pid), *psutil.Process(launcher.pid).children()]
    assert wait_for(lambda: all("named.py" in each.cmdline() for each in launcher_and_below))
    for process in launcher_and_below:
        process.send_signal(signal.SIGUSR1)
    assert wait_for(lambda: bool(list(tmp_path.glob("SIGUSR1.*.seen"))))
    time.sleep(0.5)  # a second one would have come by now
    assert len(list(tmp_path.glob("*.seen"))) == 1
    assert not (tmp_path / "ran").exists()
    launcher.terminate()
    assert launcher.wait(DEADLINE_SECONDS) == 40 + signal.SIGTERM


def test_a_launcher_that_was_stopped_and_continued_passes_nothing_on(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    # Ctrl-Z and fg, or a scheduler that suspends the job for a while
    launcher = start(
        tmp_path, clean_environment, write(tmp_path, PATIENT), "SIGTERM", "SIGUSR1", "SIGHUP"
    )
    pids(tmp_path, 1)
    launcher.send_signal(signal.SIGUSR1)
    assert wait_for(lambda: bool(list(tmp_path.glob("SIGUSR1.*.seen"))))
    for _ in range(3):
        launcher.send_signal(signal.SIGSTOP)
        time.sleep(1.0)  # longer than the launcher goes without a look at the clock
        launcher.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert launcher.poll() is None
    assert len(list(tmp_path.glob("*.seen"))) == 1
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == 40 + signal.SIGTERM


def at_a_terminal(folder: Path, environment: dict[str, str], *words: str) -> tuple[int, int]:
    """A launcher in the foreground of a terminal of its own: its process id, the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(sys.executable, [sys.executable, "-m", "gpurun", *words], environment)
    pids(folder, 1)
    return pid, terminal


def exit_code(pid: int, terminal: int) -> int:
    """The launcher's exit code once it has ended; reads the terminal empty meanwhile."""
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:
            break
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_ctrl_c_ends_the_script(tmp_path: Path, clean_environment: dict[str, str]) -> None:
    pid, terminal = at_a_terminal(tmp_path, clean_environment, write(tmp_path, PATIENT), "SIGINT")
    os.write(terminal, b"\x03")
    assert exit_code(pid, terminal) == 40 + signal.SIGINT


def test_ctrl_c_is_not_passed_on_a_second_time(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    # out of the foreground group the script sees only what the launcher passes on
    script = write(tmp_path, "import os; os.setpgid(0, 0)\n" + PATIENT)
    names = ("SIGINT", "SIGUSR1", "SIGTERM")
    pid, terminal = at_a_terminal(tmp_path, clean_environment, script, *names)
    os.write(terminal, b"\x03")
    os.kill(pid, signal.SIGUSR1)
    assert wait_for(lambda: bool(list(tmp_path.glob("*.seen"))))
    os.kill(pid, signal.SIGTERM)
    assert exit_code(pid, terminal) == 40 + signal.SIGTERM
    assert not list(tmp_path.glob("SIGINT.*.seen"))


def test_script_starts_with_the_signals_of_its_shell(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    source = (
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), "
        "signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT), "
        "signal.getsignal(signal.SIGCHLD))"
    )
    write(tmp_path, source)

    def output(words: str) -> bytes:
        shell = f"trap '' HUP INT; exec {sys.executable} {words}"
        return subprocess.check_output(["sh", "-c", shell], cwd=tmp_path, env=clean_environment)

    assert output("-m gpurun --quiet script.py") == output("script.py")


def test_a_command_gets_python_s_ignored_signals_back(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    launcher = start(
        tmp_path, clean_environment, "--no-python", "sh", "-c", "grep SigIgn /proc/$$/status"
    )
    output, _ = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert int(output.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_killing_the_launcher_kills_the_script(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    words = write(tmp_path, PATIENT), "SIGTERM", "SIGINT", "SIGHUP"
    launcher = start(tmp_path, clean_environment, *words)
    assert_nothing_outlives_a_kill(launcher, pids(tmp_path, 1))


@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)
def test_killing_the_launcher_kills_blocked_loader_workers(
    tmp_path: Path, clean_environment: dict[str, str], method: str
) -> None:
    launcher = start(tmp_path, clean_environment, write(tmp_path, LOADER), method)
    assert_nothing_outlives_a_kill(launcher, pids(tmp_path, 3))
