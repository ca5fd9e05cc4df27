"""Read a Chrome trace event by event, without ever holding the whole of it."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from gpurun.errors import GpurunError
from gpurun.timeline.limits import EXPANSION, FREE_BYTES, LONGEST_TEXT, TODO, too_long
from gpurun.timeline.model import malformed

CHUNK = 1 << 20
MOST_REPAIRS = 1000
"""Of one event: more numbers that are not finite are a fault."""
WINDOW = 8 << 10
"""Characters in which nearly every event ends: a fault there costs no look at all that was read."""
EVENTS = '"traceEvents"'
LONGEST_WORD = 12
"""Characters; so close to the end of the text that was read a fault may be a word that is cut."""
_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = " \t\r\n,"
_WORD = re.compile(rf"[^{_BETWEEN}]|\Z")
_NOT_FINITE = re.compile(r"[+-]?(?:inf(?:inity)?|nan)(?:\(\w*\))?(?!\w)", re.IGNORECASE)
_EVENT = re.compile(r"\}\s*,\s*(?=\{)")


class ChromeTrace:
    """One trace file. `header` holds what stands beside the events, once they have been read.

    `faults`: each place that is no JSON, and why. The event there is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.faults: list[str] = []

    def events(self) -> Iterator[dict[str, Any]]:
        """Each event in the file's order; `GpurunError` for what is no trace or ends early."""
        with open(self.path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        opened: Callable[..., IO[str]] = gzip.open if zipped else open
        try:
            with opened(self.path, "rt", encoding="utf-8-sig", errors="replace") as file:
                yield from self._read(_HeldText(file, self.path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._cut("") from error
        except RecursionError:
            raise malformed(self.path, "its brackets are nested too deeply") from None

    def _read(self, held: _HeldText) -> Iterator[dict[str, Any]]:
        held.more()
        position = _next_word(held.text, 0)
        bare = held.text.startswith("[", position)
        position = position + 1 if bare else self._skip_header(held, position)
        while True:
            position = _next_word(held.text, position)
            if held.text.startswith("]", position):
                return self._end(held, position + 1, bare=bare)
            try:
                event, position = decoded(held.text, position)
            except json.JSONDecodeError as error:
                position = self._after(error, held, position)
                continue
            if isinstance(event, dict):
                yield event

    def _skip_header(self, held: _HeldText, begin: int) -> int:
        """The place of the first event."""
        while not held.text.startswith("{", begin) or "[" not in held.text.partition(EVENTS)[2]:
            begun = held.text.startswith("{", begin)
            if not begun or len(held.text) > LONGEST_TEXT or not held.more():
                raise GpurunError(
                    f"{self.path} is not a trace of torch.profiler",
                    "name a Chrome trace (.json), an nsys report or a run folder",
                )
        before = held.text.partition(EVENTS)[0].rstrip(_BETWEEN)
        self._keep(before + "}", held)
        return held.text.index("[", held.text.index(EVENTS)) + 1

    def _after(self, error: json.JSONDecodeError, held: _HeldText, position: int) -> int:
        """The place from which to read on: that of the same event with more text, or the next."""
        if _is_cut(error, held.text):
            if not held.more(position):
                raise self._cut(f", at {held.place(len(held.text))}")
            return 0
        why = self.faults[0] if self.faults else f"{held.place(error.pos)} is no JSON ({error.msg})"
        self.faults.append(why)
        at, more = error.pos, True
        while more:
            for found in _EVENT.finditer(held.text, at):
                if _is_event(held.text, found.end()):
                    return found.end()
            more, at = held.more(at), 0
        end = held.text.rfind("]")  # nothing after the events has a list
        if end < 0:
            raise malformed(self.path, why)
        return end

    def _end(self, held: _HeldText, position: int, *, bare: bool) -> None:
        """Keep what follows the events, as an object of its own, each word in its place."""
        while held.more(position):
            position = 0
        rest, words = held.text, held.text.lstrip(_BETWEEN)
        if not bare:
            part = "{".rjust(len(rest) - len(words)) + words
            rest = part[self._keep(part, held) :]
        if rest := rest.lstrip():
            place = held.place(len(held.text) - len(rest))
            raise malformed(self.path, f"{place} follows its end")

    def _keep(self, text: str, held: _HeldText) -> int:
        """Keep a part of the header, which begins as the held text does; its end."""
        try:
            found, end = decoded(text, _next_word(text, 0))
        except json.JSONDecodeError as error:
            place = held.place(min(error.pos, len(held.text)))
            raise malformed(self.path, f"{place} is no JSON ({error.msg})") from None
        self.header.update(found)
        return end

    def _cut(self, where: str) -> GpurunError:
        return GpurunError(
            f"{self.path} ends in the middle of an event{where}",
            "copy it again, or record it again and let the script end",
        )


class _HeldText:
    """The part of a file that is held in memory, and where in the file it begins."""

    def __init__(self, file: IO[str], path: Path) -> None:
        self._file, self._path = file, path
        self._left = FREE_BYTES + EXPANSION * path.stat().st_size
        self.text = ""
        self._line = self._column = 1

    def more(self, done: int = 0) -> bool:
        """Read on, and drop the text before `done`; False if the file had no more."""
        if len(self.text) - done > LONGEST_TEXT:
            raise too_long(self._path, self.place(done))
        more = self._file.read(max(CHUNK, len(self.text) - done))
        self._left -= len(more)
        if self._left < 0:
            what = f"{self._path} expands to over {EXPANSION} times its size, as no trace does"
            raise GpurunError(what, TODO)
        self._line, self._column = self._at(done)
        self.text = self.text[done:] + more
        return bool(more)

    def place(self, position: int) -> str:
        """A place of the held text, as an editor shows it."""
        return "line {:,}, column {:,}".format(*self._at(position))

    def _at(self, position: int) -> tuple[int, int]:
        lines = self.text.count("\n", 0, position)
        if not lines:
            return self._line, self._column + position
        return self._line + lines, position - self.text.rindex("\n", 0, position)


def decoded(text: str, position: int) -> tuple[Any, int]:
    """A JSON value and its end. C++ writes infinity as `inf`, which JSON does not know: as NaN."""
    for end in (position + WINDOW, len(text)):
        part = text[position:end]
        try:
            found, length = _repaired(part)
        except json.JSONDecodeError as error:
            if end < len(text) and _is_cut(error, part):
                continue
            error.pos += position
            raise
        return found, position + length
    raise AssertionError("the second part has the whole text")


def _repaired(text: str) -> tuple[Any, int]:
    for _ in range(MOST_REPAIRS):
        try:
            return _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            number = _NOT_FINITE.match(text, error.pos)
            if number is None or number.end() == len(text) or error.msg != "Expecting value":
                raise
            text = text[: error.pos] + "NaN".rjust(len(number[0])) + text[number.end() :]
    return _DECODER.raw_decode(text)


def _is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """The fault may be the end of the text."""
    return len(text) - error.pos <= LONGEST_WORD or error.msg.startswith("Unterminated string")


def _is_event(text: str, position: int) -> bool:
    """The JSON value there is an event, and not a part of the text of one."""
    try:
        found, _ = decoded(text, position)
    except json.JSONDecodeError:
        return False
    return isinstance(found, dict) and "ph" in found


def _next_word(text: str, position: int) -> int:
    word = _WORD.search(text, position)
    assert word is not None
    return word.start()
