"""The door to isolation: choose a mode, run trials in sandboxes, compare trees before and after."""

from gpurun.isolation.available_modes import Availability, choose, require
from gpurun.isolation.folder_removal import discard, discard_abandoned, hold
from gpurun.isolation.folder_snapshot import Snapshot, files_open_for_writing, snapshot
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.quiet_services import quiet_services
from gpurun.isolation.sandbox import LaunchSpec, Sandbox

__all__ = [
    "Availability",
    "LaunchSpec",
    "Mode",
    "Sandbox",
    "Snapshot",
    "choose",
    "discard",
    "discard_abandoned",
    "files_open_for_writing",
    "hold",
    "quiet_services",
    "require",
    "snapshot",
]
