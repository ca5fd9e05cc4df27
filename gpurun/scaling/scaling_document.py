"""Makes the document of `--scale` from the launches. Nothing is launched here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.arguments.options import ScaleOptions
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode
from gpurun.formatting.number_text import count
from gpurun.measure.optional_figures import known, mean
from gpurun.records.scaling import (
    ProjectedPoint,
    ScalingFinding,
    ScalingLaunch,
    ScalingPoint,
    ScalingProjection,
    ScalingReport,
)
from gpurun.scaling.ddp_option_trials import WORTH_TRYING
from gpurun.scaling.efficiency import Efficiency, StepCosts, costs, efficiencies
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.launch_rounds import Measurements
from gpurun.scaling.rank_devices import RankDevices
from gpurun.scaling.scaling_findings import GOOD, findings
from gpurun.stats.descriptive import geometric_mean
from gpurun.stats.scaling_model import MeasuredCount, Projection, project

MODEL = {
    False: "step = compute + bandwidth * 2(N-1)/N + latency * 2(N-1)",
    True: "step = compute * n/N + bandwidth * 2(N-1)/N + latency * 2(N-1)",
}
"""By whether it is strong scaling; n is the smallest count."""
WIDE = 1.5
"""An interval decides nothing if its upper end is this many times its lower end."""
MORE_THAN_ALL = 1.1
"""An efficiency above it has other causes than the devices."""
DOUBT = 0.65
"""Severity of a finding at a count that may be a good one."""
OTHERS = 0.1
"""The share of the cores that other programs may use without a note."""
LABEL = "projection, not measured"
CODES = {
    "ok": ExitCode.OK,
    "failed": ExitCode.BENCHMARK_FAILED,
    "incomplete": ExitCode.INCONCLUSIVE,
    "interrupted": ExitCode.INTERRUPTED,
}


@dataclass(frozen=True)
class MeasurementContext:
    """The circumstances that the launches themselves do not hold. `devices`: those of the first of
    `nodes` nodes. `ranks_a_node`: ranks of each node, None for one node. `folder`: the run's.
    `interrupted`: by a signal."""

    command: tuple[str, ...]
    devices: RankDevices
    distributed: str | None
    folder: Path
    seconds: float
    interrupted: bool
    nodes: int = 1
    ranks_a_node: int | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def device_count(self) -> int:
        """Devices that ranks can have, of all nodes."""
        each = self.ranks_a_node or self.devices.count
        return min(each, self.devices.count) * self.nodes

    def oversubscribed(self, ranks: int) -> bool:
        """True if so many ranks share devices."""
        return min(ranks, self.ranks_a_node or ranks) > self.devices.count


def document(
    asked: ScaleOptions, measured: Measurements, around: MeasurementContext
) -> ScalingReport:
    """The document; figures that could not be measured are None."""
    compared, spent = _compared(asked, measured)
    points = tuple(_point(gpus, measured, compared, around) for gpus in asked.counts)
    verdict = _verdict(asked, measured, points, around)
    # one link is fitted: that within a node and that between them are two
    fitted = compared if around.nodes == 1 and not _undecided(compared) else {}
    ahead = project(
        [MeasuredCount(n, x.efficiency, x.interval, x.rounds) for n, x in fitted.items()],
        asked.strong,
    )
    return ScalingReport(
        mode="strong" if asked.strong else "weak",
        verdict=verdict,
        exit_code=int(CODES[verdict]),
        command=around.command,
        device=around.devices.name,
        devices=around.device_count,
        oversubscribed=around.oversubscribed(max(asked.counts)),
        distributed=around.distributed,
        rounds=measured.rounds,
        steps=measured.steps,
        points=points,
        findings=_findings(asked, compared, spent, around),
        projection=None if ahead is None else _projection(ahead, points),
        seconds=around.seconds,
        nodes=around.nodes,
        notes=tuple(_notes(asked, measured, compared, spent, around)),
    )


def worth_another_way(asked: ScaleOptions, measured: Measurements) -> int | None:
    """The largest count below `GOOD` whose exposed exchange of gradients is long enough to try
    other options; None if there is none."""
    poor = _poor(*_compared(asked, measured))
    counts = (x.gpus for x in poor if x.exposed is not None and x.exposed >= WORTH_TRYING)
    return max(counts, default=None)


def _compared(
    asked: ScaleOptions, measured: Measurements
) -> tuple[dict[int, Efficiency], list[StepCosts]]:
    """Every count that can be compared, and where its steps go."""
    found = efficiencies(_rates(asked, measured))
    return found, [costs(measured, gpus) for gpus in asked.counts if gpus in found]


def _poor(compared: dict[int, Efficiency], spent: list[StepCosts]) -> list[StepCosts]:
    """The counts that fall short of `GOOD`."""
    return [x for x in spent if compared[x.gpus].efficiency < GOOD]


def _findings(
    asked: ScaleOptions,
    compared: dict[int, Efficiency],
    spent: list[StepCosts],
    around: MeasurementContext,
) -> tuple[ScalingFinding, ...]:
    by_count = {n: x.efficiency for n, x in compared.items()}
    found = findings(
        by_count, spent, around.thresholds, strong=asked.strong, on_cpu=not around.devices.gpus
    )
    return tuple(
        one if _surely_poor(compared[one.gpus]) else replace(one, severity=min(one.severity, DOUBT))
        for one in found
    )


def _surely_poor(found: Efficiency) -> bool:
    return found.interval is not None and found.interval[1] < GOOD


def _undecided(compared: dict[int, Efficiency]) -> list[int]:
    """The counts of which the rounds say nothing."""
    known = ((gpus, x.interval) for gpus, x in compared.items() if x.interval is not None)
    return [gpus for gpus, (low, high) in known if high > WIDE * low]


def _rates(asked: ScaleOptions, measured: Measurements) -> dict[int, dict[int, float]]:
    return {
        gpus: {
            number: launch.figures.rate
            for number, launch in measured.of(gpus).items()
            if launch.figures is not None
        }
        for gpus in asked.counts
    }


def _point(
    gpus: int, measured: Measurements, compared: dict[int, Efficiency], around: MeasurementContext
) -> ScalingPoint:
    launches = measured.of(gpus)
    found, spent = compared.get(gpus), costs(measured, gpus)
    seen = [launch.figures for launch in launches.values() if launch.figures is not None]
    samples = known(x.samples_per_second for x in seen)
    failure = measured.failure(gpus)
    error = None if failure is None else failure.error
    if error is None and not launches:
        error = f"not measured: {_why_not(measured, around)}"
    return ScalingPoint(
        gpus=gpus,
        samples_per_second=geometric_mean(samples) if samples else None,
        speedup=None if found is None else found.speedup,
        efficiency=None if found is None else found.efficiency,
        efficiency_confidence_interval=None if found is None else found.interval,
        exposed_communication_percent=None if spent.exposed is None else 100 * spent.exposed,
        imbalance=spent.imbalance,
        peak_memory_bytes=max(
            known(launch.result.peak_memory_bytes for launch in launches.values()), default=None
        ),
        batch_size=mean(x.batch_size for x in seen),
        step_time_ms=spent.step_ms,
        step_split=spent.split,
        error=error,
        launches=tuple(
            _launch(number, launch, around.folder)
            for number, launch in measured.launches
            if launch.planned.ranks == gpus
        ),
    )


def _why_not(measured: Measurements, around: MeasurementContext) -> str:
    """The reason for a count that was not launched."""
    if around.interrupted:
        return "interrupted"
    if measured.out_of_time:
        return "the budget ended"
    lost = next((x.error for _, x in measured.launches if x.status == "lost"), None)
    return lost or "the smallest count failed"


def _launch(number: int, launch: FinishedLaunch, folder: Path) -> ScalingLaunch:
    figures = launch.figures
    return ScalingLaunch(
        round=number,
        exchange=launch.planned.exchange,
        samples_per_second=None if figures is None else figures.samples_per_second,
        step_time_ms=None if figures is None else figures.step_time_ms,
        seconds=launch.seconds,
        run_dir=os.path.relpath(launch.folder, folder),
        error=launch.error,
    )


def _verdict(
    asked: ScaleOptions,
    measured: Measurements,
    points: tuple[ScalingPoint, ...],
    around: MeasurementContext,
) -> str:
    """A count without enough memory is a result; one on which the script fails is its failure."""
    if around.interrupted:
        return "interrupted"
    failures = {gpus: measured.failure(gpus) for gpus in asked.counts}
    first = failures[asked.counts[0]]
    if first is not None or any(x is not None and x.status != "oom" for x in failures.values()):
        return "failed"
    missing = [p for p in points if p.step_time_ms is None and failures[p.gpus] is None]
    return "incomplete" if missing else "ok"


def _projection(ahead: Projection, points: tuple[ScalingPoint, ...]) -> ScalingProjection:
    fit = ahead.fit
    base = next(point for point in points if point.gpus == fit.smallest)
    projected = []
    for point in ahead.points:
        factor = point.gpus / fit.smallest
        rate = base.samples_per_second
        projected.append(
            ProjectedPoint(
                gpus=point.gpus,
                samples_per_second=None if rate is None else rate * factor * point.efficiency,
                speedup=factor * point.efficiency,
                efficiency=point.efficiency,
                efficiency_band=point.band,
            )
        )
    return ScalingProjection(
        label=LABEL,
        model=MODEL[fit.strong],
        compute=fit.compute,
        bandwidth=fit.bandwidth,
        latency=fit.latency,
        fitted_to=tuple(point.gpus for point in points if point.efficiency is not None),
        assumptions=ahead.assumptions,
        points=tuple(projected),
    )


def _sizes(measured: Measurements, compared: dict[int, Efficiency]) -> list[float | None]:
    """Samples of a rank's batch, of the smallest and of the largest count."""
    return [
        mean(x.figures.batch_size for x in measured.of(gpus).values() if x.figures is not None)
        for gpus in (min(compared, default=0), max(compared, default=0))
    ]


