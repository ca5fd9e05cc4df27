"""Which pairs of launches something disturbed: one half alone (measured again), or both (noted).

By records, never by timing: pairs that are dropped for their figures would bias the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.measure.optional_figures import known
from gpurun.measure.other_programs import CROWDED, crowd_out
from gpurun.records.result import RunResult
from gpurun.records.samples import POWER_CAP

WAITS_APART = 3.0
"""Percent of the measured time: where one half waited so much more for cores, it was disturbed."""


def disturbance(results: Sequence[RunResult], names: Sequence[str], *, live: bool) -> str | None:
    """Why a pair says nothing: what befell one half of it alone. The half is named as its launch.

    In a `live` pair a wait for cores falls on both sides' turns, and a side that alone reaches the
    power cap does so by its own work.
    """
    throttled = [_throttled(result) for result in results]
    for name, own, of_other in zip(names, throttled, throttled[::-1], strict=True):
        alone = own - of_other - ({POWER_CAP} if live else set())
        if alone:
            return f"the GPU was throttled in the {name} half only ({', '.join(sorted(alone))})"
    beside = [_foreign(result) for result in results]
    if None not in beside and any(beside) and not all(beside):
        half = names[0] if beside[0] else names[1]
        return f"another process computed on the GPU in the {half} half only"
    waits = known(result.cores_lost_percent for result in results)
    if not live and len(waits) == 2 and abs(waits[0] - waits[1]) > WAITS_APART:
        return (
            f"the {names[waits.index(max(waits))]} half waited for cores for {max(waits):.0f} % of "
            f"its time, and the other for {min(waits):.0f} %"
        )
    return None


def trouble_of_both(results: Sequence[RunResult], *, live: bool) -> str | None:
    """A disturbance of both halves of a pair: the pair counts, and a note names the cause.

    Both sides of a `live` pair share the GPU: the one that draws less power cools it for the other.
    """
    if all(_foreign(result) for result in results):
        return "another process computed on the GPU throughout"
    first, second = map(_throttled, results)
    if throttled := first | second if live else first & second:
        return f"the GPU was throttled ({', '.join(sorted(throttled))})"
    return CROWDED if live and crowd_out(list(results)) else None


def _throttled(result: RunResult) -> set[str]:
    return {reason for device in result.devices for reason in device.throttle_reasons}


def _foreign(result: RunResult) -> int | None:
    counts = [d.foreign_processes for d in result.devices if d.foreign_processes is not None]
    return max(counts, default=None)
