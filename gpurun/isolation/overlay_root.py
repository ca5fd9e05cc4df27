"""Builds the file system that a trial sees: it reads the real files, its writes are kept apart.

An overlay of `/` as a whole is refused where other file systems are mounted below it, so the new
root is a tmpfs with one overlay for each top-level folder and for each file system mounted further
down. In a user namespace the mounts that were there before are *locked*: a folder with one of them
below cannot be a lower layer either, and is rebuilt entry by entry ("descended into"): in the
working folder, of copies.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from gpurun.isolation import syscalls
from gpurun.isolation.isolation_mode import COPIES, MEMORY, ROOT, UPPERS, SupervisorSpec
from gpurun.isolation.namespaces import KERNEL_FILE_SYSTEMS, kernel_points, mounts
from gpurun.isolation.working_copy import CopyBudget, copy_file, copy_written, like, make_way

SMALL_FILE_BYTES = 1 << 20
"""Files that an overlay cannot hold are copied up to this size wherever they lie. Larger ones are
copied only in the working folder, and bound read-only elsewhere."""

SHARED_MEMORY = "/dev/shm"
FOREIGN_ENTRIES = 20_000
"""At most this many entries of the working folder are checked for foreign owners."""

TOO_LARGE = " is read-only in trials, as others may be: it is too large to be copied for each"

_OWN = ("/proc", "/sys", "/dev")


def prepare_memory(scratch: str) -> None:
    """Mount the tmpfs for upper layers that cannot lie on disk. It lives with this namespace."""
    memory = f"{scratch}/{MEMORY}"
    syscalls.mount("tmpfs", memory, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=700")


def mount_shared_memory(target: str) -> None:
    """Mount an empty /dev/shm of the same size, for loader workers: its files vanish with us."""
    status = os.statvfs(SHARED_MEMORY)
    options = f"mode=1777,size={status.f_blocks * status.f_frsize}"
    syscalls.mount("tmpfs", target, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


class OverlayRoot:
    """One build of the new root at `scratch/root`. `notes` says what is not as it should be.

    `locked`: we are in a user namespace of our own.
    """

    def __init__(self, spec: SupervisorSpec, locked: bool) -> None:
        self.spec = spec
        self.locked = locked
        self.root = f"{spec.scratch}/{ROOT}"
        self.notes: list[str] = []
        self.table = {
            point: mount
            for point, mount in mounts().items()
            if not point.startswith(spec.scratch) and not _is_hidden(point)
        }
        self.layers = _outside(spec.layers, spec.scratch)
        # The scratch must not lie in a lower layer of an overlay whose upper layer it holds.
        self.descended = set(_ancestors(os.path.dirname(spec.scratch)))
        if locked:
            for point in self.table:
                self.descended |= set(_ancestors(point))
        places = (*self.table, *spec.familiar, *spec.writable, os.path.dirname(spec.scratch))
        self.known = {step for place in places for step in (*_ancestors(place), place)}
        self.memory_only = False
        self.budget = CopyBudget()
        self.count = 0

    def build(self) -> None:
        """Mount everything but /proc, which the caller adds."""
        syscalls.mount("tmpfs", self.root, "tmpfs", syscalls.MS_NOSUID, "mode=755")
        self._descend("/")
        for name in ("proc", "sys", "dev"):
            if os.path.isdir(f"/{name}"):
                os.makedirs(f"{self.root}/{name}", exist_ok=True)
        for name in ("sys", "dev"):
            self._bind(f"/{name}")
        self._shared_memory()
        for path in self.spec.writable:
            os.makedirs(self.root + path, exist_ok=True)
            self._bind(path)

    def enter(self) -> None:
        """Make it the root of this process and forget the old one."""
        os.chdir(self.root)
        syscalls.pivot_root_here()

    def _descend(self, path: str) -> None:
        """A folder with each folder of the original below it taken over by itself.

        Its own files lie in an overlay, else on the tmpfs.
        """
        target = self.root + path
        os.makedirs(target, exist_ok=True)
        children = [os.path.join(path, name) for name in sorted(self._names(path))]
        children = [child for child in children if child not in _OWN]
        bound: list[str] = []
        if not self.locked:
            with suppress(OSError):  # then its files are copied, or bound
                self._mount_overlay(path, f"{self.spec.scratch}/{MEMORY}", [path])
        elif self._is_likely(path):
            lower, children, bound = self._stand_in(path, children)
            self._mount_overlay(path, self.spec.scratch, [lower])
        for child in bound:
            self._bind_file(child, child)
        for child in children:
            self._take(child)
        if not os.path.ismount(target):
            like(path, target)

    def _is_likely(self, path: str) -> bool:
        """True in the working folder, where the script is likely to write."""
        cwd = self.spec.cwd
        return path == cwd or (cwd != "/" and path.startswith(cwd + "/"))

    def _stand_in(self, path: str, children: list[str]) -> tuple[str, list[str], list[str]]:
        """A lower layer in place of a folder that cannot be one: copies of what is in it.

        With the folders that are to be mounted there, and the files: those that are not copied.
        """
        self.count += 1
        lower, folders, bound = f"{self.spec.scratch}/{COPIES}/{self.count}", [], []
        os.makedirs(lower)
        for child in children:
            source, copy = self._newest(child), os.path.join(lower, os.path.basename(child))
            if os.path.islink(source):
                os.symlink(os.readlink(source), copy)
            elif os.path.isdir(source) and not self._is_copied(child):
                os.mkdir(copy)
                folders.append(child)
            elif os.path.isdir(source):
                for layer in ("", *reversed(self.layers)):
                    copy_written(Path(layer + child), Path(copy))
            elif self._may_copy(source, child):
                copy_file(source, copy)
            else:
                os.close(os.open(copy, os.O_CREAT | os.O_WRONLY, 0o600))
                bound.append(child)
        like(path, lower)
        return lower, folders, bound

    def _is_copied(self, path: str) -> bool:
        """True for a folder that is new, or that may be copied."""
        new = not os.path.isdir(path) or os.path.islink(path)
        return new or (not self._holds_mount(path) and self.budget.take(path))

    def _holds_mount(self, path: str) -> bool:
        mounted = (*self.table, *self.spec.writable, self.spec.scratch)
        return any(place == path or place.startswith(path + "/") for place in mounted)

    def _names(self, path: str) -> set[str]:
        names: set[str] = set()
        for folder in (path, *(layer + path for layer in self.layers)):
            try:
                names |= set(os.listdir(folder))
            except OSError:  # not there, or not ours to list: then we take what we know of
                pass
        known = {os.path.split(place) for place in self.known}
        return names | {name for parent, name in known if parent == path and name}

    def _take(self, path: str) -> None:
        source, target = self._newest(path), self.root + path
        try:
            mode = os.lstat(source).st_mode
        except OSError:  # a FUSE mount of somebody else, or gone since we looked
            return
        if source == path and not stat.S_ISDIR(mode) and os.path.lexists(target):
            return  # an overlay shows it
        make_way(Path(target), for_folder=stat.S_ISDIR(mode))
        if stat.S_ISDIR(mode):
            os.makedirs(target, exist_ok=True)
            self._take_folder(path)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(source), target)
        else:
            self._take_file(source, path)

    def _newest(self, path: str) -> str:
        for layer in self.layers:
            if os.path.lexists(layer + path):
                return layer + path
        return path

    def _take_folder(self, path: str) -> None:
        mount = self.table.get(path)
        if mount is not None and mount.kind in KERNEL_FILE_SYSTEMS:
            self._bind(path)
        elif path in self.descended:
            self._descend(path)
        else:
            self._cover(path)
            if not self.locked:
                for point in sorted(p for p in self.table if p.startswith(path + "/")):
                    self._take_mount(point)

    def _take_mount(self, point: str) -> None:
        """A mount below a folder that is covered already (locked ones were descended to)."""
        if not os.path.lexists(self.root + point):
            return
        if not os.path.isdir(point):
            self._take_file(point, point)
        elif self.table[point].kind in KERNEL_FILE_SYSTEMS:
            self._bind(point)
        else:
            self._cover(point)

    def _cover(self, path: str) -> None:
        mount = self.table.get(path)
        if mount is not None and mount.read_only:
            syscalls.mount(path, self.root + path, flags=syscalls.MS_BIND)
        else:
            self._overlay(path)

    def _take_file(self, source: str, path: str) -> None:
        if self._may_copy(source, path):
            copy_file(source, self.root + path)
            return
        os.close(os.open(self.root + path, os.O_CREAT | os.O_WRONLY, 0o600))
        self._bind_file(source, path)

    def _may_copy(self, source: str, path: str) -> bool:
        """True for a file that the user may write: another one needs no copy to stay as it is."""
        status = os.lstat(source)
        if not stat.S_ISREG(status.st_mode) or not os.access(source, os.R_OK | os.W_OK):
            return False
        if status.st_size <= SMALL_FILE_BYTES:
            return True
        return self._is_likely(os.path.dirname(path)) and self.budget.take(source)

    def _bind_file(self, source: str, path: str) -> None:
        target = self.root + path
        syscalls.mount(source, target, flags=syscalls.MS_BIND)
        if os.path.isfile(source) and os.access(source, os.W_OK):
            syscalls.make_read_only(target)
            if self._is_likely(os.path.dirname(path)):
                self._note_large(path)

    def _note_large(self, path: str) -> None:
        if not any(note.endswith(TOO_LARGE) for note in self.notes):
            self.notes.append(path + TOO_LARGE)

    def _overlay(self, path: str) -> None:
        """Lay an empty folder over `path`: on disk, else in memory; else show it read-only."""
        uppers = [f"{self.spec.scratch}/{MEMORY}"]
        in_memory = self.memory_only or path == SHARED_MEMORY or self._holds_scratch(path)
        if not in_memory:
            uppers.insert(0, self.spec.scratch)
        failure = ""
        for upper in uppers:
            try:
                self._mount_overlay(path, upper)
            except OSError as error:
                failure = failure or error.strerror or str(error)
                continue
            if upper != uppers[0]:
                self.memory_only = True
                self.notes.append(f"files that trials write are held in memory ({failure})")
            return
        if (self.spec.cwd + "/").startswith(path + "/"):
            raise OSError(failure)
        self._bind(path)
        syscalls.make_read_only(self.root + path)
        self.notes.append(f"{path} is read-only in trials ({failure})")

    def _holds_scratch(self, path: str) -> bool:
        return self.spec.scratch.startswith(path + "/")

    def _mount_overlay(self, path: str, place: str, only: list[str] | None = None) -> None:
        """Mount it. `only`: lower layers in place of the usual."""
        self.count += 1
        base = f"{place}/{UPPERS}/{self.count}"
        upper, work = f"{base}/upper{path}", f"{base}/work"
        os.makedirs(upper)
        os.makedirs(work)
        like(path, upper)
        if only is None:
            self._make_familiar(path, f"{base}/upper")
        lowers = self._lower_layers(path, upper) if only is None else only
        # By descriptor, because names may hold the commas and colons that separate options.
        handles = [os.open(lower, os.O_PATH | os.O_DIRECTORY) for lower in lowers]
        try:
            names = ":".join(f"/proc/self/fd/{handle}" for handle in handles)
            options = f"lowerdir={names},upperdir={upper},workdir={work}"
            options += ",userxattr" if self.locked else ",redirect_dir=on"
            syscalls.mount("overlay", self.root + path, "overlay", data=options)
        finally:
            for handle in handles:
                os.close(handle)

    def _lower_layers(self, path: str, upper: str) -> list[str]:
        lowers = [x + path for x in self.layers if os.path.isdir(x + path)]
        if self._holds_scratch(path):  # and the copies of the layers with it
            for layer in reversed(lowers):
                copy_written(Path(layer), Path(upper))
            lowers = []
        return [*lowers, path] if os.path.isdir(path) else lowers

    def _make_familiar(self, path: str, upper: str) -> None:
        """Make the folders of others on the way to the user's own ones in the upper layer.

        The kernel would copy such a folder up with its owner, whom our user namespace does not
        know, and the script's write below it would fail (EOVERFLOW).
        """
        if not self.locked:
            return
        for folder in self.spec.familiar:
            for step in (*_ancestors(folder), folder):
                if step.startswith(path + "/") and os.path.isdir(step):
                    os.makedirs(upper + step, exist_ok=True)
                    like(step, upper + step)
        cwd = self.spec.cwd
        if cwd == path or cwd.startswith(path + "/"):
            self._take_foreign_entries(cwd, upper)
        elif path.startswith(cwd + "/"):
            self._take_foreign_entries(path, upper)

    def _take_foreign_entries(self, top: str, upper: str) -> None:
        """The same for what lies below the working folder and belongs to another group or user."""
        left, skipped = FOREIGN_ENTRIES, kernel_points()
        for folder, names, files in os.walk(top):
            names[:] = [name for name in names if os.path.join(folder, name) not in skipped]
            for name in (*names, *files):
                path = os.path.join(folder, name)
                left -= 1
                if _is_foreign(path) and os.access(path, os.W_OK):
                    self._copy_up(path, upper)
            if left <= 0:
                self.notes.append(f"{top} is large: some files of other groups may be unwritable")
                return

    def _copy_up(self, path: str, upper: str) -> None:
        """Do by hand what the kernel cannot: put a writable copy into the upper layer."""
        above = [step for step in _ancestors(path) if not os.path.lexists(upper + step)]
        for step in (*above, *([path] if os.path.isdir(path) else [])):
            os.makedirs(upper + step, exist_ok=True)
            like(step, upper + step)
        if os.path.isdir(path):
            return
        if os.access(path, os.R_OK) and self.budget.take(path):
            copy_file(path, upper + path)
        else:
            self._note_large(path)

    def _shared_memory(self) -> None:
        """A /dev/shm of the same size whose new files vanish with the sandbox.

        One that cannot be written stays so: else workers would live in trials alone.
        """
        path = SHARED_MEMORY
        if not os.path.isdir(path) or os.path.islink(path) or path in self.spec.writable:
            return
        if not os.access(path, os.W_OK):
            return
        if os.listdir(path):
            self._overlay(path)
            return
        mount_shared_memory(self.root + path)

    def _bind(self, path: str) -> None:
        syscalls.mount(path, self.root + path, flags=syscalls.MS_BIND | syscalls.MS_REC)


def _is_hidden(point: str) -> bool:
    """True if the mount cannot be reached because another one lies above it."""
    try:
        os.lstat(point)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # a FUSE mount of somebody else: it is there
        return False
    return False


def _ancestors(path: str) -> list[str]:
    """The folders above `path` from "/" down: "/a/b/c" gives "/", "/a", "/a/b"."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:i]) for i in range(len(parts))] if path != "/" else []


def _is_foreign(path: str) -> bool:
    """True if owner or group is unknown to a user namespace that maps only our own."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return plain and (status.st_uid, status.st_gid) != (os.getuid(), os.getgid())


def _outside(layers: tuple[str, ...], scratch: str) -> list[str]:
    """Copies of the layers in the scratch, of hard links where they can be; the last one first.

    A lower layer must not lie inside another one, and a captured one may lie in the user's folder.
    """
    copies: list[str] = []
    for number, layer in enumerate(layers):
        copies.insert(0, f"{scratch}/layers/{number}")
        shutil.copytree(layer, copies[0], symlinks=True, copy_function=_link)
    return copies


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target
