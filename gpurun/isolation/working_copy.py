"""The copy of the working folder that a trial under Landlock works on, and the way there.

Landlock can only forbid. So what the script would write is moved: its folder, its temporary files
and its caches are copies in the scratch, and command line and environment point there.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.isolation.folder_removal import discard
from gpurun.isolation.namespaces import kernel_points


def copy_written(
    source: Path, dest: Path, is_new: Callable[[Path, os.stat_result], bool] | None = None
) -> int:
    """Copy `source`, a folder with all below it, a file or a link; the bytes of the files copied.

    `is_new` tells whether a file counts (all do without it). Deletion marks, sockets and the like
    are left out, and so is what vanishes meanwhile. What is of another type at `dest` gives way.
    """
    try:
        status = source.lstat()
        if stat.S_ISDIR(status.st_mode):
            return _copy_folder(source, dest, is_new)
        kept = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not kept or (is_new is not None and not is_new(source, status)):
            return 0
        make_way(dest, for_folder=False)
        shutil.copyfile(source, dest, follow_symlinks=False)
        _copy_status(source, dest)
    except (FileNotFoundError, PermissionError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def make_way(path: Path, *, for_folder: bool) -> None:
    """Remove what stands at `path`; for a folder a folder may stay."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    elif not for_folder:
        discard(path)


def _copy_folder(
    source: Path, dest: Path, is_new: Callable[[Path, os.stat_result], bool] | None
) -> int:
    make_way(dest, for_folder=True)
    dest.mkdir(parents=True, exist_ok=True)
    try:
        names = os.listdir(source)
    except OSError:
        names = []
    total = sum(copy_written(source / name, dest / name, is_new) for name in names)
    _copy_status(source, dest)
    return total


def _copy_status(source: Path, target: Path) -> None:
    try:
        status = source.lstat()
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    except OSError:  # only root gives files away
        pass
    try:
        shutil.copystat(source, target, follow_symlinks=False)
    except OSError:  # a file system without some attribute
        pass


COPY_LIMIT_BYTES = 2 << 30
"""At most so much is copied for each trial."""
MOST_ENTRIES = 20_000
"""Folders with more entries are not copied."""


class CopyBudget:
    """The bytes that may still be copied for a trial."""

    def __init__(self) -> None:
        self.left = COPY_LIMIT_BYTES

    def take(self, path: str) -> bool:
        """True, and the bytes of a file or a whole folder are spent, if it may be copied.

        A folder with anything of somebody else, or that is no plain file, may not.
        """
        size = _size(path)
        if size is None or size > self.left:
            return False
        self.left -= size
        return True


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times, owner and mode."""
    shutil.copyfile(source, target)
    like(source, target)


def like(source: str, target: str) -> None:
    """Give `target` mode and owner of `source`; as little as the user could do there."""
    try:
        status = os.stat(source)
    except OSError:
        return
    try:
        os.chown(target, status.st_uid, status.st_gid)
    except OSError:  # an owner unknown here: it becomes ours, so the mode must say what we may do
        mode = status.st_mode | 0o200 if os.access(source, os.W_OK) else status.st_mode & ~0o222
    else:
        mode = status.st_mode
    os.chmod(target, stat.S_IMODE(mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _size(path: str) -> int | None:
    """Bytes at and below `path`; None for what cannot be copied."""
    total = entries = 0
    stack = [path]
    while stack:
        one = stack.pop()
        entries += 1
        try:
            status = os.lstat(one)
            if stat.S_ISDIR(status.st_mode):
                stack += [os.path.join(one, name) for name in os.listdir(one)]
            elif stat.S_ISREG(status.st_mode):
                total += status.st_size
            odd = stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK)
        except OSError:
            return None
        theirs = one != path and status.st_uid != os.geteuid()
        if odd or theirs or total > COPY_LIMIT_BYTES or entries > MOST_ENTRIES:
            return None
    return total


CACHE_LIMIT_ENTRIES = 20_000
OWN_FOLDER = ".gpurun"
PATH_VARIABLES = ("PYTHONPATH", "PWD")
CACHES = ("torch", "huggingface", "matplotlib")
"""Folders of the user's cache that a trial reads from, and adds to."""


