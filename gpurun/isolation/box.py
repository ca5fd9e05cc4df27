"""The door to isolation: choose a mode, run trials in boxes, compare trees before and after."""

from gpurun.isolation.choice import Availability, choose, require
from gpurun.isolation.discarding import discard
from gpurun.isolation.mode import Mode
from gpurun.isolation.open_files import written_below
from gpurun.isolation.running import Box, BoxSpec
from gpurun.isolation.services import quiet_services
from gpurun.isolation.snapshot import Snapshot, snapshot

__all__ = [
    "Availability",
    "Box",
    "BoxSpec",
    "Mode",
    "Snapshot",
    "choose",
    "discard",
    "quiet_services",
    "require",
    "snapshot",
    "written_below",
]
