"""Read a Chrome trace event by event, without ever holding the whole of it."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from gpurun.errors import GpurunError

CHUNK = 1 << 20
HEADER_BYTES = 64 << 20
"""Nobody's header is longer: what has no event until here is no trace."""
EVENTS = '"traceEvents"'
_DECODER = json.JSONDecoder()
_BETWEEN = " \t\r\n,"


class ChromeTrace:
    """One trace file. `header` holds what stands beside the events, once they have been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self._is_list = False

    def events(self) -> Iterator[dict[str, Any]]:
        """Each event in the file's order; `GpurunError` for what is no trace or ends early."""
        opened: Callable[..., IO[str]] = gzip.open if _zipped(self.path) else open
        try:
            with opened(self.path, "rt", encoding="utf-8", errors="replace") as file:
                yield from self._read(file)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._broken() from error

    def _read(self, file: IO[str]) -> Iterator[dict[str, Any]]:
        text = self._skip_header(file)
        position = 0
        while True:
            position = _next_word(text, position)
            if position < len(text) and text[position] == "]":
                rest = (text[position + 1 :] + file.read(HEADER_BYTES)).lstrip(_BETWEEN)
                if not self._is_list:
                    self._keep("{" + rest)
                return
            try:
                event, position = _DECODER.raw_decode(text, position)
            except RecursionError:
                raise self._broken() from None
            except json.JSONDecodeError:
                more = file.read(max(CHUNK, len(text) - position))
                if not more:
                    raise self._broken() from None
                text, position = text[position:] + more, 0
                continue
            if isinstance(event, dict):
                yield event

    def _skip_header(self, file: IO[str]) -> str:
        """The text from the first event on."""
        text = file.read(CHUNK)
        self._is_list = text.lstrip().startswith("[")
        if self._is_list:
            return text.lstrip()[1:]
        if not text.lstrip().startswith("{"):
            raise self._foreign()
        while EVENTS not in text or "[" not in text.partition(EVENTS)[2]:
            more = file.read(CHUNK)
            if not more or len(text) > HEADER_BYTES:
                raise self._foreign()
            text += more
        before, _, after = text.partition(EVENTS)
        self._keep(before.rstrip(_BETWEEN) + "}")
        return after.partition("[")[2]

    def _keep(self, text: str) -> None:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise self._broken() from None
        if isinstance(found, dict):
            self.header.update(found)

    def _foreign(self) -> GpurunError:
        return GpurunError(
            f"{self.path} is not a trace of torch.profiler",
            "name a Chrome trace (.json), an nsys report or a run folder",
        )

    def _broken(self) -> GpurunError:
        return GpurunError(
            f"{self.path} is damaged, or ends in the middle of an event", "record it again"
        )


def _zipped(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _next_word(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BETWEEN:
        position += 1
    return position
