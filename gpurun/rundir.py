"""Where records go: `.gpurun/` in the current folder, or elsewhere on request or by need.

What lies there may have come with a repository or an archive. So no link in it is followed: not
one in place of a folder (`_check`), and not one in place of a file (`write_whole`).
"""

from __future__ import annotations

import errno
import json
import math
import os
import pwd
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpurun.errors import GpurunError, at_limit
from gpurun.records.codec import JsonValue
from gpurun.records.parse_json import open_regular, parse_document
from gpurun.records.script_arguments import MASK
from gpurun.records.spec import DRAFT

if TYPE_CHECKING:
    from subprocess import CompletedProcess

FOLDER = ".gpurun"
RUNS = "runs"
OWN_FOLDERS = (
    "tuned", "probes", "bisections", "worktrees", "benchmarks", "benchmarks/accepted",
)  # fmt: skip
"""The folders of records beside `runs/`."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a quota, and a limit on the size of files (`ulimit -f`)."""
MOVED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a place in a folder of records that somebody moved meanwhile."""
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
MADE: list[Path] = []
"""Run folders that this process made."""
INCOMPLETE = "the record is incomplete"


def find_home(cwd: Path, out: str | None = None) -> Path:
    """The folder of all records, made if missing; `OSError` where none can be written.

    `out` (the flag `--out`) wins over the variable GPURUN_HOME; what is asked for is not replaced
    by something else. Without either: `.gpurun/` in `cwd`, or in the user's state folder if `cwd`
    is read-only. `GpurunError` for a folder that somebody else may have laid out.
    """
    asked = out or os.environ.get("GPURUN_HOME")
    if asked:
        return _prepared((cwd / asked).resolve())
    here = cwd.resolve() / FOLDER
    try:
        return _prepared(_state_folder() if _is_others(here) else here)
    except OSError:
        return _prepared(_state_folder())


def existing_home(cwd: Path, out: str | None = None) -> Path:
    """The folder of all records as `find_home` has it; nothing is made, it may be missing.

    Where `.gpurun/` cannot be written, new runs are in the state folder; before there are any, what
    others left in `.gpurun/` is read.
    """
    asked = out or os.environ.get("GPURUN_HOME")
    home = (cwd / asked).resolve() if asked else _kept_in(cwd.resolve() / FOLDER)
    _check(home)
    return home


def _kept_in(here: Path) -> Path:
    try:
        elsewhere = _state_folder()
    except OSError:
        return here
    if not os.path.lexists(here) and _writable(here.parent):
        return here
    ours = os.path.isdir(here) and not _is_others(here)
    return here if ours and (_writable(here) or not os.path.isdir(elsewhere)) else elsewhere


def newest_run(home: Path) -> Path | None:
    """The latest run folder; None if there is none. The folder of a benchmark, which holds nothing
    but its launches, does not count, nor does an empty one. Names begin with the second of the
    start, in UTC: local time goes back once a year, and a container's may differ from its host's.
    """
    try:
        folders = [e for e in os.scandir(home / RUNS) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return None
    runs = [one for one in folders if not _has_only_folders(one.path)]
    begun = max((entry.name[:15] for entry in runs), default="")
    latest = [entry for entry in runs if entry.name[:15] == begun]
    newest = max(latest, key=lambda entry: entry.stat().st_mtime_ns, default=None)
    return None if newest is None else Path(newest.path)


def named_run(home: Path, name: str) -> Path | None:
    """The path of this name, or the run of this name; None if there is neither."""
    places = (Path(name), home / RUNS / name)
    return next((path for path in places if os.path.exists(path)), None)


def _has_only_folders(folder: str) -> bool:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # another user's, or just removed
        return False
    return all(entry.is_dir() for entry in entries)


def other_runs(run: Path) -> Iterator[Path]:
    """The run folders beside this one, by their names: a folder of the user's is none of them,
    nor is a link.
    """
    named = (other for other in run.parent.glob("*-*-*") if RUN_ID.fullmatch(other.name))
    return (other for other in named if not other.is_symlink())


def own_folder(home: Path, name: str) -> Path:
    """The folder `name` of the records, made if missing, which version control passes over."""
    folder = home / name
    _keep_to_ourselves(folder)
    return folder


def new_run(home: Path) -> Path:
    """A fresh folder `runs/<id>`; two launches at once never share one."""
    runs = home / RUNS
    runs.mkdir(exist_ok=True)
    while True:
        second = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run = runs / f"{second}-{os.urandom(3).hex()}"
        try:
            run.mkdir()
        except FileExistsError:
            continue
        MADE.append(run)
        return run


@contextmanager
def kept_run(home: Path) -> Iterator[Path]:
    """A fresh run folder for the time of a block, which stays if something was written there."""
    run = new_run(home)
    try:
        yield run
    finally:
        with suppress(OSError):
            run.rmdir()
            MADE.remove(run)


def run_folder(cwd: Path, out: str | None) -> Path:
    """A fresh run folder below the folder of records; `GpurunError` where none can be made."""
    try:
        return new_run(find_home(cwd, out))
    except OSError as error:
        raise no_records(error) from None


def of_surroundings(error: Exception) -> GpurunError | None:
    """The error as one of a full disk, of a folder that somebody removed, of temporary folders in
    which nothing can be written, or of a locale without a path's characters; None if it is ours.
    """
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return GpurunError(
            f"the locale's encoding ({error.encoding}) has no {error.object[error.start]!a}",
            "set PYTHONUTF8=1",
        )
    if not isinstance(error, OSError):
        return None
    if error.errno in NO_ROOM:
        return no_records(error)
    if "temporary directory" in (error.strerror or ""):  # `tempfile` has tried all that it knows
        return GpurunError("no temporary folder can be written", "make room there, or set TMPDIR")
    try:
        gone = next((str(run) for run in MADE if not run.is_dir()), None)
        os.getcwd()
    except FileNotFoundError:
        gone = "the working folder"
    if gone is None and error.errno in MOVED and FOLDER in Path(str(error.filename)).parts:
        gone = str(error.filename)
    if gone is not None:
        return GpurunError(
            f"{gone} is gone: somebody removed it", "start again, and keep it until gpurun ends"
        )
    return None


def no_records(error: OSError) -> GpurunError:
    """The error where records cannot be written."""
    limit = at_limit(error)
    if limit is not None:
        return limit
    where = f" to {error.filename}" if error.filename else ""
    todo = "make room there, or name another folder with --out"
    if error.errno == errno.EFBIG:
        todo = "raise the limit of a file's size (ulimit -f), or that of the file system"
    return GpurunError(f"records cannot be written{where}: {error.strerror or error}", todo)


def lost_events(run: Path) -> str | None:
    """Why a process of this run could not record to its end, None if every one could.

    The runtime leaves `events-*.jsonl.error` then; without a text, as the disk had no room for it.
    """
    lost = sorted(run.glob("events-*.error"))
    reasons = [path.read_text(errors="replace") for path in lost if path.is_file()]
    return next(filter(None, reasons), "no room was left for it") if reasons else None


def shown_path(path: Path | str) -> str:
    """The path from the working folder, as it is where that folder is gone."""
    try:
        return os.path.relpath(path)
    except FileNotFoundError:
        return os.fspath(path)


SOURCES = (".cfg", ".ini", ".ipynb", ".py", ".sh", ".yaml", ".yml")
CONFIGURATIONS = ("gpurun.toml", "pyproject.toml")
"""Names of files that people write: none of our outputs is called so. Saved settings may end in
`.toml`."""


def check_output(flag: str, path: Path) -> None:
    """`GpurunError` if the file that a flag names could not be written after the run, or if it is
    a file of the user's: a flag whose own file was forgotten takes the script for it.
    """
    if str(path) == "-":
        raise GpurunError(f"{flag} - is no file", "name a file")
    real = Path(os.path.realpath(path))  # of a link, what it names
    if (real.suffix in SOURCES or real.name in CONFIGURATIONS) and os.path.exists(real):
        raise GpurunError(f"{flag}: {path} is there and would be written over", "name another file")
    if os.path.isdir(path):
        raise GpurunError(f"{flag}: {path} is a folder", "name a file")
    if not os.path.isdir(path.parent):
        raise GpurunError(f"{flag}: there is no folder {path.parent}", "make it first")
    if not os.access(path if os.path.exists(path) else path.parent, os.W_OK):
        raise GpurunError(f"{flag}: {path} cannot be written", "name another file")


def read_json(path: Path) -> JsonValue:
    """The value of a JSON document; `OSError` or `ValueError` if it cannot be read or is none."""
    with open_regular(path) as file:
        return parse_document(file.read().decode("utf-8"))


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document; NaN and infinity, which JSON does not have, become null."""
    write_whole(path, json_text(document))


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that the user named, as `write_whole` does.

    What is no file (`/dev/stderr`, a pipe) or a link to one is written to, not replaced; `OSError`
    for a pipe that nobody reads. What a stream like `/dev/stdout` leads to keeps what the script
    has written there. A byte of a path that is no UTF-8 stands as an escape.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        how = os.O_APPEND if path.is_relative_to("/dev") else os.O_TRUNC
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | how, 0o666)
        os.set_blocking(opened, True)
        with open(opened, "wb") as file:
            file.write(encoded(content))
    else:
        write_whole(path, content)


