"""Which pairs of launches something disturbed: one half alone (measured again), or both (noted)."""

from __future__ import annotations

from gpurun.bench.benchmark_launcher import Launch
from gpurun.measure.optional_figures import known
from gpurun.measure.other_programs import CROWDED, crowd_out
from gpurun.records.samples import POWER_CAP

MOST_AGAIN = 8
"""Pairs that are launched again because something befell one half; further ones count."""
WAITS_APART = 3.0
"""Percent of the measured time: where one half waited so much more for cores, it was disturbed."""


def disturbance(baseline: Launch, current: Launch, live: bool = False) -> str | None:
    """Why a pair says nothing about the trees: what befell one half of it alone, by records.

    The half is named as its launch is. Never by its timing: pairs that are dropped for their
    figures would bias the verdict. In a `live` pair a wait for cores falls on both sides' turns,
    and a side that alone reaches the power cap does so by its own work.
    """
    throttled = [_throttled(launch) for launch in (baseline, current)]
    names = [launch.start.name for launch in (baseline, current)]
    for name, own, of_other in (
        (names[0], throttled[0], throttled[1]),
        (names[1], throttled[1], throttled[0]),
    ):
        alone = own - of_other - ({POWER_CAP} if live else set())
        if alone:
            return f"the GPU was throttled in the {name} half only ({', '.join(sorted(alone))})"
    beside = [_foreign(launch) for launch in (baseline, current)]
    if None not in beside and any(beside) and not all(beside):
        half = names[0] if beside[0] else names[1]
        return f"another process computed on the GPU in the {half} half only"
    if live:
        return None
    waits = known(launch.result.cores_lost_percent for launch in (baseline, current))
    if len(waits) == 2 and abs(waits[0] - waits[1]) > WAITS_APART:
        return (
            f"the {names[waits.index(max(waits))]} half waited for cores for {max(waits):.0f} % of "
            f"its time, and the other for {min(waits):.0f} %"
        )
    return None


def trouble_of_both(baseline: Launch, current: Launch, live: bool = False) -> str | None:
    """A disturbance of both halves of a pair: the pair counts, and a note names the cause."""
    if all(_foreign(launch) for launch in (baseline, current)):
        return "another process computed on the GPU throughout"
    throttled = _throttled(baseline) & _throttled(current)
    if throttled:
        return f"the GPU was throttled throughout ({', '.join(sorted(throttled))})"
    if live and crowd_out([baseline.result, current.result]):
        return CROWDED
    return None


def _throttled(launch: Launch) -> set[str]:
    return {reason for device in launch.result.devices for reason in device.throttle_reasons}


def _foreign(launch: Launch) -> int | None:
    counts = [d.foreign_processes for d in launch.result.devices if d.foreign_processes is not None]
    return max(counts, default=None)