class WorkingCopy:
    """Copies of `cwd` and of the user's caches in `scratch`, with the files of `layers` on top."""

    def __init__(self, cwd: Path, scratch: Path, layers: Sequence[Path], home: Path) -> None:
        self.origin = cwd
        self.cwd = scratch / "cwd"
        self.temporary = scratch / "tmp"
        self.cache = scratch / "cache"
        self._left_out = {*kernel_points(), str(scratch)}
        self.pairs = ((cwd, self.cwd), (home / ".cache", self.cache))
        self._copied: dict[Path, tuple[int, int]] = {}
        refuse_large(cwd)
        self.temporary.mkdir()
        self._copy_tree(cwd, self.cwd)
        self._link_caches(home / ".cache")
        for layer in layers:
            for origin, copy in self.pairs:
                copy_written(layer / origin.relative_to("/"), copy)
        for _, copy in self.pairs:
            self._remember(copy)

    def written(self, dest: Path) -> int:
        """Copy what is new or changed in the copies to `dest`, under the paths of the originals."""

        def is_new(path: Path, status: os.stat_result) -> bool:
            return self._copied.get(path) != (status.st_mtime_ns, status.st_ino)

        return sum(
            copy_written(copy, dest / origin.relative_to("/"), is_new)
            for origin, copy in self.pairs
        )

    def moved(self, word: str, writable: Sequence[Path]) -> str:
        """`word`, or the path in the copy if it is an absolute path in the original folder."""
        path = Path(word)
        kept = any(path.is_relative_to(folder) for folder in writable)
        if not path.is_absolute() or kept or not path.is_relative_to(self.origin):
            return word
        return str(self.cwd / path.relative_to(self.origin))

    def environment(self, env: dict[str, str], writable: Sequence[Path]) -> dict[str, str]:
        """`env` with temporary files, caches and paths of the folder in the copies."""
        moved = {"TMPDIR": str(self.temporary), "XDG_CACHE_HOME": str(self.cache)}
        moved["TRITON_HOME"] = str(self.cache)
        for name in PATH_VARIABLES:
            if name in env:
                words = env[name].split(os.pathsep)
                moved[name] = os.pathsep.join(self.moved(word, writable) for word in words)
        return {**env, **moved}

    def _copy_tree(self, source: Path, target: Path) -> None:
        target.mkdir()
        for entry in os.scandir(source):
            path, copy = Path(entry.path), target / entry.name
            if entry.is_symlink():
                copy.symlink_to(self._link_target(path))
            elif entry.is_dir():
                if entry.name != OWN_FOLDER and entry.path not in self._left_out:
                    self._copy_tree(path, copy)
            elif entry.is_file():
                try:
                    shutil.copy2(path, copy)
                except PermissionError:  # the script cannot read it either
                    pass
        shutil.copystat(source, target)

    def _link_target(self, link: Path) -> str:
        """Relative links that leave the folder are made absolute, or they would dangle."""
        text = os.readlink(link)
        absolute = os.path.normpath(link.parent / text)
        if Path(absolute).is_relative_to(self.origin):
            return os.path.relpath(absolute, link.parent)
        return absolute

    def _link_caches(self, cache: Path) -> None:
        """Folders anew, files as links: downloads made earlier are found, new ones land here."""
        self.cache.mkdir()
        count = 0
        for name in CACHES:
            for folder, _, files in os.walk(cache / name):
                target = self.cache / os.path.relpath(folder, cache)
                target.mkdir(parents=True, exist_ok=True)
                for file in files:
                    count += 1
                    if count > CACHE_LIMIT_ENTRIES:
                        return
                    os.symlink(os.path.join(folder, file), target / file)

    def _remember(self, copy: Path) -> None:
        for folder, names, files in os.walk(copy):
            for name in (*names, *files):
                path = Path(folder) / name
                status = path.lstat()
                self._copied[path] = (status.st_mtime_ns, status.st_ino)


def refuse_large(folder: Path) -> None:
    """`GpurunError` if the folder holds more than can be copied for each trial."""
    total, left_out = 0, kernel_points()
    for place, names, files in os.walk(folder):
        kept = (name for name in names if os.path.join(place, name) not in left_out)
        names[:] = [name for name in kept if name != OWN_FOLDER]
        for name in files:
            status = os.lstat(os.path.join(place, name))
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
        if total > COPY_LIMIT_BYTES:
            raise GpurunError(
                f"{folder} is larger than {COPY_LIMIT_BYTES >> 30} GiB, too large to copy",
                "run the trials on the real files with --trials-in-place, or move data elsewhere",
            )
