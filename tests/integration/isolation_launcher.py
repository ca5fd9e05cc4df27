"""Runs sandboxes in a child process, as the current user or as an ordinary one, for the tests."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

LAUNCHER = """
import json, os, sys, time
from pathlib import Path
from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
ask = json.loads(sys.argv[1])
paths = lambda name: tuple(map(Path, ask.get(name, ())))
spec = LaunchSpec(tuple(ask["argv"]), {**os.environ, **ask.get("env", {})}, Path(ask["cwd"]),
               paths("writable"), paths("layers"), Mode(ask["mode"]), Path(ask["log"]),
               Path(ask["scratch"]) if ask.get("scratch") else None)
try:
    with Sandbox(spec) as sandbox:
        said = {"pid": sandbox.pid, "notes": sandbox.notes}
        if "wait_for" in ask:
            while ask["wait_for"] not in Path(ask["log"]).read_text(errors="replace"):
                assert sandbox.poll() is None, Path(ask["log"]).read_text(errors="replace")
                time.sleep(0.02)
            print("ready", flush=True)
        if "capture" in ask:
            said["captured"] = sandbox.capture_layer(Path(ask["capture"]))
        if ask.get("hang"):
            time.sleep(600)
        if ask.get("kill"):
            sandbox.kill()
        if ask.get("kill_supervisor"):
            os.kill(sandbox._supervisor.pid, 9)
        said["code"] = sandbox.wait(240)
except GpurunError as error:
    said = {"error": error.what, "todo": error.todo}
print(json.dumps(said))
"""


NO_NAMESPACES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
user = os.getuid()
if libc.unshare(0x10000000) != 0: sys.exit(99)
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {user} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
libc.prctl(24, 21, 0, 0, 0)  # CAP_SYS_ADMIN leaves with the next exec
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Becomes the python of its arguments, which may make no namespace; exits with 99 if it cannot."""


def without_namespaces(
    cwd: Path, environment: Mapping[str, str], *words: str, timeout: float = 300
) -> subprocess.CompletedProcess[bytes]:
    """`python words...` where no namespace can be made; skips where that cannot be arranged."""
    done = subprocess.run(
        [sys.executable, "-c", NO_NAMESPACES, *words],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode == 99:
        pytest.skip("user namespaces, with which to forbid them, are themselves forbidden here")
    return done


@dataclass(frozen=True)
class User:
    """Somebody who launches: `None` as name is whoever runs the tests."""

    name: str | None
    python: str

    @property
    def home(self) -> Path:
        """The user's own folder; /tmp for the users of services, who have none."""
        entry = pwd.getpwnam(self.name) if self.name else pwd.getpwuid(os.getuid())
        folder = Path(entry.pw_dir)
        owned = folder.is_dir() and folder.stat().st_uid == entry.pw_uid
        return folder if owned else Path("/tmp")

    def give(self, *paths: Path) -> None:
        """Make the user owner of the paths."""
        if self.name is not None:
            for path in paths:
                shutil.chown(path, self.name, pwd.getpwnam(self.name).pw_gid)

    def start(
        self, code: str, *arguments: str, prefix: tuple[str, ...] = (), **env: str
    ) -> subprocess.Popen[str]:
        """Start python with `code` as this user."""
        entry = pwd.getpwnam(self.name) if self.name else None
        return subprocess.Popen(
            [*prefix, self.python, "-B", "-c", code, *arguments],
            user=entry.pw_uid if entry else None,
            group=entry.pw_gid if entry else None,
            extra_groups=[] if entry else None,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONDONTWRITEBYTECODE": "1",
                **env,
            },
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
        )

    def sandbox(self, cwd: Path, *argv: str, mode: str = "overlay", **ask: Any) -> dict[str, Any]:
        """What the launcher says of one sandbox: `pid`, `notes`, `code`, or `error` and `todo`.

        Adds `log`, what the script printed.
        """
        log = Path(ask.setdefault("log", str(cwd.parent / f"{cwd.name}.log")))
        log.touch()
        self.give(log)
        launcher = self.start(
            LAUNCHER, json.dumps({"argv": argv, "cwd": str(cwd), "mode": mode, **ask})
        )
        answer, _ = launcher.communicate(timeout=300)
        assert launcher.returncode == 0, answer
        said: dict[str, Any] = json.loads(answer.splitlines()[-1])
        said["log"] = log.read_text(errors="replace")
        return said

    def script(self, cwd: Path, text: str, **ask: Any) -> dict[str, Any]:
        """`sandbox` for a python script of this text in `cwd`."""
        path = cwd / "train.py"
        if not path.exists():
            path.write_text(text)
            self.give(path)
        return self.sandbox(cwd, self.python, "-B", "train.py", **ask)


ME = User(None, sys.executable)


def ordinary_user() -> User | None:
    """An ordinary user that root can become here, with a python that it may run; else None."""
    if os.getuid() != 0:
        return None
    for name in ("tester", "www-data", "daemon"):
        for python in (sys.executable, "/usr/bin/python3"):
            try:
                user = User(name, python)
                probe = user.start("import sys, gpurun; print(sys.version_info >= (3, 10))")
                if probe.communicate(timeout=300)[0].strip() == "True":
                    return user
            except (KeyError, OSError):
                continue
    return None


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not: it closes them again."""
    folder = Path(tempfile.mkdtemp(prefix="gpurun-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything below `root`, byte for byte."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, names, files in os.walk(root):
        for name in (".", *names, *files):
            path = Path(folder) / name
            status = path.lstat()
            content: object = None
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = path.read_bytes()
            found[str(path)] = (
                status.st_mode,
                status.st_uid,
                status.st_ino,
                status.st_nlink,
                status.st_mtime_ns,
                content,
            )
    return found


def processes_with(marker: str) -> list[int]:
    """Pids of all processes that have `marker` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if marker.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def gone_within(marker: str, seconds: float) -> bool:
    """Whether the last process with `marker` disappears in that time."""
    end = time.monotonic() + seconds
    while processes_with(marker):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
