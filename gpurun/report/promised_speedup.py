"""Compares the speedup that a tuning promised with the run that followed."""

from __future__ import annotations

from gpurun.formatting.number_text import number, times
from gpurun.records.result import RunResult
from gpurun.records.tuning import SavedSettings


def promise_sentence(saved: SavedSettings, result: RunResult) -> str | None:
    """The speed of a run under tuned settings over the script as it was while tuning.

    None where no speedup was promised, or the run has no throughput. Steps count where samples
    cannot be counted, as they did in the tuning.
    """
    base, rate = saved.baseline_samples_per_second, result.samples_per_second
    if rate is None and result.step_time_ms is not None:
        rate = 1000.0 / result.step_time_ms.mean
    if saved.speedup is None or not base or rate is None:
        return None
    return (
        f"promised {times(saved.speedup)}, running {times(rate / base)} "
        f"({number(rate)} samples/s against {number(base)} of the script as it is while tuning)"
    )
