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
from dataclasses import asdict, dataclass
from pathlib import Path

from gpurun.isolation.folder_removal import discard

PREFIX = "gpurun-rank-"
OWNER = "owner"
YOUNG_SECONDS = 60.0
"""A younger folder without an owner may be one that is just being made."""


@dataclass(frozen=True)
class Owner:
    """The rank's process and the namespaces it is in ("" before it has entered its own)."""

    run: str
    process: int
    started: str
    processes: str
    mounts: str


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
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_owner(lock, run, "")
        return path, lock
    raise failure or FileNotFoundError("no place for the rank's files")


def write_owner(lock: int, run: str, mounts: str) -> None:
    """Say that this process owns the layer, and in which mount namespace its view is."""
    process = os.getpid()
    owner = Owner(run, process, _started(process) or "", os.readlink("/proc/self/ns/pid"), mounts)
    os.pwrite(lock, json.dumps(asdict(owner)).ljust(4096).encode(), 0)


def clean_up_after(process: int, folder: str, lock: int) -> None:
    """Wait for the end of the rank's process; then end what it left behind and remove the layer."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        select.select([handle], [], [])
    owner = _read_owner(lock)
    if owner is not None:
        _end_all_in(owner.mounts)
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
                _end_all_in(owner.mounts)
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


def _end_all_in(mounts: str) -> None:
    """Kill every process in a mount namespace, until none is left (one may fork meanwhile)."""
    found = bool(mounts) and mounts != os.readlink("/proc/self/ns/mnt")
    while found:
        found = False
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/mnt") == mounts:
                    os.kill(int(name), signal.SIGKILL)
                    found = _started(int(name)) is not None
        if found:
            time.sleep(0.002)
