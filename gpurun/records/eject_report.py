"""The document of `gpurun eject --json`: settings as a patch of the script, and its check."""

from __future__ import annotations

from gpurun.records.bench.comparison import Comparison
from gpurun.records.record import record

EJECT_SCHEMA = "gpurun/eject@1"


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
