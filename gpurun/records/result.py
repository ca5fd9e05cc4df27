"""The result of a run: `result.json`, made by the launcher from the events."""

from __future__ import annotations

import signal
from dataclasses import field
from typing import Any

from gpurun.records.failure import Attempt
from gpurun.records.record import record


@record
class GpuTopology:
    """Where a GPU sits. None: unknown.

    `index`: CUDA's. `pcie_switch`: the bus address of the PCIe bridge two above it, which GPUs
    behind one switch share. `pcie_width`: lanes in use. `nvlinks`: links that are up.
    """

    index: int | None
    name: str
    bus_id: str | None
    numa_node: int | None
    pcie_switch: str | None
    pcie_width: int | None
    pcie_max_width: int | None
    nvlinks: int | None


@record
class GpuPair:
    """Two GPUs, by their places in the list. `path`: the longest way that PCIe traffic takes.

    "one board", "one PCIe switch", "several PCIe switches", "host bridge", "NUMA node" or "across
    sockets". `peer_to_peer`: whether one may read the other's memory; `nvlink`: over NVLink. None:
    unknown.
    """

    one: int
    other: int
    path: str | None
    peer_to_peer: bool | None
    nvlink: bool | None


@record
class Interface:
    """A network interface that is up. `kind`: "ethernet" or "infiniband"."""

    name: str
    kind: str
    megabits_per_second: float | None
    numa_node: int | None


