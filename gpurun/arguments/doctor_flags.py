"""The flags of `gpurun doctor`."""

from __future__ import annotations

from gpurun.arguments.flag_parser import filled, split
from gpurun.arguments.main_flags import MAIN
from gpurun.arguments.options import DoctorOptions
from gpurun.errors import GpurunError


def parse_doctor(argv: list[str]) -> DoctorOptions:
    """The options of `gpurun doctor`."""
    words = split(argv, MAIN)
    stray = [name for name in words.own if name not in ("json", "out", "quiet")]
    if words.program is not None or words.torchrun or stray:
        raise GpurunError(
            "doctor takes --json, --out and --quiet only", "gpurun ./doctor runs a script"
        )
    return filled(DoctorOptions, words.own)
