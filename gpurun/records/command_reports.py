"""Documents of `doctor`, `blame` and `eject`."""

from __future__ import annotations

import enum
from typing import Any

from gpurun.records.bench.comparison import Comparison
from gpurun.records.record import record

DOCTOR_SCHEMA = "gpurun/doctor@1"


class State(enum.Enum):
    """How a thing is found. `UNNEEDED`: absent, and of no use on this machine."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"
    UNNEEDED = "not needed"


@record
class Check:
    """One thing that was looked at.

    `cost`: what its state costs, empty where it costs nothing. `todo`: what helps; empty where
    nothing is to be done, or nothing helps.
    """

    what: str
    state: State
    found: str
    cost: str = ""
    todo: str = ""


@record
class DoctorReport:
    """The whole document. `verdict`: "ok", or "limited" if any check is limited or missing."""

    verdict: str
    checks: tuple[Check, ...]
    schema: str = DOCTOR_SCHEMA


BLAME_SCHEMA = "gpurun/blame@1"
EJECT_SCHEMA = "gpurun/eject@1"


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


@record
class LeftOut:
    """A setting that is no part of the patch, and why."""

    knob: str
    reason: str


@record
class EjectReport:
    """`verdict`: "ejected" (the patched script loses no more than a tenth of the speed that the
    settings give and trains alike, or was not checked), "slower", "training_differs",
    "inconclusive", "failed" (a side of the check) or "interrupted".

    `diff`: a unified diff, "" if no file changes. `files`: those that it changes, from the working
    folder. `written`: the knobs whose settings are in the patch or in `command`, which starts the
    patched script. `comparison`: the script under the settings is its baseline, the patched script
    its current side; None if it was not checked.
    """

    verdict: str
    diff: str
    files: tuple[str, ...]
    written: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    command: str
    comparison: Comparison | None
    schema: str = EJECT_SCHEMA
