"""A run whose record cannot be kept: what it does without, and what it refuses to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpurun.arguments.options import Options
from gpurun.errors import GpurunError
from gpurun.records.spec import NonfiniteAction

if TYPE_CHECKING:
    from gpurun.records.tuning import SavedSettings


def unrecorded(options: Options, saved: SavedSettings | None, error: Exception) -> str:
    """The line about it; `GpurunError` where a flag is of no effect without a record.

    `saved`: the settings of the run. `error`: why there is no record.
    """
    safety = options.safety
    asked = {
        "--settings": options.settings is not None,
        "--tuned": options.tuned,
        "--on-nonfinite": safety.on_nonfinite is not NonfiniteAction.WARN,
        "--locate-nonfinite": safety.locate_nonfinite,
        "--emergency-checkpoint": safety.emergency_checkpoint,
        "--profile-every": options.profile_every is not None,
    }
    flag = next((flag for flag, given in asked.items() if given), None)
    if flag is not None:
        raise GpurunError(
            f"{flag} needs a record of this run: {error}",
            "make room there, or name another folder with --out",
        )
    without = "" if saved is None else ", and trains without its settings"
    return f"this run is not recorded{without}: {error}"
