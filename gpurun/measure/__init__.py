"""From a run folder to figures: warm-up, steady state, devices and host.

Pure Python without numpy or torch: the launcher of a plain run does this too, and must stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpurun.measure.run_summary import summarise_run

__all__ = ["summarise_run"]


def __getattr__(name: str) -> Any:
    if name == "summarise_run":
        from gpurun.measure.run_summary import summarise_run

        return summarise_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
