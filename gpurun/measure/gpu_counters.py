"""Activity of a GPU's units, from DCGM's fields 1001 to 1005 (Volta and later).

`dcgmi dmon` prints them once a second; it needs DCGM's host engine. Formats: DCGM's user guide,
"Feature Overview".
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable

DCGM_FIELDS = {"GRACT": "graphics", "SMACT": "sm", "TENSO": "tensor", "DRAMA": "dram"}
"""The names of the columns, and what they are here: parts of the time, from 0 to 1."""
IDS = "1001,1002,1004,1005"
INTERVAL_MS = 1000
OLD_SECONDS = 3.0
"""A figure of this age says nothing of now: the program has ended, or hangs."""
PATIENCE_SECONDS = 10.0
_NUMBER = re.compile(r"^\|\s*(\d+)\s*\|")
_UUID = re.compile(r"UUID:\s*(\S+)")


class DcgmCounters:
    """The latest activities of all GPUs, read by a thread; none where DCGM does not answer."""

    def __init__(self) -> None:
        self._latest: dict[str, tuple[float, dict[str, float]]] = {}
        self._program: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        path = shutil.which("dcgmi")
        if path is not None:
            self._thread = threading.Thread(target=self._read, args=(path,), daemon=True)
            self._thread.start()

    def since_last(self, uuid: str) -> dict[str, float]:
        """Percent of the last second by name, as of the GPM counters; empty where not known."""
        at, activity = self._latest.get(uuid, (0.0, {}))
        return activity if time.monotonic() - at < OLD_SECONDS else {}

    def close(self) -> None:
        """End the program."""
        self._closed.set()
        if self._program is not None:
            self._program.kill()
        if self._thread is not None:
            self._thread.join(PATIENCE_SECONDS)

    def _read(self, path: str) -> None:
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            listed = subprocess.run(
                [path, "discovery", "-l"], capture_output=True, text=True,
                stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=True,
            )  # fmt: skip
            uuids = uuids_by_number(listed.stdout.splitlines())
            if not uuids or self._closed.is_set():
                return
            self._program = subprocess.Popen(
                [path, "dmon", "-e", IDS, "-d", str(INTERVAL_MS)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True, start_new_session=True,
            )  # fmt: skip
            with self._program as program:
                if self._closed.is_set():
                    program.kill()
                assert program.stdout is not None
                self._take(uuids, program.stdout)

    def _take(self, uuids: dict[int, str], lines: Iterable[str]) -> None:
        columns: list[str] = []
        for line in lines:
            words = line.replace("#", " ").split()
            if words[:1] == ["Entity"]:
                columns = words[1:]
            elif words[:1] == ["GPU"] and len(words) > 2 and words[1].isdigit():
                uuid = uuids.get(int(words[1]))
                if uuid is not None:
                    self._latest[uuid] = time.monotonic(), activities(columns, words[2:])


def uuids_by_number(lines: Iterable[str]) -> dict[int, str]:
    """The UUID of each GPU by DCGM's number, from `dcgmi discovery -l`."""
    found: dict[int, str] = {}
    number: int | None = None
    for line in lines:
        if match := _NUMBER.match(line):
            number = int(match[1])
        if number is not None and (told := _UUID.search(line)):
            found[number] = told[1]
            number = None
    return found


def activities(columns: Iterable[str], values: Iterable[str]) -> dict[str, float]:
    """Percent by name, without columns that have no figure ("N/A")."""
    found: dict[str, float] = {}
    for column, value in zip(columns, values, strict=False):
        name = DCGM_FIELDS.get(column)
        with contextlib.suppress(ValueError):
            if name is not None and 0.0 <= float(value) <= 1.0:
                found[name] = 100 * float(value)
    return found
