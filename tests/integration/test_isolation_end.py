"""However a trial ends, nothing of it stays: no process, no file."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import KILL_SECONDS, LaunchSpec, Sandbox
from tests.integration.isolation_launcher import (
    LAUNCHER,
    ME,
    User,
    gone_within,
    ordinary_user,
    processes_with,
)
from tests.integration.launched import DEADLINE_SECONDS, ORPHAN_SECONDS

STUBBORN = """
import os, signal, subprocess, sys, time
marker = sys.argv[1]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
loop = "import signal, time; signal.signal(15, signal.SIG_IGN); signal.signal(1, signal.SIG_IGN)"
loop += "; time.sleep(600)"
subprocess.Popen([sys.executable, "-S", "-c", loop, marker])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-S", "-c", loop, marker + "daemon"])
    os._exit(0)
stopped = subprocess.Popen([sys.executable, "-S", "-c", loop, marker + "stopped"])
os.kill(stopped.pid, signal.SIGSTOP)
time.sleep(0.3)
print("all started", flush=True)
if len(sys.argv) > 2: sys.exit(int(sys.argv[2]))
time.sleep(600)
"""

CASES = [
    ("overlay", "me"),
    ("overlay", "ordinary"),
    ("landlock", "me"),
    ("landlock", "ordinary"),
    ("in place", "ordinary"),
]


@pytest.fixture(params=CASES, ids=[" as ".join(case) for case in CASES])
def case(request: pytest.FixtureRequest, open_path: Path) -> tuple[User, str, Path]:
    mode, who = request.param
    user = ME if who == "me" else ordinary_user()
    if user is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    cwd = open_path / "project"
    cwd.mkdir()
    (cwd / "train.py").write_text(STUBBORN)
    (open_path / "scratch").mkdir()
    user.give(open_path, cwd, cwd / "train.py", open_path / "scratch")
    return user, mode, cwd


@pytest.mark.parametrize("how", ["kill", "kill_supervisor"])
def test_a_kill_leaves_no_process_alive(case: tuple[User, str, Path], how: str) -> None:
    """By the launcher; and of the supervisor alone, from outside."""
    user, mode, cwd = case
    marker = f"stubborn-{uuid.uuid4().hex}"
    scratch = str(cwd.parent / "scratch")
    ask: dict[str, Any] = {"mode": mode, "wait_for": "all started", "scratch": scratch, how: True}
    said = user.sandbox(cwd, user.python, "-S", "train.py", marker, **ask)
    assert said["code"] == 128 + signal.SIGKILL
    assert gone_within(marker, 0 if how == "kill" else ORPHAN_SECONDS)
    assert os.listdir(scratch) == []


def test_what_a_script_leaves_running_ends_with_it(case: tuple[User, str, Path]) -> None:
    user, mode, cwd = case
    marker = f"stubborn-{uuid.uuid4().hex}"
    said = user.sandbox(cwd, user.python, "-S", "train.py", marker, "7", mode=mode)
    assert said["code"] == 7, said
    assert processes_with(marker) == []


def test_a_box_dies_with_its_launcher_however_suddenly(case: tuple[User, str, Path]) -> None:
    user, mode, cwd = case
    marker = f"stubborn-{uuid.uuid4().hex}"
    log, scratch = cwd.parent / "log", cwd.parent / "scratch"
    ask = {
        "argv": [user.python, "-S", "train.py", marker],
        "cwd": str(cwd),
        "mode": mode,
        "log": str(log),
        "scratch": str(scratch),
        "wait_for": "all started",
        "hang": True,
    }
    launcher = user.start(LAUNCHER, json.dumps(ask))
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "ready\n"
    assert len(processes_with(marker)) >= 4
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    assert gone_within(marker, ORPHAN_SECONDS)
    assert empty_within(scratch, ORPHAN_SECONDS)


def empty_within(folder: Path, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while os.listdir(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_files_of_a_killed_launcher_and_supervisor_go_with_the_next_trial(open_path: Path) -> None:
    cwd, scratch = open_path / "project", open_path / "scratch"
    cwd.mkdir()
    scratch.mkdir()
    ask = {"argv": ["sleep", "600"], "cwd": str(cwd), "mode": "overlay", "log": str(cwd / "log")}
    ask |= {"scratch": str(scratch), "wait_for": ""}
    launchers = [ME.start(LAUNCHER, json.dumps({**ask, "hang": True})) for _ in range(2)]
    for launcher in launchers:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
    left, living = (scratch / name for name in _folders_of(launchers, scratch))
    for process in [*psutil.Process(launchers[0].pid).children(), launchers[0]]:
        process.kill()
    launchers[0].wait()
    for folder in (left, living):
        os.utime(folder, (0, 0))
    done = ME.start(LAUNCHER, json.dumps({**ask, "argv": ["true"]}))
    assert done.wait(DEADLINE_SECONDS) == 0
    assert list(scratch.iterdir()) == [living]
    launchers[1].kill()
    launchers[1].wait()
    assert empty_within(scratch, ORPHAN_SECONDS)


def _folders_of(launchers: list[subprocess.Popen[str]], scratch: Path) -> list[str]:
    """The name of each launcher's folder: the one that it holds open."""
    return [
        Path(os.readlink(handle)).name
        for launcher in launchers
        for handle in Path(f"/proc/{launcher.pid}/fd").iterdir()
        if os.readlink(handle).startswith(f"{scratch}/")
    ]