@record
class Topology:
    """The machine. `numa_cores`: cores that this process may use, of each NUMA node with any.

    `findings`: its bottlenecks, one line each.
    """

    numa_cores: tuple[int, ...]
    gpus: tuple[GpuTopology, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    findings: tuple[str, ...] = ()


RESULT_SCHEMA = "gpurun/result@1"
ENDED_WELL = ("completed", "stopped")
"""The statuses of launches that came to their end; of trials, that measured all they had to."""


@record
class StepTime:
    """Distribution of the measured steps' durations, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@record
class StepSplit:
    """Mean milliseconds a step spends waiting for each part; the parts add up to the mean step.

    Host time, except copies to a GPU. Their time is device time: a mean of some early steps, of the
    copies that the script makes in the stream of its training. None where a part cannot be told
    apart in this run.
    """

    data_wait_ms: float | None
    host_to_device_copy_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    rest_ms: float | None


@record
class DeviceUse:
    """One device over the measured window, from the launcher's samples. None: not measured.

    `gpu_utilization_source`: "gpm_sm_activity", "dcgm_sm_activity", "nvml" or None. Energy covers
    `window_seconds`.
    """

    device: str
    uuid: str | None
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    sm_activity_percent: float | None
    tensor_activity_percent: float | None
    dram_activity_percent: float | None
    graphics_activity_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttle_reasons: tuple[str, ...]
    foreign_processes: int | None
    window_seconds: float
    refused: tuple[str, ...] = ()
    """Figures that NVML does not tell here, each with its reason: "power: not supported"."""

    @property
    def active_percent(self) -> float | None:
        """The share of the time in which the device had work, as well as it was measured."""
        if self.graphics_activity_percent is None:
            return self.gpu_utilization_percent
        return self.graphics_activity_percent


@record
class HostUse:
    """CPU and memory of the script's process tree over the run. Percent of one core.

    `others_cpu_percent`: what other programs used meanwhile of the cores that the script may use.
    `disk_read_bytes`: what the tree read from storage, as last sampled; files that the system held
    in memory cost no reading.
    `steady_cpu_percent`: over the measured steps alone; None if they last less than half a second.
    `slow_governor`: the kernel's governor, if it holds the clocks of the cores down.
    """

    cpu_percent: float | None
    cores_available: float | None
    peak_rss_bytes: int | None
    processes: int | None
    others_cpu_percent: float | None = None
    disk_read_bytes: int | None = None
    steady_cpu_percent: float | None = None
    slow_governor: str | None = None


@record
class KnobOutcome:
    """The outcome of one setting, "applied", "skipped" or "failed", and the reason."""

    knob: str
    outcome: str
    detail: str


@record
class NonfiniteLoss:
    """Losses that were NaN or infinite: the first such step, and its loss in words.

    `last_finite_step`: the last step before it whose loss was looked at. `steps`: such steps among
    those that were looked at, all of them under `--on-nonfinite skip` and `stop`. `skipped_steps`:
    optimizer steps left out, a change of the training. `origin`: where the first came from, in
    words, under `--locate-nonfinite`.
    """

    step: int
    loss: str
    last_finite_step: int | None
    steps: int
    skipped_steps: int
    action: str
    origin: str | None = None


@record
class ThroughputDrift:
    """Throughput that changed by more than 5 % within a run.

    `change`: a fraction, negative is slower. The typical step of the first and of the last quarter,
    without the beginning of the run; steps that stand out (epochs, evaluations) do not count.
    """

    change: float
    first_quarter_ms: float
    last_quarter_ms: float


@record
class MemoryGrowth:
    """Memory that grew all through a run, but for its beginning.

    `device`: "GPU 0", None for the host's memory of all the script's processes. `first_bytes`,
    `last_bytes`: typical of the first and the last quarter. `seconds_left`: until the memory is
    full at this rate, from the end of the run on; None where its size is not known.
    """

    device: str | None
    first_bytes: int
    last_bytes: int
    bytes_per_second: float
    seconds_left: float | None


@record
class EpochPace:
    """Milliseconds of a step in the first epoch and in later ones, where these differ much."""

    first_ms: float
    later_ms: float


@record
class RunResult:
    """The measured run.

    `status`: "completed", "failed" (non-zero exit), "killed" (by a signal), "stopped" (a trial that
    saw enough), "timeout" (a trial that was ended from outside), "refused" (`--ddp` cannot
    train it) or "crashed" (no outcome known).
    `clock`: "optimizer", "backward", "forward" or None when no step was seen.
    `samples_per_second` = samples of the measured steps / their wall time, evaluation passes and
    epoch changes inside the window included.

    >>> import json
    >>> from gpurun.records.codec import from_json
    >>> with open("result.json") as file:
    ...     result = from_json(RunResult, json.load(file))
    >>> f"{result.samples_per_second:.0f} samples/s, {result.step_time_ms.p50:.0f} ms a step"
    '325 samples/s, 99 ms a step'
    >>> waiting = result.split.data_wait_ms / result.step_time_ms.mean
    >>> f"{waiting:.0%} of a step waits for data"
    '96% of a step waits for data'
    """

    status: str
    exit_code: int | None
    clock: str | None
    steps: int
    warmup_steps: int
    measured_steps: int
    measured_seconds: float | None
    samples: int | None
    samples_per_second: float | None
    tokens_per_second: float | None
    batch_size: float | None
    step_time_ms: StepTime | None
    epoch_seconds: float | None
    split: StepSplit | None
    peak_memory_bytes: int | None
    peak_reserved_bytes: int | None
    allocator_retries: int | None
    host: HostUse | None
    devices: tuple[DeviceUse, ...]
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    energy_joules: float | None
    joules_per_sample: float | None
    seconds_to_first_step: float | None
    wall_seconds: float
    final_loss: float | None
    knobs: tuple[KnobOutcome, ...] = ()
    hook_errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ranks: int = 1
    command: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    seconds_to_torch: float | None = None
    """From python's start until torch was imported: part of `seconds_to_first_step`."""
    startup_seconds: float | None = None
    """From python's start to the steady pace: what the warm-up steps took beyond it included."""
    attempts: tuple[Attempt, ...] = ()
    """Each start of this node's ranks; empty where no agent started any."""
    cores_lost_percent: float | None = None
    core_wait_percent: float | None = None
    """Percent of the time in which the training could compute that it waited for a core instead."""
    """The share of the measured time of a trial in which the training was ready to run, but other
    programs or other virtual machines had its cores. None: not a trial, or nobody counts."""
    flops_per_step: int | None = None
    """Floating-point operations of matrix products, convolutions and attention in one step, of all
    ranks together, counted once; recomputed activations are left out. None where not countable."""
    flops_per_second: float | None = None
    """These by the measured mean step."""
    mfu: float | None = None
    """Model FLOPs utilisation: `flops_per_second` as a fraction (0 to 1) of the devices' peak for
    half precision on tensor cores. None where that peak is not known, as of processors."""
    memory_share: float | None = None
    """Peak memory as a fraction of the device's (0 to 1): reserved by torch on a GPU. On the CPU it
    is the process tree's, as a fraction of the memory that it may use."""
    checkpoint_saves: int | None = None
    """Calls of `torch.save`, of the rank that spent most time in them."""
    checkpoint_seconds: float | None = None
    topology: Topology | None = None
    """The links between the machine's devices; None for one process, where they were not looked
    up."""
    nonfinite_loss: NonfiniteLoss | None = None
    """None if every loss that was looked at was finite, or none was seen."""
    throughput_drift: ThroughputDrift | None = None
    """Of the slowest process; None if there was none, and of runs of less than a minute."""
    memory_growth: MemoryGrowth | None = None
    """None if none grew, and of runs of less than a minute."""
    epoch_pace: EpochPace | None = None
    """None where the first epoch is like later ones, or no later one was seen."""
    emergency_checkpoint: str | None = None
    """Name of the file in the run folder; None if none was asked for, needed or possible."""
    schema: str = RESULT_SCHEMA


def status_of(exit_code: int | None) -> str:
    """The status of a launch that ended with this code (128+n, or -n, for signal n).

    A script may exit with 129 to 192 by itself, too; a shell cannot tell either.
    """
    if exit_code is None:
        return "crashed"
    if exit_code == 0:
        return "completed"
    by_signal = exit_code < 0 or 128 < exit_code < 128 + signal.NSIG
    return "killed" if by_signal else "failed"
