"""Files that a living process holds open for writing: they may grow while trials run.

Examples are our own output (`> out.txt`, `| tee log.txt`) and another training's log.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path


def files_open_for_writing(roots: Sequence[Path]) -> set[Path]:
    """Regular files at or below `roots` that some process we may look at can write to."""
    tops = [Path(os.path.realpath(root)) for root in roots]
    found: set[Path] = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            found.update(_written_by(process, tops))
    return found


def _written_by(process: Path, tops: Sequence[Path]) -> Iterator[Path]:
    try:
        descriptors = os.listdir(process / "fd")
    except OSError:  # ended, or not ours to look at
        return
    for descriptor in descriptors:
        link = process / "fd" / descriptor
        try:
            path = Path(os.readlink(link))
            if not any(path.is_relative_to(top) for top in tops):
                continue
            writable = link.lstat().st_mode & stat.S_IWUSR
            if writable and stat.S_ISREG(link.stat().st_mode):
                yield path
        except OSError:
            continue
