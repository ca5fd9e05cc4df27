"""What follows a run: the status line, the monitor, metrics and events for other programs."""

from __future__ import annotations

from importlib.util import find_spec

from gpurun.errors import GpurunError


def require(package: str, flag: str) -> None:
    """`GpurunError` if the package is not installed. Imports nothing of it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a folder of that name is no package
        raise GpurunError(
            f"{flag} needs the package {package}, which is not installed", f"pip install {package}"
        )
