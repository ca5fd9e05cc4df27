"""The document of `gpurun blame --json`: which stored settings make a run go wrong."""

from __future__ import annotations

import enum
from typing import Any

from gpurun.records.record import record

BLAME_SCHEMA = "gpurun/blame@1"


class LaunchState(enum.Enum):
    """The outcome of one launch. `SKIPPED`: it cannot be told."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


@record
class BlameLaunch:
    """One launch with a part of the settings. `reason`: what went wrong, "" if nothing did."""

    settings: dict[str, Any]
    state: LaunchState
    reason: str
    seconds: float
    run_dir: str


@record
class BlameReport:
    """`verdict`: "found", "not_reproduced" (all settings together go well), "script_failed" (so
    does it without any), "inconclusive" or "interrupted".

    `culprits`: sets of knobs, each of which goes wrong by itself; a set of several goes wrong only
    together. `without_them`: the outcome of all other settings, None if they were not launched.
    """

    verdict: str
    culprits: tuple[tuple[str, ...], ...]
    without_them: LaunchState | None
    launches: tuple[BlameLaunch, ...]
    command: tuple[str, ...]
    seconds: float
    schema: str = BLAME_SCHEMA
