"""Keeps a rank's view of rank 0's files up to date.

A live overlay shows a new file whose name nobody has asked for yet, and new content of a file that
is rewritten in place. It goes on showing what it remembers of every other name: that it does not
exist, the file that has been renamed over or deleted, the folder that has been made anew. Measured
on Linux 6.18, with and without a user namespace. A remount that changes nothing makes it forget all
names that no process holds open, in 20 to 180 microseconds.

Files that the rank itself has deleted stay hidden by a mark in the upper layer. The mark is removed
once rank 0 has made the file again: then rank 0's file is the run's.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from gpurun.isolation import syscalls
from gpurun.isolation.folder_removal import discard

PATIENCE_SECONDS = 1.0
"""So long a thing that the rank has deleted must have lain there, made by rank 0 during the run,
until the rank sees it again. At a moment when both have come to the same point: at once."""

MOST_NAMES = 2_000
"""Folders with more entries are not searched for names that should be seen and are not."""


class RankView:
    """The overlays mounted below `root`: pairs of a path and of the `upper` whose `upper/path`
    takes what is written there. `start_ns`: when the run began; what is older was there before.
    `start_clock_ns`: the same by the monotonic clock.

    To be made where the overlays are mounted, and used in that namespace.
    """

    def __init__(
        self,
        root: str,
        overlays: list[tuple[str, str]],
        locked: bool,
        start_ns: int,
        start_clock_ns: int,
    ) -> None:
        self.root = root
        self.overlays = tuple(overlays)
        self._start = start_ns, start_clock_ns
        self.descriptors = [
            syscalls.pick_file_system(root + path) for path in dict.fromkeys(p for p, _ in overlays)
        ]
        self._locked = locked
        self._opaque = "user.overlay.opaque" if locked else "trusted.overlay.opaque"
        self._hidden_since: dict[str, float] = {}
        self._checked: dict[str, int] = {}
        self._covers = 0

    @property
    def start_ns(self) -> int:
        """When the run began, or would have by the wall clock as it is now: one that was set back
        gives new files earlier times."""
        told, clock = self._start
        return min(told, time.time_ns() - (time.monotonic_ns() - clock))

    def refresh(self, *, settled: bool) -> None:
        """Show what rank 0 has written until now.

        `settled`: both ranks have come to the same point, so what is there is meant to be there.
        """
        folders = []
        for path, upper in self.overlays:
            folders += list(self._reveal(path, upper, settled))
        self._forget_names()
        for path, upper in folders:
            self._reopen_if_held(path, upper)

    def upper_of(self, path: str) -> str | None:
        """Where in an upper layer the rank's own version of `path` lies, or would lie.

        None for a path that could lead out of the layer: relative, by `..`, or through a link.
        """
        above = self.root + os.path.dirname(path)
        if path != os.path.abspath(path) or above.rstrip("/") != os.path.realpath(above):
            return None
        best = max(
            (pair for pair in self.overlays if is_below(path, pair[0])),
            key=lambda pair: len(pair[0]),
            default=None,
        )
        return None if best is None else best[1] + path

    def is_of_this_run(self, path: str) -> bool:
        """True if the real thing at `path` has been made since the run began."""
        try:
            return syscalls.born_ns(path) >= self.start_ns
        except OSError:
            return False

    def adopt(self, path: str) -> bool:
        """Make a folder of rank 0 the rank's own too, as if it had made it.

        False for a folder that is older than the run, and for one that the rank has already.
        """
        upper = self.upper_of(path)
        if upper is None or os.path.lexists(upper) or os.path.islink(path):
            return False
        if not os.path.isdir(path) or not self.is_of_this_run(path):
            return False
        self._forget_names()
        self._copy_up(path)
        return os.path.isdir(upper)

    def delete(self, path: str) -> bool:
        """Take a file or folder from the rank's view at once, its own version of it included.

        False for a path that does not lie in the layer.
        """
        upper = self.upper_of(path)
        if upper is None:
            return False
        if os.path.isdir(upper) and not os.path.islink(upper):
            discard(Path(upper))
        elif os.path.lexists(upper):
            os.unlink(upper)
        if os.path.lexists(path):
            self.hide(path)
        else:
            self._forget_names()
        return True

    def hide_of_this_run(self, path: str) -> bool:
        """Hide a file or link that rank 0 has made since the run began; False for an older one."""
        if self.upper_of(path) is None or not self.is_of_this_run(path):
            return False
        self.hide(path)
        return True

    def hide(self, path: str) -> None:
        """Let the rank see nothing at `path`, where it has no version of its own."""
        upper = self.upper_of(path)
        if upper is None or os.path.lexists(upper):
            return
        if not os.path.isdir(os.path.dirname(upper)):
            self._copy_up(os.path.dirname(path))
        os.mknod(upper, stat.S_IFCHR, os.makedev(0, 0))
        self._forget_names()

    def _copy_up(self, folder: str) -> None:
        """Have the kernel make a folder, and those above it, in the upper layer."""
        seen = self.root + folder
        os.chmod(seen, stat.S_IMODE(os.stat(seen).st_mode))

    def _reveal(self, path: str, upper: str, settled: bool) -> Iterator[tuple[str, str]]:
        """Remove marks of deletion; gives every folder that lies in both layers."""
        stack = [path]
        while stack:
            folder = stack.pop()
            if os.path.isdir(folder):
                yield folder, upper
            for entry in _entries(upper + folder):
                below = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    stack.append(below)
                    if self._is_opaque(entry.path) and self._is_due(below, settled):
                        os.removexattr(entry.path, self._opaque)
                elif _is_whiteout(entry) and self._is_due(below, settled):
                    os.unlink(entry.path)

    def _is_due(self, path: str, settled: bool) -> bool:
        if not self.is_of_this_run(path):
            self._hidden_since.pop(path, None)
            return False
        now = time.monotonic()
        since = self._hidden_since.setdefault(path, now)
        if settled or now - since >= PATIENCE_SECONDS:
            del self._hidden_since[path]
            return True
        return False

    def _is_opaque(self, folder: str) -> bool:
        try:
            return os.getxattr(folder, self._opaque) == b"y"
        except OSError:
            return False

    def _forget_names(self) -> None:
        for descriptor in self.descriptors:
            syscalls.reconfigure(descriptor)

    def _reopen_if_held(self, path: str, upper: str) -> None:
        """Where a process of the rank holds a folder as it was, put it as it is on top."""
        try:
            modified = os.stat(path).st_mtime_ns
            if modified < self.start_ns or self._checked.get(path) == modified:
                return
            names = set(os.listdir(path)) - set(os.listdir(upper + path))
        except OSError:  # removed meanwhile
            return
        if len(names) <= MOST_NAMES and any(self._is_unseen(f"{path}/{name}") for name in names):
            self._cover(path, upper)
        self._checked[path] = modified

    def _is_unseen(self, path: str) -> bool:
        return not os.path.lexists(self.root + path) and os.path.lexists(path)

    def _cover(self, path: str, upper: str) -> None:
        self._covers += 1
        work = f"{os.path.dirname(upper)}/work-{self._covers}"
        os.mkdir(work)
        # By descriptor, because names may hold the commas and colons that separate options.
        handles = [
            os.open(folder, os.O_PATH | os.O_DIRECTORY) for folder in (path, upper + path, work)
        ]
        try:
            lower, above, aside = (f"/proc/self/fd/{handle}" for handle in handles)
            options = f"lowerdir={lower},upperdir={above},workdir={aside}"
            options += ",userxattr" if self._locked else ",redirect_dir=on"
            syscalls.mount("overlay", self.root + path, "overlay", data=options)
        finally:
            for handle in handles:
                os.close(handle)
        self.descriptors.append(syscalls.pick_file_system(self.root + path))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # removed meanwhile
        return []


def _is_whiteout(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(0, 0)


def is_below(path: str, folder: str) -> bool:
    """True if a path is a folder's or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
