"""The progress of a running trial, from its growing event files and its output."""

from __future__ import annotations

import json
from pathlib import Path

from gpurun.records.parse_json import open_regular


class Progress:
    """Reads what was appended since the last look.

    `steps`: most steps of any process so far. `stopped`: a process has seen enough and left.
    """

    def __init__(self, run_dir: Path, log: Path) -> None:
        self.steps = 0
        self.stopped = False
        self._run_dir = run_dir
        self._log = log
        self._printed = 0
        self._offsets: dict[Path, int] = {}
        self._counts: dict[tuple[Path, str], int] = {}

    def advanced(self) -> bool:
        """True if any process has recorded or printed anything since the last call."""
        news = self._has_printed()
        for path in self._run_dir.glob("events-*.jsonl"):
            news = self._read(path) or news
        self.steps = max(self._counts.values(), default=0)
        return news

    def _has_printed(self) -> bool:
        before = self._printed
        try:
            self._printed = self._log.stat().st_size
        except OSError:
            return False
        return self._printed != before

    def _read(self, path: Path) -> bool:
        offset = self._offsets.get(path, 0)
        try:
            with open_regular(path) as file:
                file.seek(offset)
                data = file.read()
        except OSError:  # the script has put something else there
            return False
        whole = data.rfind(b"\n") + 1
        if not whole:
            return False
        self._offsets[path] = offset + whole
        for line in data[:whole].splitlines():
            if b'"event":"steps"' in line[:40]:
                event = json.loads(line)
                key = (path, event["clock"])
                self._counts[key] = self._counts.get(key, 0) + len(event["rows"])
            elif b'"event":"stop"' in line[:40]:
                self.stopped = True
        return True