def _singles(measured: Measurements, compared: dict[int, Efficiency]) -> bool:
    """True if the script's batches are too small to be shared."""
    return len(compared) > 1 and _sizes(measured, compared) == [1, 1]


def _kept_batches(measured: Measurements, compared: dict[int, Efficiency]) -> bool:
    """True if the largest count's ranks had batches as large as the smallest count's."""
    first, last = _sizes(measured, compared)
    return len(compared) > 1 and first is not None and last is not None and last >= first > 1


def _notes(
    asked: ScaleOptions,
    measured: Measurements,
    compared: dict[int, Efficiency],
    spent: list[StepCosts],
    around: MeasurementContext,
) -> list[str]:
    return [
        *_what_was_measured(asked, measured, compared),
        *_without_gpus(asked, around),
        *_how_far_to_trust(asked, measured, compared, spent),
        *_other_programs(measured, around),
        *(["the budget ended before all rounds were launched"] if measured.out_of_time else []),
        *_why_no_projection(compared, around.nodes),
        *_short(measured),
    ]


def _what_was_measured(
    asked: ScaleOptions, measured: Measurements, compared: dict[int, Efficiency]
) -> Iterator[str]:
    """Where the ranks did not train as `--scale` asks."""
    alone = [
        gpus
        for gpus in compared
        if gpus > 1 and not any(launch.together for launch in measured.of(gpus).values())
    ]
    if alone:
        yield (
            f"the ranks of {', '.join(map(str, alone))} exchanged nothing: the figures are of "
            "separate trainings, not of one on several devices"
        )
    if asked.strong and _singles(measured, compared):
        yield (
            "a batch of one sample cannot be shared: all ranks had the same sample, and samples/s "
            "counts it once a rank"
        )
    if asked.strong and _kept_batches(measured, compared):
        yield "each rank kept the whole batch, though --strong was asked for: this is weak scaling"


