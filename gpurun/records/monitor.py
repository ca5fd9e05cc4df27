"""The document of `gpurun monitor --json`: GPUs, host and trainings at one moment."""

from __future__ import annotations

from gpurun.records.record import record

MONITOR_SCHEMA = "gpurun/monitor@1"


@record
class GpuProcess:
    """A process that computes on a GPU. `command` is None if it is hidden (another container)."""

    pid: int
    command: str | None
    memory_used_bytes: int | None


@record
class GpuState:
    """One GPU; None: the device does not tell.

    `gpu_id`: the number under which CUDA shows it, else its place among the visible GPUs.
    `gpu_utilization_source`: "gpm_sm_activity", "dcgm_sm_activity" or "nvml". `processes` is
    None if it was not asked.
    """

    gpu_id: int
    uuid: str
    name: str
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    processes: tuple[GpuProcess, ...] | None = None


@record
class RankState:
    """The progress of one process that trains; `rank` is None outside a distributed job.

    Step time and throughput are means over the last five seconds, or over the last steps where few
    fall into these. `loss` is the latest that was looked at, infinity (null in JSON) if it was not
    finite. `learning_rate` is that of the first optimizer's first parameter group.
    `last_step_unix_seconds`: when the latest recorded step ended. `samples`: of all steps so far,
    None where those of a step are not known.
    """

    rank: int | None
    pid: int
    steps: int
    step_time_seconds: float | None
    samples_per_second: float | None
    loss: float | None
    learning_rate: float | None
    last_step_unix_seconds: float
    samples: int | None = None


@record
class TrainingState:
    """A run under gpurun. `run`: the name of its folder; `command`: the script and its arguments.

    `ranks` holds the processes that have taken a step.
    """

    run: str
    command: tuple[str, ...]
    ranks: tuple[RankState, ...]


@record
class HostState:
    """The host. `cpu_percent`: use of the cores that gpurun may use, 100 where all are busy."""

    cores: int
    cpu_percent: float | None
    memory_used_bytes: int
    memory_total_bytes: int


@record
class MonitorReport:
    """The whole document."""

    verdict: str
    host: HostState | None
    gpus: tuple[GpuState, ...]
    trainings: tuple[TrainingState, ...]
    hints: tuple[str, ...] = ()
    schema: str = MONITOR_SCHEMA
