"""Findings: why a script does not scale, and a remedy. Pure functions over measured costs.

A finding is made at the largest count whose efficiency is below `GOOD`. The causes do not exclude
each other, and their gains do not add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpurun.diagnoses.api import gain_without
from gpurun.diagnoses.thresholds import Thresholds, gain_severity
from gpurun.records.finding import WARNING
from gpurun.records.scaling import ScalingFinding
from gpurun.scaling.efficiency import StepCosts, parts_of_own_work

GOOD = 0.90
"""Efficiency from which on there is nothing to find."""

EXCHANGE_ADVICE = (
    "DistributedDataParallel(gradient_as_bucket_view=True, static_graph=True): fewer copies, an "
    "earlier start of the exchange; the same training",
    "a larger bucket_cap_mb (50, 100): fewer messages; the same training",
    "gradients compressed to bf16 (ddp_comm_hooks.default_hooks.bf16_compress_hook): half the "
    "bytes; other rounding",
    "gradient accumulation with no_sync(), or a larger batch on each device: fewer exchanges a "
    "sample; changes the training",
)
BALANCE_ADVICE = (
    "batches of like cost on all ranks: bucket by length, or share out whole batches in turn",
    "look for work that only one rank does in a step: logging, saving, evaluation",
)
DATA_ADVICE = (
    "the loader workers of all ranks share the cores and the storage: check their number a rank; "
    "fewer workers or cheaper transforms may be faster",
    "move decoding and augmentation to the device, or store decoded data",
)
HOST_ADVICE = (
    "the ranks share the host: give each its cores (--numa-binding, OMP_NUM_THREADS), and check "
    "power and clocks of the devices (gpurun doctor)",
)
CORES_ADVICE = (
    "the ranks share the cores of the CPU: fewer ranks with more threads each do the same work; "
    "only what waits (storage, network) gains from more ranks",
)


def findings(
    efficiencies: dict[int, float],
    measured: Sequence[StepCosts],
    thresholds: Thresholds,
    *,
    strong: bool,
    on_cpu: bool,
) -> tuple[ScalingFinding, ...]:
    """The findings, most severe first. `efficiencies`: by count; `measured`: every count's costs,
    the smallest first.

    The threshold of imbalance compares the slowest rank with the mean one. All others are as severe
    as their gains say: those of the data wait and of the host are without the time that more ranks
    have added to the step.
    """
    weak_spots = [n for n, efficiency in efficiencies.items() if efficiency < GOOD]
    if not weak_spots or not measured:
        return ()
    at = max(weak_spots)
    base = measured[0]
    worst = next((costs for costs in measured if costs.gpus == at), None)
    if worst is None or worst.step_ms is None:
        return ()
    found = [
        *_communication(worst),
        *_imbalance(worst, thresholds),
        *_data(base, worst, strong),
    ]
    if not strong:
        found += _host(base, worst, on_cpu)
    worth_saying = (finding for finding in found if finding.severity >= WARNING)
    return tuple(sorted(worth_saying, key=lambda finding: -finding.severity))


def _communication(costs: StepCosts) -> Iterator[ScalingFinding]:
    if costs.exposed is None:
        return
    share = costs.exposed
    yield ScalingFinding(
        type="multi_gpu_comm",
        severity=_severity(share),
        gpus=costs.gpus,
        description=f"{share:.0%} of the step waits for the exchange of gradients",
        evidence={"exposed_communication_percent": 100 * share, "step_time_ms": _step(costs)},
        recommendations=EXCHANGE_ADVICE,
        gain_upper_bound=gain_without(share),
    )


def _imbalance(costs: StepCosts, thresholds: Thresholds) -> Iterator[ScalingFinding]:
    if costs.imbalance is None:
        return
    which = "the slowest rank" if costs.busiest is None else f"rank {costs.busiest}, the slowest,"
    yield ScalingFinding(
        type="load_imbalance",
        severity=round(thresholds.severity("imbalance", costs.imbalance - 1), 3),
        gpus=costs.gpus,
        description=f"{which} works {costs.imbalance - 1:.0%} longer than the mean, and the others "
        "wait for it",
        evidence={"imbalance": costs.imbalance}
        | ({} if costs.busiest is None else {"rank": costs.busiest}),
        recommendations=BALANCE_ADVICE,
        gain_upper_bound=costs.imbalance,
    )


def _data(base: StepCosts, costs: StepCosts, strong: bool) -> Iterator[ScalingFinding]:
    if base.data_ms is None or costs.data_ms is None:
        return
    ideal = base.data_ms * (base.gpus / costs.gpus if strong else 1.0)
    share = (costs.data_ms - ideal) / _step(costs)
    yield ScalingFinding(
        type="data_bound",
        severity=_severity(share),
        gpus=costs.gpus,
        description=f"the wait for data has grown to {costs.data_ms:.3g} ms a step, from "
        f"{base.data_ms:.3g} ms at {base.gpus}",
        evidence={
            "data_wait_ms": costs.data_ms,
            "data_wait_ms_at_smallest": base.data_ms,
            "step_time_ms": _step(costs),
        },
        recommendations=DATA_ADVICE,
        gain_upper_bound=gain_without(share),
    )


def _host(base: StepCosts, costs: StepCosts, on_cpu: bool) -> Iterator[ScalingFinding]:
    """Ranks whose batch is kept do the same work: where it takes longer, they share something."""
    if costs.whole:
        before, now = base.own_work_ms, costs.own_work_ms
    else:
        before, now = parts_of_own_work(base), parts_of_own_work(costs)
    if before is None or now is None:
        return
    share = (now - before) / _step(costs)
    yield ScalingFinding(
        type="shared_host",
        severity=_severity(share),
        gpus=costs.gpus,
        description=f"the same work takes a rank {now:.3g} ms a step, and {before:.3g} ms at "
        f"{base.gpus}" + ("" if costs.whole else " (forward pass and optimizer alone)"),
        evidence={"own_work_ms": now, "own_work_ms_at_smallest": before},
        recommendations=CORES_ADVICE if on_cpu else HOST_ADVICE,
        gain_upper_bound=gain_without(share),
    )


def _severity(share: float) -> float:
    """That of the gain without a share of the step."""
    return round(gain_severity(gain_without(share) or 1.0), 3)


def _step(costs: StepCosts) -> float:
    assert costs.step_ms is not None
    return costs.step_ms
