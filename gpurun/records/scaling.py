"""The document of `gpurun --scale LIST --json FILE`."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from gpurun.records.record import record
from gpurun.records.result import StepSplit

SCALING_SCHEMA = "gpurun/scaling@1"


@record
class ScalingLaunch:
    """One launch. `samples_per_second`: of all ranks over the time in which all were measured.

    `round`: launches of one round are compared with each other. `exchange`: False where gradients
    were left unexchanged, to see what the exchange costs. `error`: why it is of no use, None where
    it is.
    """

    round: int
    exchange: bool
    samples_per_second: float | None
    step_time_ms: float | None
    seconds: float
    run_dir: str
    error: str | None = None


@record
class ScalingPoint:
    """So many devices, one rank each. A figure is None where it was not measured.

    `gpus`: ranks, which on a machine without GPUs share its cores. `samples_per_second`: of all
    ranks together, geometric mean over the rounds. `speedup`: factor against the smallest count,
    within rounds. `efficiency`: speedup over the factor of devices, a fraction, with the 95 % t
    interval over rounds. The interval is None for the smallest count, whose efficiency is 1 by
    definition, and for a single round. `exposed_communication_percent`: share of the step that
    disappears when gradients are not exchanged. `imbalance`: time that the slowest rank works over
    the ranks' mean (1.0: none). `peak_memory_bytes`: of the rank that needed most. `batch_size`: of
    one rank. `step_time_ms`, `step_split`: of the slowest rank. `error`: why it could not be
    measured.
    """

    gpus: int
    samples_per_second: float | None
    speedup: float | None
    efficiency: float | None
    efficiency_confidence_interval: tuple[float, float] | None
    exposed_communication_percent: float | None
    imbalance: float | None
    peak_memory_bytes: int | None
    batch_size: float | None = None
    step_time_ms: float | None = None
    step_split: StepSplit | None = None
    error: str | None = None
    launches: tuple[ScalingLaunch, ...] = ()


@record
class ScalingFinding:
    """A cause that limits scaling, and the cure.

    `type`: "multi_gpu_comm", "load_imbalance", "data_bound" or "shared_host". `severity`: 0 to 1
    (0.4: worth a look, 0.7: critical). `gpus`: the count at which it was measured. `evidence`:
    figures by name. `gain_upper_bound`: factor of throughput if the cause were gone.
    """

    type: str
    severity: float
    gpus: int
    description: str
    evidence: dict[str, float]
    recommendations: tuple[str, ...]
    gain_upper_bound: float | None


@record
class ScalingWay:
    """Another way to exchange gradients, tried where the exchange keeps the script from scaling.

    `ddp_options`: the value of the flag that asks for it; `settings`: what a settings file would
    hold besides. `effect`: "pipeline", "numerics" where gradients are rounded, "training" where
    there are fewer exchanges a sample. `speedup`: factor of throughput over the usual way, at the
    count of the finding, with its 95 % interval over rounds (None for one round). `faster`: the
    fastest of those that are faster beyond the noise and leave training as it is. `error`: why it
    could not be launched.
    """

    ddp_options: str
    effect: str
    speedup: float | None
    speedup_confidence_interval: tuple[float, float] | None
    faster: bool
    error: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@record
class ProjectedPoint:
    """A count that was not measured. `efficiency_band`: 95 % of the fits to what may be true of the
    measured points."""

    gpus: int
    samples_per_second: float | None
    speedup: float
    efficiency: float
    efficiency_band: tuple[float, float]


@record
class ScalingProjection:
    """A projection, no measurement: the step's time by a model that is fitted to the points.

    `model`: its formula, in fractions of the smallest count's step. `compute`, `bandwidth` and
    `latency` are its parameters (None: it was not among those fitted). `fitted_to`: the counts it
    was fitted to. `assumptions`: what must hold for it to come true.
    """

    label: str
    model: str
    compute: float
    bandwidth: float | None
    latency: float | None
    fitted_to: tuple[int, ...]
    assumptions: tuple[str, ...]
    points: tuple[ProjectedPoint, ...]


@record
class ScalingReport:
    """The result of `--scale`.

    `mode`: "weak" (each device keeps the script's batch) or "strong" (all of them share it).
    `verdict`: "ok", "failed" (the script, at the counts whose points have an error), "incomplete"
    (the budget ended before every count was measured) or "interrupted". `device`: what a rank had:
    "NVIDIA H200", or "CPU cores"; `devices`: those of all `nodes`. `distributed`: by what the
    script is known to be distributed by itself, None where it is not. `projection`: None where too
    little was measured for one.
    """

    mode: str
    verdict: str
    exit_code: int
    command: tuple[str, ...]
    device: str
    devices: int
    oversubscribed: bool
    distributed: str | None
    rounds: int
    steps: int | None
    points: tuple[ScalingPoint, ...]
    findings: tuple[ScalingFinding, ...]
    projection: ScalingProjection | None
    seconds: float
    notes: tuple[str, ...] = ()
    tried: tuple[ScalingWay, ...] = ()
    nodes: int = 1
    """Machines that took part."""
    commit: str | None = None
    """What was checked out, unchanged; None where git does not know, or the tree differed."""
    schema: str = SCALING_SCHEMA
