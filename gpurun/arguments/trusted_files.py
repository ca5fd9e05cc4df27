"""Files of the configuration, which anybody can leave in `/tmp` or in a shared folder: the nearest
one upward holds.

So one that is no file is not waited for. One that holds anything must be this user's or root's, and
others must not be able to write it, as Git asks of a repository (`safe.directory`): it decides what
gpurun runs and where it writes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.records.parse_json import open_regular

MOST_BYTES = 1 << 24
"""No configuration is as long; what has no end (a device) is not read."""


def read_regular(path: Path) -> bytes:
    """The content of a file; errors are those of `open_regular`."""
    return read_with_status(path)[0]


def read_with_status(path: Path) -> tuple[bytes, os.stat_result]:
    """The content of a file, and what the system says of the very file that was read."""
    with open_regular(path) as file:
        return file.read(MOST_BYTES), os.fstat(file.fileno())


def require_trusted(config: Path, read: os.stat_result, *code: Path) -> None:
    """`GpurunError` if others own or may write the file that was `read`, the `code` that it leads
    to (files or folders of them), or the folder of one of them. Of a link both ends count.
    """
    _require_own(config, config, read)
    if not os.path.lexists(config):
        raise GpurunError(f"{config} is gone: somebody changes it right now", "start again")
    files = [path for named in code for path in (named, *named.glob("*.py"))]
    places = dict.fromkeys(
        place for path in (config, config.resolve(), *files) for place in (path, path.parent)
    )
    for place in places:
        if place.exists():
            _require_own(config, place, place.lstat())
            _require_own(config, place, place.stat())
    for named in code:  # others may add modules to a folder, or the file that is missing
        place = next(path for path in (named, *named.parents) if path.exists())
        if place.is_dir() and others_may_write(place.stat()):
            raise _may_write(config, str(place), place)


def _require_own(config: Path, place: Path, status: os.stat_result) -> None:
    what = "it" if place == config else str(place)
    if status.st_uid not in trusted_users():
        owner = _name(status.st_uid)
        by_sudo = f"; if you trust {owner}: SUDO_UID={status.st_uid} gpurun ..."
        raise GpurunError(
            f"{config} decides what gpurun runs and writes, and {what} belongs to {owner}",
            "write a gpurun.toml of your own, nearer to where you start gpurun: the nearest one "
            f"holds{by_sudo if os.geteuid() == 0 else ''}",
        )
    # nobody renames files of others in a sticky folder, or writes a link
    is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if not is_sticky and not stat.S_ISLNK(status.st_mode) and others_may_write(status):
        raise _may_write(config, what, place)


def _may_write(config: Path, what: str, place: Path) -> GpurunError:
    return GpurunError(
        f"{config} decides what gpurun runs and writes, and others may write {what}",
        f"chmod go-w {place}",
    )


def trusted_users() -> set[int]:
    """Root under sudo works in the files of the user who called it."""
    sudo = os.environ.get("SUDO_UID", "")
    return {0, os.geteuid()} | ({int(sudo)} if os.geteuid() == 0 and sudo.isdigit() else set())


def others_may_write(status: os.stat_result) -> bool:
    """True if the mode lets others write; a user's private group is the user."""
    by_group = status.st_mode & stat.S_IWGRP and not _is_private(status.st_uid, status.st_gid)
    return bool(by_group or status.st_mode & stat.S_IWOTH)


def _is_private(user: int, group: int) -> bool:
    """True if the group is root's, or has the number or the name of the user, as most systems
    make one for each."""
    import grp

    try:
        return group in (0, user) or grp.getgrgid(group).gr_name == _name(user)
    except KeyError:
        return False


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"uid {user}"
