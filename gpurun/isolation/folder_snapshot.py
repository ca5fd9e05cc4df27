"""A record of a folder tree, by which gpurun notices that a trial has changed a file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.isolation.namespaces import kernel_points

SMALL_FILE_BYTES = 64 << 10
HASHED_BYTES = 256 << 20


@dataclass(frozen=True)
class Entry:
    """One path: everything of lstat that writing changes, and a digest of a small file's content.

    `modified_ns` and `size` are None for folders in which something excluded lies.
    """

    kind: int
    size: int | None
    modified_ns: int | None
    mode: int
    owner: tuple[int, int]
    inode: int
    link: str | None
    digest: str | None


@dataclass(frozen=True)
class Snapshot:
    """`complete` is False when there were more paths than the limit: the rest is unseen."""

    entries: Mapping[str, Entry]
    complete: bool

    def differences(self, later: Snapshot) -> tuple[str, ...]:
        """The paths that changed, one line each, sorted by path.

        For two incomplete snapshots, only the paths in both are compared.
        """
        lines = []
        for path in sorted(self.entries.keys() | later.entries.keys()):
            before, after = self.entries.get(path), later.entries.get(path)
            if before is not None and after is not None:
                if before != after:
                    lines.append(f"changed: {path} ({_what(before, after)})")
            elif before is not None and later.complete:
                lines.append(f"gone: {path}")
            elif after is not None and self.complete:
                lines.append(f"new: {path}")
        return tuple(lines)

    def without(self, paths: Collection[Path]) -> Snapshot:
        """This snapshot without some files, which others write, and their folders' times."""
        left_out = {os.fspath(path) for path in paths}
        folders = {os.path.dirname(path) for path in left_out}
        entries = {
            path: replace(entry, size=None, modified_ns=None) if path in folders else entry
            for path, entry in self.entries.items()
            if path not in left_out
        }
        return Snapshot(entries, self.complete)


def snapshot(roots: Sequence[Path], *, exclude: Sequence[Path], limit: int = 200_000) -> Snapshot:
    """Look at every path at and below `roots`, except at and below `exclude` and in the kernel's
    own file systems, such as /proc below /."""
    left_out = kernel_points() | {os.path.abspath(path) for path in exclude}
    holders = {os.path.dirname(path) for path in left_out}
    entries: dict[str, Entry] = {}
    stack = [os.path.abspath(root) for root in reversed(roots)]
    budget = HASHED_BYTES
    while stack:
        path = stack.pop()
        if path in left_out or path in entries:
            continue
        if len(entries) >= limit:
            return Snapshot(entries, complete=False)
        entry = _look(path, path in holders, budget)
        if entry is None:
            continue
        entries[path] = entry
        if entry.digest is not None:
            budget -= entry.size or 0
        if stat.S_ISDIR(entry.kind):
            stack += _children(path)
    return Snapshot(entries, complete=True)


def _children(path: str) -> list[str]:
    try:
        return sorted((os.path.join(path, name) for name in os.listdir(path)), reverse=True)
    except OSError:
        return []


def _look(path: str, holder: bool, budget: int) -> Entry | None:
    try:
        status = os.lstat(path)
        kind = stat.S_IFMT(status.st_mode)
        link = os.readlink(path) if stat.S_ISLNK(kind) else None
    except OSError:
        return None
    digest = None
    if stat.S_ISREG(kind) and status.st_size <= min(SMALL_FILE_BYTES, budget):
        digest = _digest(path)
    return Entry(
        kind=kind,
        size=None if holder else status.st_size,
        modified_ns=None if holder else status.st_mtime_ns,
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
        inode=status.st_ino,
        link=link,
        digest=digest,
    )


def _digest(path: str) -> str | None:
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def _what(before: Entry, after: Entry) -> str:
    names = ("kind", "size", "modified_ns", "mode", "owner", "inode", "link", "digest")
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    words = {"modified_ns": "time", "digest": "content"}
    return ", ".join(words.get(name, name) for name in changed)


def files_open_for_writing(roots: Sequence[Path]) -> set[Path]:
    """Regular files at or below `roots` that some process we may look at can write to.

    Examples are our own output (`> out.txt`, `| tee log.txt`) and another training's log.
    """
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
