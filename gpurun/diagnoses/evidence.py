"""Everything that a diagnosis may look at. None or empty: not measured."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gpurun.diagnoses.thresholds import Thresholds
from gpurun.measure.measured_window import Window
from gpurun.measure.optional_figures import known, mean
from gpurun.records.events import LoaderEvent, RootEvent, ValueRead
from gpurun.records.messages.profile_events import AllocatorState, FunctionSamples
from gpurun.records.profile_figures import IdleTime, ProfileFigures
from gpurun.records.result import DeviceUse, HostUse, RunResult, StepSplit
from gpurun.records.samples import DeviceSample, HostSample
from gpurun.replay.what_ifs import Change, Replay
from gpurun.timeline.model import KernelMetrics, Timeline


class Source(enum.Enum):
    """Where evidence comes from, as people know it."""

    STEPS = "step clock"
    CPU_USE = "CPU use"
    DEVICE = "NVML"
    ACTIVITY = "GPU activity counters"
    TIMELINE = "device timeline"
    HOST = "host profile"
    KERNELS = "Nsight Compute"
    TOPOLOGY = "topology"
    RANKS = "several ranks"
    OPERATORS = "operators of torch"


@dataclass(frozen=True)
class Evidence:
    """The evidence about one training.

    `figures` and `timeline` are those of rank `rank`; `rank_figures`, `rank_functions` and
    `rank_work_ms` every rank's; the work is that of a step outside backward pass and optimizer, in
    both halves of the run. `loaders` feed the training. `reads`: lines that hand values of tensors
    to the host, `read_steps`: the steps in which they were looked for; None: nobody looked.
    `traits`: what the script does by itself, by name. `window`: the measured steps of the first
    rank; samples are of the time in which all ranks are measured. `xids`: errors of the driver in
    the whole run, each after its GPU. `switches`: environment variables that slow it down.
    `threads`: torch's, inside operators. `source_lines`: texts of the lines that the host profile
    names, by file and line. `replay`: the rank's steps as a graph, None where its replay does not
    match the recording. `profiling_share`: of the profiled steps, what the profilers cost.
    `unprofiled`: on the CPU, the steps of a profiled run that tell the parts of a step; None: all
    measured ones. `worker_functions`: Python functions of the loader's worker processes.
    """

    result: RunResult | None = None
    figures: ProfileFigures = field(default_factory=ProfileFigures)
    timeline: Timeline | None = None
    rank: int | None = None
    rank_figures: tuple[ProfileFigures, ...] = ()
    rank_work_ms: tuple[tuple[float, ...], ...] = ()
    rank_functions: tuple[Sequence[FunctionSamples], ...] = ()
    window: Window | None = None
    host_samples: tuple[HostSample, ...] = ()
    device_samples: tuple[DeviceSample, ...] = ()
    xids: tuple[tuple[str, int], ...] = ()
    loaders: tuple[LoaderEvent, ...] = ()
    roots: tuple[RootEvent, ...] = ()
    reads: tuple[ValueRead, ...] | None = None
    read_steps: int | None = None
    traits: dict[str, str] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    threads: int | None = None
    profiling_share: float = 0.0
    unprofiled: Window | None = None
    worker_functions: tuple[FunctionSamples, ...] = ()
    source_lines: dict[tuple[str, int], str] = field(default_factory=dict)
    replay: Replay | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    @cached_property
    def sources(self) -> frozenset[Source]:
        """The sources that are there."""
        result, figures = self.result, self.figures
        there = {
            Source.STEPS: self.split is not None,
            Source.CPU_USE: self.cores_used is not None,
            Source.DEVICE: bool(self.devices),
            Source.ACTIVITY: self.sm_activity is not None,
            Source.TIMELINE: figures.idle is not None,
            Source.HOST: bool(self.host_functions),
            Source.KERNELS: any(kernel.is_measured for kernel in self.kernel_metrics),
            Source.TOPOLOGY: result is not None and result.topology is not None,
            Source.OPERATORS: figures.top_operators is not None,
            Source.RANKS: len(self.rank_figures) > 1 or len(self.rank_work_ms) > 1,
        }
        return frozenset(source for source, found in there.items() if found)

    def replayed_gain(self, change: Change) -> float | None:
        """The gain of a change in the replayed steps; None where no replay can tell."""
        return None if self.replay is None else self.replay.gain(change)

    @property
    def on_gpu(self) -> bool:
        """The model is on a GPU, or a recording of a GPU is all there is."""
        if self.roots:
            return any(root.device.startswith("cuda") for root in self.roots)
        return self.idle is not None

    def applied(self, knob: str) -> bool:
        """A setting of gpurun's that took effect."""
        knobs = () if self.result is None else self.result.knobs
        return any(k.knob == knob and k.outcome == "applied" for k in knobs)

    @property
    def ranks(self) -> int:
        """Ranks of the training."""
        return 1 if self.result is None else max(1, self.result.ranks)

    @property
    def idle(self) -> IdleTime | None:
        """The device's idle time by cause; None without a timeline of a device."""
        return self.figures.idle

    @property
    def split(self) -> StepSplit | None:
        """The parts of the mean step on the host's clock."""
        if self.unprofiled is not None:
            return self.unprofiled.split()
        return None if self.result is None else self.result.split

    @property
    def step_ms(self) -> float | None:
        """The mean step: of the whole run, else of the profiled window."""
        if self.unprofiled is not None and (time := self.unprofiled.step_time()) is not None:
            return time.mean
        if self.result is not None and self.result.step_time_ms is not None:
            return self.result.step_time_ms.mean
        return self.figures.step_ms

    def of_each_device(self) -> dict[str, list[DeviceSample]]:
        """The samples of each device, by its UUID."""
        found: dict[str, list[DeviceSample]] = defaultdict(list)
        for sample in self.device_samples:
            found[sample.uuid].append(sample)
        return found

    @property
    def devices(self) -> Sequence[DeviceUse]:
        """The devices that the training used."""
        return () if self.result is None else self.result.devices

    @property
    def host_functions(self) -> Sequence[FunctionSamples]:
        """Python functions of the stepping thread; empty where no host profile was taken."""
        return () if self.timeline is None else self.timeline.host_functions or ()

    @property
    def kernel_metrics(self) -> Sequence[KernelMetrics]:
        """Kernels that Nsight Compute measured."""
        return () if self.timeline is None else self.timeline.kernel_metrics or ()

    @property
    def memory(self) -> Sequence[AllocatorState]:
        """The caching allocator in the window, one a device."""
        return () if self.timeline is None else self.timeline.memory or ()

    @property
    def host(self) -> HostUse:
        """The script's use of the processor; its figures are None where nothing was measured."""
        told = None if self.result is None else self.result.host
        return told or HostUse(None, None, None, None)

    @property
    def cores_used(self) -> float | None:
        """Cores that the script's processes kept busy; None too where too few samples tell 0.

        In the measured steps where that is known: starts, and pauses of a live pair, do not count.
        """
        used = self.host.steady_cpu_percent or self.host.cpu_percent
        return used / 100 if used else None

    @property
    def workers(self) -> int | None:
        """Worker processes of the training loader; None without a loader."""
        return max((loader.workers for loader in self.loaders), default=None)

    @property
    def least_active_share(self) -> float | None:
        """The time in which the idlest device had work, as a fraction of the run's."""
        told = known(device.active_percent for device in self.devices)
        return min(told) / 100 if told else None

    @property
    def sm_activity(self) -> float | None:
        """SM activity over the run, a fraction; None where the device does not tell."""
        return self.activity("sm_activity_percent")

    def activity(self, counter: str) -> float | None:
        """The mean of a counter of the devices, which is in percent, as a fraction."""
        told = mean(getattr(device, counter) for device in self.devices)
        return None if told is None else told / 100

    @property
    def memory_used_share(self) -> float | None:
        """Device memory in use, of the device's; of the fullest device."""
        pairs = [(d.memory_used_bytes, d.memory_total_bytes) for d in self.devices]
        pairs += [(m.reserved_bytes or None, m.total_bytes) for m in self.memory]
        shares = (used / total for used, total in pairs if used is not None and total)
        return max(shares, default=None)

    @property
    def data_wait_share(self) -> float | None:
        """Wait for data as a share of the step: as far as the device idles, if a timeline tells."""
        if self.idle is not None and self.idle.data is not None:
            return self.idle.data
        parts, split = self.figures.step_parts, self.split
        told = (
            (None if split is None else split.data_wait_ms, self.step_ms),
            (None if parts is None else parts.data_ms, self.figures.step_ms),
        )
        return next((min(w / step, 1.0) for w, step in told if w is not None and step), None)