def test_a_launcher_that_forgets_its_box_leaves_no_files(open_path: Path) -> None:
    cwd, scratch = open_path / "project", open_path / "scratch"
    cwd.mkdir()
    scratch.mkdir()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from gpurun.isolation.isolation_mode import Mode\n"
        "from gpurun.isolation.sandbox import LaunchSpec, Sandbox\n"
        "cwd, scratch = map(Path, sys.argv[1:])\n"
        "log = cwd / 'log'\n"
        "spec = LaunchSpec(('true',), {}, cwd, (), (), Mode.OVERLAY, log, scratch)\n"
        "Sandbox(spec).wait(240)\n"
        "os._exit(0)\n"
    )
    assert ME.start(code, str(cwd), str(scratch)).wait(DEADLINE_SECONDS) == 0
    assert empty_within(scratch, ORPHAN_SECONDS)


def test_the_pid_is_that_of_the_script_as_the_launcher_sees_it(open_path: Path) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    code = (
        "import os, sys; from pathlib import Path\n"
        "from gpurun.isolation.isolation_mode import Mode\n"
        "from gpurun.isolation.sandbox import LaunchSpec, Sandbox\n"
        "cwd = Path(sys.argv[1])\n"
        "argv = ('sleep', '597')\n"
        "spec = LaunchSpec(argv, dict(os.environ), cwd, (), (), Mode.OVERLAY, cwd / 'log')\n"
        "with Sandbox(spec) as it:\n"
        "    print(Path(f'/proc/{it.pid}/cmdline').read_text().split(chr(0))[:2], it.poll())\n"
    )
    printed, _ = ME.start(code, str(cwd)).communicate(timeout=DEADLINE_SECONDS)
    assert printed == "['sleep', '597'] None\n"


@pytest.mark.parametrize(("command", "code"), [("exit 0", 0), ("exit 41", 41), ("kill -9 $$", 137)])
def test_the_scripts_own_exit_code_comes_through(command: str, code: int, open_path: Path) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    assert ME.sandbox(cwd, "sh", "-c", command)["code"] == code


def test_a_program_that_is_not_there_is_told_from_a_box_that_cannot_be_set_up(
    open_path: Path,
) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    missing = ME.sandbox(cwd, str(cwd / "no-such-program"))
    assert "the trial's program could not be started" in missing["error"]
    assert "No such file or directory" in missing["error"]
    broken = ME.sandbox(cwd, "true", writable=[str(cwd / "no-such-folder")])
    assert "could not be set up" in broken["error"]
    assert "no-such-folder" in broken["error"]


BETWEEN_PROCESSES = """
import ctypes, os, sys
libc, key, name = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), sys.argv[2]
SEGMENT = libc.shmget(key, 4096, 0o1666)
assert SEGMENT >= 0, os.strerror(ctypes.get_errno())
queue = libc.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
assert queue >= 0 or ctypes.get_errno() == 13, "only Landlock forbids it"
open(f"/dev/shm/{name}", "w").write("batch")
if os.fork() == 0:  # as a loader's worker does
    os._exit(libc.shmget(key, 4096, 0o666) != SEGMENT or open(f"/dev/shm/{name}").read() != "batch")
assert os.wait()[1] == 0
print("shared", os.statvfs("/dev/shm").f_blocks)
"""


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize("who", ["me", "ordinary"])
def test_shared_memory_and_queues_of_a_trial_end_with_it(
    mode: str, who: str, open_path: Path
) -> None:
    """Its processes share them, in a /dev/shm as large as the real one."""
    user = ME if who == "me" else ordinary_user()
    if user is None:
        pytest.skip("not root, or no ordinary user with a python it may run")
    cwd, token = open_path / "project", uuid.uuid4()
    name, key = f"gpurun-test-{token.hex}", token.fields[0] >> 2
    cwd.mkdir()
    user.give(open_path, cwd)
    (cwd / "train.py").write_text(BETWEEN_PROCESSES)
    empty = not os.listdir("/dev/shm")
    said = user.sandbox(cwd, user.python, "-S", "train.py", str(key), name, mode=mode)
    empty = empty and not os.listdir("/dev/shm")  # else Landlock leaves it as it is
    assert said["log"].startswith("shared "), said
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    assert key not in [int(line.split()[0]) for line in segments]
    assert ctypes.CDLL(None).mq_open(f"/{name}".encode(), os.O_RDWR) == -1
    if mode == "overlay" or empty:
        assert not Path("/dev/shm", name).exists()
    Path("/dev/shm", name).unlink(missing_ok=True)
    if empty:
        assert said["log"].split()[1] == str(os.statvfs("/dev/shm").f_blocks)


def test_an_interrupt_while_a_trial_starts_ends_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Sandbox, "_await_start", interrupt)
    log = tmp_path / "log"
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Sandbox(LaunchSpec(("true",), dict(os.environ), tmp_path, (), (), Mode.IN_PLACE, log))
    assert time.monotonic() - begin < KILL_SECONDS