def _without_gpus(asked: ScaleOptions, around: MeasurementContext) -> Iterator[str]:
    """A line about ranks that share the cores of a machine without GPUs."""
    if around.devices.gpus:
        return
    threads = around.devices.threads
    smallest = count(asked.counts[0], "rank")
    yield (
        f"no GPU: the ranks {'of a node ' if around.nodes > 1 else ''}share "
        f"{count(around.devices.cores, 'core')}"
        + (
            f", each with OMP_NUM_THREADS={threads}"
            if threads
            else f", and {smallest} may use all of them, too: work that computes cannot scale"
        )
    )


def _how_far_to_trust(
    asked: ScaleOptions,
    measured: Measurements,
    compared: dict[int, Efficiency],
    spent: list[StepCosts],
) -> Iterator[str]:
    """Limits of the efficiencies."""
    if measured.rounds < 2 and len(compared) > 1:
        yield "one round gives no interval: its efficiencies are an indication"
    for gpus, found in compared.items():
        if found.efficiency > MORE_THAN_ALL:
            yield (
                f"more than 100 % at {gpus} is not due to more devices: the launches of "
                f"{asked.counts[0]} were held up, or fit into caches less well"
            )
    if asked.counts[0] != 1:
        yield f"efficiency is relative to {asked.counts[0]}, the smallest count"
    if any(x.exposed is None and x.gpus > 1 for x in _poor(compared, spent)):
        yield "the cost of the gradient exchange was not measured"


def _other_programs(measured: Measurements, around: MeasurementContext) -> Iterator[str]:
    """Who else used the cores."""
    others = mean(x.result.host.others_cpu_percent for _, x in measured.launches if x.result.host)
    if others is not None and others / 100 > OTHERS * around.devices.cores:
        yield (
            f"other programs used {others / 100:.1f} of {count(around.devices.cores, 'core')} "
            "meanwhile: measure again on an idle machine"
        )


def _why_no_projection(compared: dict[int, Efficiency], nodes: int) -> Iterator[str]:
    """Why the scaling model was not fitted; nothing if it was."""
    undecided = _undecided(compared)
    if nodes > 1:
        yield (
            "no projection: the model has one kind of link, and several nodes have two; see the "
            "table for the step from one node to more"
        )
    elif undecided:
        for gpus in undecided:
            yield (
                f"the rounds differ too much to know the efficiency at {gpus}: measure again on "
                "an idle machine, or with more --rounds"
            )
        yield "no projection: no efficiency is certain enough to fit it to"
    elif sum(gpus > 1 for gpus in compared) < 2:
        yield "no projection: it needs two measured counts above 1"


def _short(measured: Measurements) -> Iterator[str]:
    """The causes of short launches, if less than half of the wanted steps were measured."""
    wanted = measured.steps or 0
    steps: dict[bool, list[int]] = {True: [], False: []}
    for _, launch in measured.launches:
        if launch.figures is not None and launch.figures.steps < wanted / 2:
            steps[launch.whole].append(launch.figures.steps)
    if steps[True]:
        yield (
            f"some launches ended by themselves after {min(steps[True])} of {wanted} steps: "
            "train for longer to measure them better"
        )
    if steps[False]:
        yield (
            f"of some launches only {min(steps[False])} of {wanted} steps count, because the "
            "others were still warming up, or not all ranks trained then: ask for more --steps"
        )
