"""The figures of a profiled window, each None where no source measured it."""

from __future__ import annotations

from gpurun.records.record import record


@record
class StepParts:
    """Mean milliseconds a step by gpurun's own ranges on the host; None: no such range was seen."""

    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None


@record
class IdleTime:
    """Shares of the window in which the device had nothing to do, by cause.

    `data`: the script waited for its loader. `sync`: the host had waited for the device before and
    could not launch ahead. `launch`: the next kernel was on its way, launched too late by less than
    0.1 ms. `host`: the host did something else for longer than that. `other`: work was launched and
    did not run, as between dependent streams. `exchange`: ranks exchanged data on the host (gloo).
    None: no source tells host and device apart.
    """

    total: float
    data: float | None
    sync: float | None
    launch: float | None
    host: float | None
    other: float | None
    exchange: float | None = None


@record
class CopyShare:
    """All copies of one kind, on average a step. `kind`: "h2d", "d2h", "d2d", "memset", "other".

    `pageable`: the host's memory is not pinned; None where not told. Shares of the window;
    `exposed_share`: no kernel ran meanwhile.
    """

    kind: str
    pageable: bool | None
    share: float
    exposed_share: float
    calls_per_step: float | None
    bytes_per_step: float | None


@record
class LaunchFigures:
    """Kernels of the window. `queue_depth`: mean number of kernels that were launched and waited.

    `small_grid_share`: of the kernels' time, that of kernels with fewer blocks than the device has
    multiprocessors. `device_allocations_per_step`: calls of cudaMalloc and cudaFree.
    """

    kernels_per_step: float | None
    mean_kernel_us: float | None
    queue_depth: float | None
    small_grid_share: float | None
    device_allocations_per_step: float | None


@record
class KernelShare:
    """All launches of one kernel. `share`: of the window. `tensor_core`: None where not known."""

    name: str
    group: str
    share: float
    calls_per_step: float | None
    mean_us: float
    tensor_core: bool | None


@record
class KernelCounters:
    """What Nsight Compute measured of one kernel in one shape; None: not measured.

    Means over the `launches` that it looked at; percent of the device's peak.
    `warp_efficiency_percent`: threads active in a warp. `registers`: a thread.
    `shared_memory_bytes`: a block, static and dynamic.
    """

    name: str
    launches: int
    mean_us: float | None
    sm_percent: float | None
    dram_percent: float | None
    occupancy_percent: float | None
    warp_efficiency_percent: float | None
    registers: int | None
    shared_memory_bytes: int | None
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None


@record
class OperatorShare:
    """All calls of one operator on the host. `share`: of the window, inner operators left out.

    `shapes`: of its tensors, such as "[64, 3] [3, 10]", in calls of these alone; None where they
    were not recorded.
    """

    name: str
    group: str
    share: float
    calls_per_step: float | None
    shapes: str | None = None


@record
class SyncFigures:
    """Calls in which the host waits for the device. `share`: of the window, spent waiting;
    `outside_share`: outside the loader, the model's passes and the optimizer.
    """

    share: float
    per_step: float | None
    outside_share: float | None = None


@record
class PrecisionFigures:
    """Matrix multiplications, convolutions and attention. Shares of their kernels' time.

    `outside_share_of_window`: time of those outside tensor cores over the window.
    """

    tensor_core_share: float
    outside_share_of_window: float


@record
class CommunicationFigures:
    """Collectives on device and host. Shares of the window; `exposed_share`: no kernel ran
    meanwhile."""

    share: float
    exposed_share: float
    per_step: float | None
    bytes_per_step: float | None


@record
class ProfileFigures:
    """All figures of one rank's window of steady steps. `group_shares`: kernel time by kind."""

    steps: int | None = None
    step_ms: float | None = None
    kernel_share: float | None = None
    idle: IdleTime | None = None
    copies: tuple[CopyShare, ...] | None = None
    """Those that take longest first."""
    launches: LaunchFigures | None = None
    syncs: SyncFigures | None = None
    precision: PrecisionFigures | None = None
    communication: CommunicationFigures | None = None
    step_parts: StepParts | None = None
    group_shares: dict[str, float] | None = None
    top_kernels: tuple[KernelShare, ...] | None = None
    top_operators: tuple[OperatorShare, ...] | None = None
    kernel_counters: tuple[KernelCounters, ...] | None = None
    """The longest kernels that Nsight Compute looked at, longest first."""
    fusable_share: float | None = None
    """Of the window, the time of elementwise kernels, norms and reductions that fused ones would do
    in passing."""
    gpu_idle_time_ms: float | None = None
    """Of a mean step; `idle` has the causes."""
    sync_overhead_ms: float | None = None
    """That part of it which follows waits of the host for the device."""
    memory_transfer_concurrent: float | None = None
    """Of the time of copies between host and device, the share in which a kernel ran."""


@record
class PictureRow:
    """A row of the picture of a step. `busy_share`: of the step, in which anything of it ran.

    `spans`: [begin, end, what ran most, share of the span in which anything ran], in milliseconds
    from the step's begin.
    """

    name: str
    busy_share: float
    spans: tuple[tuple[float, float, str, float], ...]


@record
class StepPicture:
    """One step of median length: `step` is its number in the window, from 1."""

    step: int
    length_ms: float
    rows: tuple[PictureRow, ...]


@record
class ReplayFigures:
    """The profiled steps, recorded and replayed as they are. Milliseconds a step, means.

    `plain_step_ms`: the median step that was not profiled; `replayed_plain_ms`: the median replayed
    step without what recording adds to the host's calls. `measured_`: as recorded, `replayed_`: the
    graph of it, recording included. `wait`: the host waits for the device. `idle`: the device has
    nothing to do. `without_device`, `without_host`: the graph whose work there takes no time.
    `inferred_edges`: waits and events whose streams are not recorded. `mismatch`: why no gain is
    claimed; None where the replay matches.
    """

    steps: int | None = None
    plain_step_ms: float | None = None
    replayed_plain_ms: float | None = None
    measured_ms: float | None = None
    replayed_ms: float | None = None
    measured_wait_ms: float | None = None
    replayed_wait_ms: float | None = None
    measured_idle_ms: float | None = None
    replayed_idle_ms: float | None = None
    step_ms_without_device: float | None = None
    step_ms_without_host: float | None = None
    recording_us_a_call: float | None = None
    inferred_edges: int | None = None
    mismatch: str | None = None


@record
class WhatIf:
    """A change of the graph: the median step as replayed with it, recording left out.

    `gain`: `replayed_plain_ms` over it; None where the replay of the steps as they are does not
    match them.
    """

    change: str
    step_ms: float
    gain: float | None