def encoded(content: str | bytes) -> bytes:
    """Text as UTF-8; a byte of a path that is none stands as an escape."""
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")


def mode_of(content: str | bytes) -> int:
    """Of a new file: one in which something was masked is for its owner alone, more may be secret
    there."""
    return 0o600 if isinstance(content, str) and MASK in content else 0o666


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees all of it or nothing of it. A link is replaced."""
    beside = path.with_name(f"{DRAFT}{os.urandom(8).hex()}")
    try:
        with open(beside, "xb", opener=partial(os.open, mode=mode_of(content))) as file:
            file.write(encoded(content))
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def json_text(document: Any) -> str:
    """A document as JSON text with a line end; NaN and infinity are null."""
    return json.dumps(_finite(document), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _prepared(home: Path) -> Path:
    _check(home)
    for folder in _ours(home):
        _keep_to_ourselves(folder)
    if not _writable(home):
        raise PermissionError(f"{home} is not writable")
    return home


def refuse_links(*folders: Path) -> None:
    """`GpurunError` if one of these folders of records is a link."""
    link = next((folder for folder in folders if os.path.islink(folder)), None)
    if link is not None:
        raise GpurunError(
            f"{link} is a link, and gpurun keeps no records behind one",
            "remove it, or name another folder with --out",
        )


def _check(home: Path) -> None:
    """`GpurunError` if one of the folders of records is a link, or came with a repository."""
    refuse_links(home, home / RUNS, *(home / name for name in OWN_FOLDERS))
    if os.path.isdir(home) and _is_tracked(home):
        raise GpurunError(
            f"git tracks files in {home}: they came with the repository, and not from gpurun",
            f"git rm -r --cached {home}, or name another folder with --out",
        )


def _is_tracked(folder: Path) -> bool:
    """True if git lists files in a folder; `GpurunError` where it refuses to say.

    Root asks as the repository's owner where it can: old versions of git answer nobody else.
    """
    repository = next((p / ".git" for p in folder.parents if (p / ".git").exists()), None)
    if repository is None:
        return False
    owner = repository.stat()
    done = _listed(folder, owner) if os.geteuid() == 0 != owner.st_uid else None
    if done is None or done.returncode:
        done = _listed(folder)
    if done is None:
        return False
    said = done.stderr.decode("utf-8", "replace").strip()
    if done.returncode and "not a git repository" not in said:
        raise GpurunError(
            f"git does not say whether it tracks {folder}: {said.partition(chr(10))[0]}",
            f"git config --global --add safe.directory {repository.parent}, if you trust it",
        )
    return bool(done.stdout)


def _listed(folder: Path, owner: os.stat_result | None = None) -> CompletedProcess[bytes] | None:
    """What `git ls-files` says of a folder; None without git, or where we cannot be `owner`.

    Settings of the repository may name programs: a monitor of files, or the ways to a server from
    which a missing object is fetched. Both are off.
    """
    import subprocess  # not needed where there is no repository

    off = ("safe.directory=*", "core.fsmonitor=false", "protocol.allow=never")
    settings = [word for setting in off for word in ("-c", setting)]
    plain = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    if owner is not None:
        plain.pop("HOME", None)
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *settings, "ls-files", "-z", "."],
            env={**plain, "LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            user=None if owner is None else owner.st_uid,
            group=None if owner is None else owner.st_gid,
            extra_groups=None if owner is None else [],
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _is_others(folder: Path) -> bool:
    """True if neither this user, nor root, nor who owns the folder above it made a folder."""
    trusted = (os.geteuid(), 0, folder.parent.stat().st_uid)
    return folder.exists() and folder.stat().st_uid not in trusted


def _writable(home: Path) -> bool:
    places = (home, home / RUNS, home / "tuned")
    return all(os.access(place, os.W_OK | os.X_OK) for place in places if place.exists())


def _keep_to_ourselves(folder: Path) -> None:
    """Make a folder that git ignores; one that the user had stays as it is.

    Its `.gitignore` is written in place. A killed writer leaves an empty one, which the next call
    fills, and no draft that nobody would look for.
    """
    is_users = FOLDER not in folder.parts and os.path.lexists(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if is_users:
        return
    if ignore.is_symlink() or (ignore.exists() and ignore.stat().st_nlink > 1):
        ignore.unlink()  # what else it names stays as it is
    elif ignore.exists() and ignore.stat().st_size:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(ignore, flags, 0o666), "w", encoding="utf-8") as file:
            file.write("*\n")
    except OSError:
        ignore.unlink(missing_ok=True)
        raise


def _ours(home: Path) -> tuple[Path, ...]:
    """The folders whose content is ours alone; a folder that the user had stays under git."""
    if not home.exists() or home.name == FOLDER:
        return (home,)
    return home / RUNS, home / "tuned"


def _state_folder() -> Path:
    """The user's folder for state. An empty or relative variable counts as unset, as XDG has it;
    a home folder that is missing is not made.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return (Path(state) / "gpurun").resolve()
    homes = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # no entry for this user
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    home = next(filter(os.path.isabs, homes), "")
    if not os.path.isdir(home):
        raise FileNotFoundError(errno.ENOENT, "the user has no home folder")
    return (Path(home) / ".local/state/gpurun").resolve()
