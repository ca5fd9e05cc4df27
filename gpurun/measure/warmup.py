"""The number of leading steps that are warm-up and must not be measured.

Two things are looked for. Spikes among the first steps (compilation, cudnn's benchmark, the first
allocations) end with the last of them. A change of level (the GPU's queue fills, clocks ramp up,
caches get warm) ends by MSER, the marginal standard error rule of White (1997). It cuts where the
variance of the rest over its length is smallest. MSER sees a running median, so a single slow step
later on (an evaluation pass, a partial batch that is compiled again) stays in the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.stats.descriptive import median

LOOK_AT = 4096
"""Steps looked at: warm-up that lasts longer is no warm-up."""
EARLY_STEPS = 10
"""Spikes count as warm-up among so many first steps."""
SPIKE = 1.5
"""A spike takes this many times the settled step."""
LEVEL_CHANGE = 0.03
"""A part that differs less from the rest than this is not worth leaving out."""
SMOOTHING = 2
"""Neighbours on each side in the running median."""


def warmup_steps(durations: Sequence[float], queue_batches: int = 0, known: int = 0) -> int:
    """The number of leading steps to leave out: at most half of the steps after the `known` ones.

    `durations`: of every step, the first included. `queue_batches`: batches that a loader with
    workers has read ahead; while it lasts, steps look faster than the loader can sustain. `known`:
    leading steps that are out anyway, such as the audited steps of a trial.
    """
    count = len(durations)
    if count < 2:
        return 0
    known = min(known, count)
    seen = durations[known : known + LOOK_AT]
    least = 2 if count >= 6 else 1  # the first step's duration is not known: it has no step before
    if queue_batches > 0:
        least = max(least, queue_batches + 2)
    found = max(_after_spikes(seen), _after_level_change(seen)) if len(seen) > 1 else 0
    return max(known, 1, min(max(least, known + found), known + (count - known) // 2))


def _after_spikes(durations: Sequence[float]) -> int:
    settled = median(durations[len(durations) // 2 :])
    early = min(EARLY_STEPS, len(durations) // 2)
    spikes = [i for i in range(early) if durations[i] > SPIKE * settled]
    return spikes[-1] + 1 if spikes else 0


def _after_level_change(durations: Sequence[float]) -> int:
    smooth = _running_median(durations)
    cut = _mser(smooth)
    if cut == 0:
        return 0
    before, after = median(smooth[:cut]), median(smooth[cut:])
    return cut if abs(before - after) > LEVEL_CHANGE * after else 0


def _running_median(values: Sequence[float]) -> list[float]:
    return [median(values[max(0, i - SMOOTHING) : i + SMOOTHING + 1]) for i in range(len(values))]


def _mser(values: Sequence[float]) -> int:
    """The cut in the first half after which variance over length of the rest is smallest."""
    center = median(values)  # keeps the sums of squares small
    total = squares = 0.0
    best, best_error = 0, float("inf")
    for start in range(len(values) - 1, -1, -1):
        offset = values[start] - center
        total += offset
        squares += offset * offset
        length = len(values) - start
        error = (squares - total * total / length) / length**2
        if start <= len(values) // 2 and error <= best_error:
            best, best_error = start, error
    return best
