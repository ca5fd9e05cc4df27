"""JSON text from files that may be damaged: a fault is a `ValueError`, or a note on a line."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpurun.records.codec import JsonValue


def open_regular(path: Path) -> BinaryIO:
    """A file to read; `OSError` also for what is none, such as a pipe that nobody feeds."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return os.fdopen(number, "rb")


def parse_line(line: bytes) -> JsonValue:
    """The value of a line of events, in which a loss may be NaN or infinite."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_document(text: str) -> JsonValue:
    """The value of a document, in which no number may be NaN or infinite."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word} is no finite number")
    return number


class JsonLines:
    """The objects in a file of JSON lines; damaged lines are counted and left out.

    `torn_is_known`: a torn last line is no news, for another note says more.
    """

    def __init__(self, path: Path, torn_is_known: bool = False) -> None:
        self._path = path
        self._torn_is_known = torn_is_known
        self._problems: Counter[str] = Counter()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with open_regular(self._path) as file:
                for line in filter(bytes.strip, file):
                    found = self._parsed(line)
                    if found is not None:
                        yield found
        except OSError as error:
            self.problem(f"unreadable ({error.strerror})")

    def problem(self, what: str) -> None:
        """Note what is wrong with a line."""
        self._problems[what] += 1

    def notes(self) -> list[str]:
        """A line for each kind of problem."""
        return [
            f"{self._path.name}: {problem}" + (f" ({count} times)" if count > 1 else "")
            for problem, count in self._problems.items()
        ]

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            found = parse_line(line)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return found
        if line.endswith(b"\n"):
            self.problem("a line is unreadable")
        elif not self._torn_is_known:
            self.problem("the last line is torn")
        return None
