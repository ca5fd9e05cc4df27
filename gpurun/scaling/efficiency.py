"""Efficiency of a count of devices with its interval, and where the rest of a step goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpurun.measure.optional_figures import mean as mean_of_known
from gpurun.measure.optional_figures import mean_record, shared
from gpurun.records.result import StepSplit
from gpurun.scaling.finished_launch import FinishedLaunch, LaunchCosts
from gpurun.scaling.launch_rounds import Measurements
from gpurun.stats.descriptive import SD_FLOOR, geometric_mean, mean, standard_deviation, t_quantile


@dataclass(frozen=True)
class Efficiency:
    """`speedup`: factor; `efficiency`: fraction; `interval`: 95 %, None with fewer than 2 rounds
    and for the count that all are compared with."""

    speedup: float
    efficiency: float
    interval: tuple[float, float] | None
    rounds: int


def efficiencies(rates: Mapping[int, Mapping[int, float]]) -> dict[int, Efficiency]:
    """By count, against the smallest one. `rates`: by count and round, work a second of all ranks.

    A count that shares no round with the smallest one has none.
    """
    measured = {count: by_round for count, by_round in rates.items() if by_round}
    if not measured:
        return {}
    smallest = min(measured)
    base = measured[smallest]
    found = {smallest: Efficiency(1.0, 1.0, None, len(base))}
    for count, by_round in sorted(measured.items()):
        ratios = [by_round[k] / base[k] for k in sorted(by_round.keys() & base.keys())]
        if count != smallest and ratios:
            found[count] = compared(ratios, count / smallest)
    return found


def compared(ratios: list[float], factor: float) -> Efficiency:
    """The efficiency from ratios of throughput within rounds; `factor` would be ideal."""
    logs = [math.log(ratio / factor) for ratio in ratios]
    efficiency = math.exp(mean(logs))
    return Efficiency(geometric_mean(ratios), efficiency, _interval(logs), len(logs))


def _interval(logs: list[float]) -> tuple[float, float] | None:
    count = len(logs)
    if count < 2:
        return None
    error = max(standard_deviation(logs), SD_FLOOR) / math.sqrt(count)
    half = t_quantile(count - 1, 0.975) * error
    center = mean(logs)
    return math.exp(center - half), math.exp(center + half)


@dataclass(frozen=True)
class StepCosts:
    """Means over the launches of one count. None: not measured.

    `exposed`: fraction of the step that is gone when nothing is exchanged. `own_work_ms`: the time
    that a rank works by itself in a step, without waiting for data or for other ranks. If only some
    parts of the step are known, it covers these, and `whole` is False. `busiest`: the rank that
    worked longest in every launch, None where that was not always the same.
    """

    gpus: int
    step_ms: float | None
    split: StepSplit | None
    exposed: float | None
    imbalance: float | None
    own_work_ms: float | None
    whole: bool
    busiest: int | None = None

    @property
    def data_ms(self) -> float | None:
        """Milliseconds a step that wait for data."""
        return None if self.split is None else self.split.data_wait_ms


def costs(measured: Measurements, gpus: int) -> StepCosts:
    """The costs at one count of ranks."""
    plain, mute = measured.of(gpus), measured.of(gpus, exchange=False)
    seen, quiet = _figures(plain.values()), _figures(mute.values())
    exchanging = any(launch.together for launch in plain.values())
    split = mean_record(x.split for x in seen)
    unhindered = quiet or ([] if exchanging else seen)
    return StepCosts(
        gpus=gpus,
        step_ms=mean_of_known(x.step_time_ms for x in seen),
        split=split,
        exposed=_exposed(plain, mute),
        imbalance=mean_of_known(x.imbalance for x in (quiet or seen)),
        own_work_ms=_own_work(unhindered) if unhindered else _parts(split),
        whole=bool(unhindered),
        busiest=shared(x.busiest for x in (quiet or seen)),
    )


def parts_of_own_work(found: StepCosts) -> float | None:
    """The own work of the parts in which no rank waits for another, to compare like with like."""
    return _parts(found.split)


def _figures(launches: Iterable[FinishedLaunch]) -> list[LaunchCosts]:
    return [launch.figures for launch in launches if launch.figures is not None]


def _exposed(plain: dict[int, FinishedLaunch], mute: dict[int, FinishedLaunch]) -> float | None:
    shares = []
    for number in plain.keys() & mute.keys():
        whole, without = plain[number].figures, mute[number].figures
        if whole is not None and without is not None:
            shares.append(1 - without.step_time_ms / whole.step_time_ms)
    found = mean_of_known(shares)
    return None if found is None else max(found, 0.0)


def _own_work(seen: list[LaunchCosts]) -> float | None:
    def own(x: LaunchCosts) -> float | None:
        waited = None if x.split is None else x.split.data_wait_ms
        return None if waited is None else x.step_time_ms - waited

    return mean_of_known(map(own, seen))


def _parts(split: StepSplit | None) -> float | None:
    """Forward pass and optimizer: the backward pass is where ranks wait for each other."""
    if split is None:
        return None
    parts: tuple[Callable[[StepSplit], float | None], ...] = (
        lambda s: s.forward_ms,
        lambda s: s.optimizer_ms,
    )
    values = [part(split) for part in parts]
    return None if None in values else sum(x for x in values if x is not None)
