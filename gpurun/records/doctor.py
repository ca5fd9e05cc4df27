"""The document of `gpurun doctor --json`: one entry a check."""

from __future__ import annotations

import enum

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
