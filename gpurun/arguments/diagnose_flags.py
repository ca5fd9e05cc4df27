"""The flags of `gpurun diagnose`."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.arguments.flag_parser import Flags, HelpAsked, filled, split_all
from gpurun.arguments.options import DiagnoseOptions
from gpurun.errors import ExitCode

DIAGNOSE = Flags(switches=("all", "quiet"), values=("json", "markdown"))


def parse_diagnose(argv: Sequence[str]) -> DiagnoseOptions:
    """The options; flags may stand before and after the paths."""
    own, paths = split_all(argv, DIAGNOSE)
    if not paths:
        raise HelpAsked(ExitCode.USAGE)
    return filled(DiagnoseOptions, own, paths=tuple(paths))
