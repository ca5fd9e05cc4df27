"""What a full run does when something goes wrong; the user chooses it by flags."""

from __future__ import annotations

import enum

from gpurun.records.record import record

CHECKPOINT = "emergency.pt"
"""File of the run folder that `--emergency-checkpoint` writes."""


class NonfiniteAction(enum.Enum):
    """The answer to a loss that is NaN or infinite. `SKIP` leaves out the optimizer's step, which
    changes the training."""

    WARN = "warn"
    SKIP = "skip"
    STOP = "stop"


@record
class SafetySpec:
    """Safety of a full run. `locate_nonfinite`: outputs and gradients are looked at, to say where a
    loss that is not finite came from. `emergency_checkpoint`: root modules and optimizers are saved
    when it dies. `quiet`: warnings are recorded and not printed."""

    on_nonfinite: NonfiniteAction = NonfiniteAction.WARN
    locate_nonfinite: bool = False
    emergency_checkpoint: bool = False
    quiet: bool = False
