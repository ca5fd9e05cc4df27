"""The flags of `gpurun report`."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.arguments.flag_parser import Flags, filled, split_all
from gpurun.arguments.options import ReportOptions

REPORT = Flags(switches=("quiet",), values=("html", "markdown", "out"))


def parse_report(argv: Sequence[str]) -> ReportOptions:
    """The options; flags may stand before and after the runs."""
    own, runs = split_all(argv, REPORT)
    return filled(ReportOptions, own, runs=tuple(runs))
