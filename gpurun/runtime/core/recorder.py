"""The one writer of a process: an append-only event file in the run folder.

The hot path appends to lists elsewhere; `flush` encodes and writes. A write that fails (full disk,
folder gone) ends the recording, never the script. A file beside the record says so, because the
record itself takes no more. A forked child starts a file of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from gpurun.records.codec import to_json
from gpurun.records.events import HookEvent, ProcessEvent
from gpurun.records.script_arguments import masked, masked_text

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
"""A link is nothing of ours: others may have left it where they can write."""
LEAST_NUMBER = 200
READ = 5000
"""Characters of an error's text in which secrets are looked for; a tenth of them is kept."""
_ENCODER = json.JSONEncoder(default=repr, separators=(",", ":"))


class EventRecord(Protocol):
    """A record of `gpurun.records` that is one line of an event file."""

    kind: ClassVar[str]


class Recorder:
    """Writes the events of this process; silent until `open`."""

    def __init__(self) -> None:
        self.run_dir: str | None = None
        self._file: int | None = None
        self._path = ""
        self._identity: tuple[int, int] | None = None
        self._broken = False
        self._sources: list[Callable[[], None]] = []
        self._later: list[EventRecord] = []
        self._flushing = threading.Lock()

    def open(self, run_dir: str, eager: bool) -> None:
        """Record into `run_dir`; with `eager` the file is made at once, else at the first event."""
        self.run_dir = run_dir
        os.register_at_fork(after_in_child=self._forked)
        if eager:
            self._ensure_file()

    @property
    def recording(self) -> bool:
        """True if this process has written anything yet."""
        return self._file is not None

    def on_flush(self, source: Callable[[], None]) -> None:
        """Have `source` hand over its pending events at each flush."""
        self._sources.append(source)

    def event(self, record: EventRecord) -> None:
        """Write one event record as one line, in one write; raises nothing."""
        if self.run_dir is None or self._broken:
            return
        try:
            line = _line(record)
        except Exception as error:
            line = _line(HookEvent(hook=f"{record.kind} event", error=type(error).__name__))
        self._write(line)

    def plain(self, kind: str, **fields: object) -> None:
        """Write an event given as JSON values: a record of many rows is expensive to convert."""
        if self.run_dir is not None and not self._broken:
            self._write(_text({"event": kind, **fields}))

    def later(self, record: EventRecord) -> None:
        """Write a flat event record (no record inside) at the next flush: for what comes often."""
        self._later.append(record)

    def drop_later(self) -> None:
        """Drop the events that wait for the next flush."""
        self._later.clear()

    def hook_failed(self, name: str, error: BaseException) -> None:
        """Record that a hook of ours raised."""
        self.event(HookEvent(hook=name, error=error_text(error)))

    def flush(self) -> None:
        """Collect what is pending from every source and write it, one thread at a time."""
        if not self._flushing.acquire(blocking=False):
            return
        try:
            pending, self._later = self._later, []
            if pending and self.run_dir is not None and not self._broken:
                self._write("".join(_text({"event": x.kind, **vars(x)}) for x in pending))
            for source in self._sources:
                source()
        finally:
            self._flushing.release()

    def _ensure_file(self) -> None:
        if self._file is not None or self._broken or self.run_dir is None:
            return
        rank = os.environ.get("RANK", "")
        name = f"rank{rank}-{os.getpid()}" if rank.isdigit() else str(os.getpid())
        self._path = os.path.join(self.run_dir, f"events-{name}.jsonl")
        words = _argv()
        shown = masked(words)
        try:
            mode = 0o644 if shown == words else 0o600
            self._file = _opened(self._path, FLAGS | os.O_CREAT, mode)
            self._identity = _identity(self._file)
        except OSError as error:
            self._end(error)
            return
        self.event(
            ProcessEvent(
                pid=os.getpid(),
                rank=_number("RANK"),
                local_rank=_number("LOCAL_RANK"),
                world_size=_number("WORLD_SIZE"),
                argv=shown,
                python=sys.version.split()[0],
                unix_time_ns=time.time_ns(),
                clock_ns=time.perf_counter_ns(),
            )
        )

    def _write(self, text: str) -> None:
        self._ensure_file()
        if self._file is None:
            return
        try:
            self._reopen_if_closed()
            data = text.encode("utf-8", "backslashreplace")
            while data and self._file is not None:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        """Record no more."""
        self._broken = True
        self.incomplete(error)

    def incomplete(self, error: OSError) -> None:
        """Mark the record as incomplete, even where the disk has no room for the mark's text."""
        if not self._path:
            return  # this process has no record
        try:
            mark = os.open(f"{self._path}.error", FLAGS | os.O_CREAT, 0o644)
        except OSError:
            return  # the folder is gone too
        try:
            os.write(mark, (error.strerror or type(error).__name__).encode())
        except OSError:
            pass
        finally:
            os.close(mark)

    def _reopen_if_closed(self) -> None:
        """A script may close every descriptor, and this number may be a file of its own then."""
        try:
            if self._file is not None and _identity(self._file) == self._identity:
                return
        except OSError:
            pass
        self._file = _opened(self._path, FLAGS)
        self._identity = _identity(self._file)

    def _forked(self) -> None:
        file, self._file = self._file, None
        self._flushing = threading.Lock()
        self._later = []
        try:
            if file is not None and _identity(file) == self._identity:
                os.close(file)
        except OSError:
            pass  # the script had closed it already


def _opened(path: str, flags: int, mode: int = 0o644) -> int:
    """The file under a number that no script counts on: the first that it opens is 3."""
    low = os.open(path, flags, mode)
    try:
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, LEAST_NUMBER)
    except OSError:  # fewer files are allowed
        return low
    os.close(low)
    return high


def error_text(error: BaseException) -> str:
    """An error in words, as a record holds it; raises nothing."""
    try:
        return masked_text(f"{type(error).__name__}: {error}"[:READ])[:500]
    except Exception:  # the text of an error may come from anybody's `__str__`
        return type(error).__name__


def _line(record: EventRecord) -> str:
    return _text({"event": record.kind, **to_json(record)})


def _text(line: dict[str, Any]) -> str:
    return _ENCODER.encode(line) + "\n"


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _argv() -> tuple[str, ...]:
    """The program and its arguments; until python has found a module, `sys.argv` lacks its name."""
    words = tuple(getattr(sys, "argv", ()))
    if words[:1] != ("-m",) or len(sys.orig_argv) <= len(words):
        return words
    return ("-m", sys.orig_argv[-len(words)].removeprefix("-m"), *words[1:])


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None


RECORDER = Recorder()
"""The recorder of this process."""
