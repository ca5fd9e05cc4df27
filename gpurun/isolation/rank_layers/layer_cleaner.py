"""Removes a rank's private layer after its end: by a cleaner process, else by the next call.

The layer's folder holds `owner`: who uses it. Its cleaner keeps that file locked for as long as it
lives; the folder of a layer whose cleaner was killed is removed by the next call (`sweep`). Only
folders that this user's gpurun made count: anybody may write to `/var/tmp`.
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

from gpurun.isolation.folder_removal import YOUNG_SECONDS, discard, is_marked, mark

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
        mark(Path(path))
        lock = os.open(f"{path}/{OWNER}", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
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
    for path in layers(place):
        try:
            lock = _open_owner(path)
        except FileNotFoundError:
            if _is_old(path):
                discard(path)
            continue
        except OSError:
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


def layers(place: str) -> Iterator[Path]:
    """The layers in a folder that gpurun made as this user."""
    return filter(is_marked, Path(place).glob(f"{PREFIX}*"))


def is_of_run(path: Path, run: str) -> bool:
    """True if the layer in a folder belongs to the run of this run folder."""
    try:
        lock = _open_owner(path)
    except OSError:
        return False
    try:
        owner = _read_owner(lock)
        return owner is not None and owner.run == run
    finally:
        os.close(lock)


def _open_owner(folder: Path) -> int:
    return os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_old(folder: Path) -> bool:
    try:
        return folder.stat().st_mtime < time.time() - YOUNG_SECONDS
    except OSError:
        return False


def _read_owner(lock: int) -> Owner | None:
    try:
        return Owner(**json.loads(os.pread(lock, 4096, 0)))
    except (OSError, ValueError, TypeError):  # killed while it was written
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
    left = not _sees("self", folder)
    while left:
        left = False
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), _process(int(name)) as process:
                ours = os.stat(f"/proc/{name}").st_uid == os.geteuid()
                if ours and _sees(name, folder):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    left = True
        if left:
            time.sleep(0.002)


def _sees(process: str, folder: Path) -> bool:
    """True if an overlay that writes to this layer is mounted for a process.

    Other mounts do not count: any user may choose the source and the place of a FUSE mount.
    """
    part = f"/{folder.name}/".encode()
    lines = Path(f"/proc/{process}/mountinfo").read_bytes().splitlines()
    return any(part in line.partition(b" - overlay ")[2] for line in lines)


@contextlib.contextmanager
def _process(pid: int) -> Iterator[int]:
    """A handle of a process, which stays its own when another one gets its number."""
    handle = os.pidfd_open(pid)
    try:
        yield handle
    finally:
        os.close(handle)
