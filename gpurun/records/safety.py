"""What a full run does when something goes wrong; the user chooses it by flags."""

from __future__ import annotations

import enum

from gpurun.records.record import record


class NonfiniteAction(enum.Enum):
    """The answer to a loss that is NaN or infinite. `SKIP` leaves out the optimizer's step, which
    changes the training."""

    WARN = "warn"
    SKIP = "skip"
    STOP = "stop"


@record
class SafetySpec:
    """Safety of a full run. `quiet`: warnings are recorded and not printed."""

    on_nonfinite: NonfiniteAction = NonfiniteAction.WARN
    quiet: bool = False
