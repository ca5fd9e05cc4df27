"""Where records go: `.gpurun/` in the current folder, or elsewhere on request or by need."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.records.codec import JsonValue
from gpurun.records.parse_json import parse_document
from gpurun.records.safety import CHECKPOINT

FOLDER = ".gpurun"
RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
RUNS: list[Path] = []
"""Run folders that this process made."""
INCOMPLETE = "the record is incomplete"
DRAFT = re.compile(rf"\..+\.\d+\.[0-9a-f]{{6}}|(restart\d+-)?{re.escape(CHECKPOINT)}\.new")
"""Names of half-written files: those of `write_whole`, and the emergency checkpoint's."""


def find_home(cwd: Path, out: str | None = None) -> Path:
    """The folder of all records, made if missing; `OSError` where none can be written.

    `out` (the flag `--out`) wins over the variable GPURUN_HOME; what is asked for is not replaced
    by something else. Without either: `.gpurun/` in `cwd`, or in the user's state folder if `cwd`
    is read-only.
    """
    asked = out or os.environ.get("GPURUN_HOME")
    if asked:
        return _prepared(cwd / asked)
    try:
        return _prepared(cwd / FOLDER)
    except OSError:
        return _prepared(_state_folder())


def existing_home(cwd: Path, out: str | None = None) -> Path:
    """The folder of all records as `find_home` has it; nothing is made, it may be missing.

    Where `.gpurun/` cannot be written, new runs are in the state folder; before there are any, what
    others left in `.gpurun/` is read.
    """
    asked = out or os.environ.get("GPURUN_HOME")
    if asked:
        return cwd / asked
    here = cwd / FOLDER
    try:
        elsewhere = _state_folder()
    except OSError:
        return here
    return here if here.is_dir() and (_writable(here) or not elsewhere.is_dir()) else elsewhere


def newest_run(home: Path) -> Path | None:
    """The latest run folder; None if there is none. The folder of a benchmark, which holds nothing
    but its launches, does not count. Names begin with the second of the start, in UTC: local time
    goes back once a year, and a container's may differ from its host's.
    """
    try:
        folders = [entry for entry in os.scandir(home / "runs") if entry.is_dir()]
    except OSError:
        return None
    runs = [one for one in folders if not _has_only_folders(one.path)]
    begun = max((entry.name[:15] for entry in runs), default="")
    latest = [entry for entry in runs if entry.name[:15] == begun]
    newest = max(latest, key=lambda entry: entry.stat().st_mtime_ns, default=None)
    return None if newest is None else Path(newest.path)


def named_run(home: Path, name: str) -> Path | None:
    """The path of this name, or the run of this name; None if there is neither."""
    places = (Path(name), home / "runs" / name)
    return next((path for path in places if path.exists()), None)


def _has_only_folders(folder: str) -> bool:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # another user's, or just removed
        return False
    return bool(entries) and all(entry.is_dir() for entry in entries)


def other_runs(run: Path) -> Iterator[Path]:
    """The run folders beside this one, by their names: a folder of the user's is none of them."""
    return (other for other in run.parent.glob("*-*-*") if RUN_ID.fullmatch(other.name))


def own_folder(home: Path, name: str) -> Path:
    """The folder `name` of the records, made if missing, which version control passes over."""
    folder = home / name
    _keep_to_ourselves(folder)
    return folder


def new_run(home: Path) -> Path:
    """A fresh folder `runs/<id>`; two launches at once never share one."""
    runs = home / "runs"
    runs.mkdir(exist_ok=True)
    while True:
        second = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run = runs / f"{second}-{os.urandom(3).hex()}"
        try:
            run.mkdir()
        except FileExistsError:
            continue
        RUNS.append(run)
        return run


def run_folder(cwd: Path, out: str | None) -> Path:
    """A fresh run folder below the folder of records; `GpurunError` where none can be made."""
    try:
        return new_run(find_home(cwd, out))
    except OSError as error:
        raise no_records(error) from None


def of_surroundings(error: Exception) -> GpurunError | None:
    """The error as one of a full disk, of a folder that somebody removed, or of a locale without
    the characters of a path; None if it is ours.
    """
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return GpurunError(
            f"the locale's encoding ({error.encoding}) has no {error.object[error.start]!a}",
            "set PYTHONUTF8=1",
        )
    if not isinstance(error, OSError):
        return None
    try:
        gone = next((str(run) for run in RUNS if not run.is_dir()), None)
        os.getcwd()
    except FileNotFoundError:
        gone = "the working folder"
    if gone is not None:
        return GpurunError(
            f"{gone} is gone: somebody removed it", "start again, and keep it until gpurun ends"
        )
    return no_records(error) if error.errno in (errno.ENOSPC, errno.EDQUOT) else None


def no_records(error: OSError) -> GpurunError:
    """The error where records cannot be written."""
    where = f" to {error.filename}" if error.filename else ""
    return GpurunError(
        f"records cannot be written{where}: {error.strerror or error}",
        "make room there, or name another folder with --out",
    )


def lost_events(run: Path) -> str | None:
    """Why a process of this run could not record to its end, None if every one could.

    The runtime leaves `events-*.jsonl.error` then; without a text, as the disk had no room for it.
    """
    reasons = [path.read_text(errors="replace") for path in sorted(run.glob("events-*.error"))]
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
    if (path.suffix in SOURCES or path.name in CONFIGURATIONS) and path.exists():
        raise GpurunError(f"{flag}: {path} is there and would be written over", "name another file")
    if path.is_dir():
        raise GpurunError(f"{flag}: {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise GpurunError(f"{flag}: there is no folder {path.parent}", "make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise GpurunError(f"{flag}: {path} cannot be written", "name another file")


def read_json(path: Path) -> JsonValue:
    """The value of a JSON document; `OSError` or `ValueError` if it cannot be read or is none."""
    return parse_document(path.read_text(encoding="utf-8"))


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document; NaN and infinity, which JSON does not have, become null."""
    write_whole(path, json_text(document))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or nothing of it.

    What is no file (`/dev/stderr`, a pipe) or a link to one is written to, not replaced. What a
    stream like `/dev/stdout` leads to keeps what the script has written there. A byte of a path
    that is no UTF-8 stands as an escape.
    """
    data = text.encode("utf-8", "backslashreplace")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        with path.open("ab" if path.is_relative_to("/dev") else "wb") as file:
            file.write(data)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(3).hex()}")
    try:
        beside.write_bytes(data)
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
    for folder in _ours(home):
        _keep_to_ourselves(folder)
    if not _writable(home):
        raise PermissionError(f"{home} is not writable")
    return home.resolve()


def _writable(home: Path) -> bool:
    places = (home, home / "runs", home / "tuned")
    return all(os.access(place, os.W_OK | os.X_OK) for place in places if place.exists())


def _keep_to_ourselves(folder: Path) -> None:
    """Make a folder that git ignores.

    Its `.gitignore` is written in place. A killed writer leaves an empty one, which the next call
    fills, and no draft that nobody would look for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ignore = folder / ".gitignore"
    if ignore.exists() and ignore.stat().st_size:
        return
    try:
        ignore.write_text("*\n", encoding="utf-8")
    except OSError:
        ignore.unlink(missing_ok=True)
        raise


def _ours(home: Path) -> tuple[Path, ...]:
    """The folders whose content is ours alone; a folder that the user had stays under git."""
    if not home.exists() or home.name == FOLDER:
        return (home,)
    return home / "runs", home / "tuned"


def _state_folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    base = state if os.path.isabs(state) else os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):
        raise FileNotFoundError(errno.ENOENT, "the user has no home folder")
    return Path(base) / "gpurun"
