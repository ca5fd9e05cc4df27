"""The flags for a full run that goes wrong."""

from __future__ import annotations

from collections.abc import Mapping

from gpurun.errors import GpurunError
from gpurun.records.spec import NonfiniteAction, SafetySpec

UNSOUND = {
    "skip": "the error leaves the script's own loop, and nothing outside can return to it",
    "shrink": "the script's own variables would still hold the old batch size",
    "restart": "gpurun cannot prove that the script has written nothing",
}
"""Why gpurun does not answer an error for lack of memory in these ways on an untouched script."""


def safety_of(own: Mapping[str, str]) -> SafetySpec:
    """The safety of the run that the flags ask for."""
    _refuse_unsound(own.get("on-oom", "stop"))
    return SafetySpec(
        on_nonfinite=_nonfinite_action(own.get("on-nonfinite", "warn")),
        locate_nonfinite="locate-nonfinite" in own,
        emergency_checkpoint="emergency-checkpoint" in own,
    )


def _nonfinite_action(text: str) -> NonfiniteAction:
    try:
        return NonfiniteAction(text)
    except ValueError:
        raise GpurunError(
            f"--on-nonfinite {text!r} is not known", "write warn, skip or stop"
        ) from None


def _refuse_unsound(on_oom: str) -> None:
    """`stop` is what python does: the script ends with its own error."""
    if on_oom in UNSOUND:
        raise GpurunError(
            f"--on-oom {on_oom} is refused: {UNSOUND[on_oom]}",
            "gpurun --optimize finds settings that fit, before the training; or drop the flag",
        )
    if on_oom != "stop":
        raise GpurunError(f"--on-oom {on_oom!r} is not known", "write stop, or drop the flag")
