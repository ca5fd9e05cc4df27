"""The flags of `gpurun monitor`."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.arguments.flag_parser import Flags, filled, split
from gpurun.arguments.flag_values import address_of
from gpurun.arguments.options import MonitorOptions
from gpurun.errors import GpurunError

MONITOR = Flags(switches=("once", "quiet"), values=("json", "prometheus", "out"))


def parse_monitor(argv: Sequence[str]) -> MonitorOptions:
    """The options; `GpurunError` for a word that is none of its flags."""
    words = split(list(argv), MONITOR)
    own = words.own
    if words.program is not None:
        raise GpurunError(
            f"monitor takes no script ({words.program})", "gpurun ./monitor runs a script"
        )
    single = [flag for flag in ("once", "json") if flag in own]
    if single and "prometheus" in own:
        raise GpurunError(f"--{single[0]} is not for --prometheus", "drop one of them")
    return filled(MonitorOptions, own, prometheus=address_of("prometheus", own.get("prometheus")))
