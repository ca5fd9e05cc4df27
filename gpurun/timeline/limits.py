"""Bounds of what a recording may take to read: a small file can be made to fill any memory.

Honest recordings stay far below. All bounds but that of one piece of text grow with the file.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpurun.errors import GpurunError

LONGEST_TEXT = 16 << 20
"""Characters of one event, of one line, or of what stands before or after the events."""
MOST_PROCESSES = 1000
"""Of one report: each has a timeline of its own."""
FREE_BYTES, EXPANSION = 64 << 20, 200
"""Text that a file may hold, and so many times its size more. A trace expanded to 15 times its
size; a bomb expands to 1,000 times."""
FREE_SECONDS, SECONDS_A_MB = 7, 5
"""Processor time. A zipped trace took 0.4 seconds a megabyte."""
FREE_MEMORY, MEMORY_A_BYTE = 1 << 30, 50
"""Memory beside that in use before. A zipped trace took 5 bytes a byte, an SQLite export 7."""
STATM = Path("/proc/self/statm")
LOOK_SECONDS = 0.1
TODO = "record fewer steps, or record or export it again"


@contextmanager
def limited(paths: Sequence[Path]) -> Iterator[None]:
    """Read and diagnose recordings or a run folder here; `GpurunError` if it takes too much.

    A timer looks at time and memory: it interrupts whatever works meanwhile, again and again, as a
    callback may swallow an exception. A block within another one is part of it.
    """
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        yield
        return
    names = ", ".join(map(str, paths))
    try:
        size = _size(paths)
    except OSError as error:
        what = f"{error.filename or names} cannot be read: {error.strerror}"
        raise GpurunError(what, "make it readable, or name another one") from None
    seconds = time.process_time() + FREE_SECONDS + SECONDS_A_MB * size / 1e6
    memory = _memory() + FREE_MEMORY + MEMORY_A_BYTE * size
    overdrawn: list[GpurunError] = []

    def look(number: int, frame: FrameType | None) -> None:
        late = time.process_time() > seconds
        if late or _memory() > memory:
            took = "time" if late else "memory"
            what = f"{names} takes far more {took} to read than a recording of its size"
            overdrawn.append(GpurunError(what, TODO))
            raise overdrawn[0]

    before = signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, LOOK_SECONDS, LOOK_SECONDS)
    try:
        yield
    except MemoryError:
        raise GpurunError(f"{names} needs more memory than there is", TODO) from None
    except Exception:
        if overdrawn:
            raise overdrawn[0] from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def too_long(path: Path, place: str) -> GpurunError:
    """At a place of the file begins a piece of text longer than any honest one."""
    most = f"{LONGEST_TEXT >> 20} MiB"
    return GpurunError(f"{path} is damaged: {place} begins a text of {most} without an end", TODO)


def _size(paths: Sequence[Path]) -> int:
    """The bytes of all files. Pipes and devices are refused: to read one may never end."""
    for each in [p for path in paths for p in (path.iterdir() if path.is_dir() else [path])]:
        if each.exists() and not each.is_file() and not each.is_dir():
            todo = "copy its content to a file, and name that"
            raise GpurunError(f"{each} is no regular file", todo)
    files = [f for path in paths for f in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file())


def _memory() -> int:
    """Bytes in use; 0 where no /proc tells them: only time and size are bounded then."""
    try:
        pages = STATM.read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGESIZE")
