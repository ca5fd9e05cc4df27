"""Removes a rank's private layer after its end: by a cleaner process, else by the next call.

The layer's folder holds `owner`: who uses it. Its cleaner keeps that file locked for as long as it
lives; the folder of a layer whose cleaner was killed is removed by the next call (`sweep`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpurun.isolation.folder_removal import YOUNG_SECONDS, discard

PREFIX = "gpurun-rank-"
OWNER = "owner"


@dataclass(frozen=True)
class Owner:
    """The rank's process, and the process namespace that its number is one of."""

    run: str
    process: int
    started: str
    processes: str


def make_folder(places: list[str], run: str) -> tuple[str, int]:
    """A layer's folder in the first of `places` that takes it; and its owner's file, locked."""
    failure: OSError | None = None
    for place in places:
        path = f"{os.path.realpath(place)}/{PREFIX}{os.getpid()}-{time.monotonic_ns()}"
        try:
            os.mkdir(path, 0o700)
        except OSError as error:
            failure = error
            continue
        lock = os.open(f"{path}/{OWNER}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps it there
            fcntl.flock(lock, fcntl.LOCK_EX)
        _write_owner(lock, run)
        return path, lock
    raise failure or FileNotFoundError("no place for the rank's files")


def _write_owner(lock: int, run: str) -> None:
    process = os.getpid()
    owner = Owner(run, process, _started(process) or "", os.readlink("/proc/self/ns/pid"))
    os.write(lock, json.dumps(asdict(owner)).encode())


def clean_up_after(process: int, folder: str) -> None:
    """Wait for the end of the rank's process; then end what it left behind and remove the layer."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        select.select([handle], [], [])
    _end_all_that_see(Path(folder))
    discard(Path(folder))


def sweep(place: str) -> None:
    """Remove the layers in a folder that nobody uses any more."""
    for path in Path(place).glob(f"{PREFIX}*"):
        try:
            lock = os.open(path / OWNER, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if _is_old(path):
                discard(path)
            continue
        except OSError:  # somebody else's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            owner = _read_owner(lock)
            if owner is not None and _is_dead(owner):
                _end_all_that_see(path)
                discard(path)
            elif owner is None and _is_old(path):
                discard(path)
        except OSError:  # its cleaner lives
            pass
        finally:
            os.close(lock)


def is_of_run(path: Path, run: str) -> bool:
    """True if the layer in a folder belongs to the run of this run folder."""
    try:
        lock = os.open(path / OWNER, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        owner = _read_owner(lock)
        return owner is not None and owner.run == run
    finally:
        os.close(lock)


def _is_old(folder: Path) -> bool:
    try:
        return folder.stat().st_mtime < time.time() - YOUNG_SECONDS
    except OSError:
        return False


def _read_owner(lock: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(lock, 4096, 0)))
    except (ValueError, TypeError):  # killed while it was written
        return None


def _is_dead(owner: Owner) -> bool:
    """A process of another container is unknown, so it counts as alive."""
    if owner.processes != os.readlink("/proc/self/ns/pid"):
        return False
    return _started(owner.process) != owner.started


def _started(process: int) -> str | None:
    """When a process started, in ticks since boot; None if it does not run (a zombie does not)."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in b"ZX" else fields[19].decode()


def _end_all_that_see(folder: Path) -> None:
    """Kill every process that has this layer mounted, until none is left (one may fork meanwhile).

    The number of a mount namespace would not do: once it ends, the kernel gives it to the next one.
    """
    mark = folder.name.encode()
    left = mark not in Path("/proc/self/mountinfo").read_bytes()
    while left:
        left = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), _process(int(name)) as process:
                if mark in Path(f"/proc/{name}/mountinfo").read_bytes():
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    left = True
        if left:
            time.sleep(0.002)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A handle of a process, which stays its own when another one gets its number."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
