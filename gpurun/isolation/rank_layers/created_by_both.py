"""Lets a rank create a folder or link that rank 0 has just created, as if it were alone.

A script written for one process says `os.makedirs("out")`. If rank 0 is faster, the other ranks
would fail: the folder exists. So the kernel asks the view daemon before each mkdir and symlink
(seccomp user notification, Linux 5.5). A folder that rank 0 has made since the run began becomes
the rank's own, with what rank 0 has put there, which may be meant for all. A link stays private.
Nothing else is watched: these calls are rare, and each takes some hundred microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

from gpurun.isolation import syscalls
from gpurun.isolation.rank_layers.rank_view import RankView

_AT_FDCWD = -100
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS: dict[str, dict[int, tuple[int | None, int]]] = {
    "x86_64": {83: (None, 0), 258: (0, 1), 88: (None, 1), 266: (1, 2)},
    "aarch64": {34: (0, 1), 36: (1, 2)},
}
"""mkdir, mkdirat, symlink, symlinkat: in which arguments the folder's descriptor and path are."""

_LINKS = {"x86_64": (88, 266), "aarch64": (36,)}.get(os.uname().machine, ())

_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTICE = struct.Struct("QII iIQ 6Q")
_ANSWER = struct.Struct("QqiI")
_DONE, _CONTINUE = 0, 1
_LONGEST_PATH = 4096


def watch() -> int | None:
    """From here on this process's creations are announced on the descriptor; None where it is not
    possible: then they fail where rank 0 was faster."""
    machine = os.uname().machine
    if machine not in _CALLS:
        return None
    try:
        return syscalls.seccomp_listener(_program(machine))
    except OSError:
        return None


def answer(listener: int, view: RankView) -> None:
    """Receive one announcement, prepare the view for it, and let the call go on."""
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
    except OSError:  # the caller was interrupted or has ended
        return
    identity, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
    verdict = _CONTINUE
    with contextlib.suppress(OSError, ValueError):
        path = _path(thread, number, arguments)
        ours = view.is_of_this_run(path)
        if ours and number not in _LINKS and view.adopt(path):
            verdict = _DONE
        elif ours or (not os.path.lexists(path) and os.path.isdir(os.path.dirname(path))):
            view.hide(path)  # also before it is there: rank 0 may be faster than the call
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _SEND, bytearray(_ANSWER.pack(identity, 0, 0, verdict)))


def _program(machine: str) -> bytes:
    """Instructions of classic BPF: announce these calls, allow all others."""
    numbers = list(_CALLS[machine])
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_IF_EQUAL, 0, len(numbers) + 1, _AUDIT_ARCHITECTURES[machine]),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    for index, number in enumerate(numbers):
        program.append((_JUMP_IF_EQUAL, len(numbers) - index, 0, number))
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOTIFY)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _path(thread: int, number: int, arguments: list[int]) -> str:
    """The absolute path that the call names."""
    at, where = _CALLS[os.uname().machine][number]
    name = _text(thread, arguments[where])
    folder = (
        _AT_FDCWD
        if at is None
        else struct.unpack("i", struct.pack("I", arguments[at] & 0xFFFFFFFF))[0]
    )
    base = f"/proc/{thread}/cwd" if folder == _AT_FDCWD else f"/proc/{thread}/fd/{folder}"
    path = name if name.startswith("/") else f"{os.readlink(base)}/{name}"
    above, last = os.path.split(path.rstrip("/"))
    if last in ("", ".", ".."):
        raise ValueError(path)
    return f"{os.path.realpath(above).rstrip('/')}/{last}"


def _text(thread: int, address: int) -> str:
    """The string at an address of a thread's memory. The page behind it may not be there."""
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while b"\0" not in text and len(text) < _LONGEST_PATH:
            start = address + len(text)
            block = os.pread(memory, 256 - start % 256, start)
            if not block:
                raise OSError(errno.EFAULT, "path")
            text += block
    finally:
        os.close(memory)
    return os.fsdecode(text.partition(b"\0")[0])
