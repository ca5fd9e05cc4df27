"""The flags for a full run that goes wrong."""

from __future__ import annotations

from collections.abc import Mapping

from gpurun.errors import GpurunError
from gpurun.records.safety import NonfiniteAction, SafetySpec


def safety_of(own: Mapping[str, str]) -> SafetySpec:
    """The safety of the run that the flags ask for."""
    return SafetySpec(
        on_nonfinite=_nonfinite_action(own.get("on-nonfinite", "warn")),
        emergency_checkpoint="emergency-checkpoint" in own,
    )


def _nonfinite_action(text: str) -> NonfiniteAction:
    try:
        return NonfiniteAction(text)
    except ValueError:
        raise GpurunError(
            f"--on-nonfinite {text!r} is not known", "write warn, skip or stop"
        ) from None
