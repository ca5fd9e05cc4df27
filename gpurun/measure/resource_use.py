"""Devices and host over a span of time, from the launcher's `samples.jsonl`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpurun.measure.machine import available_cores, slow_governor
from gpurun.measure.optional_figures import known, mean
from gpurun.measure.run_events import ProcessLog, decode_lenient
from gpurun.records.codec import RecordError
from gpurun.records.parse_json import JsonLines
from gpurun.records.result import DeviceUse, HostUse
from gpurun.records.samples import DeviceSample, HostSample

ENERGY_SECONDS = 1.0
"""The energy counter moves about every 100 ms: shorter spans are not measured."""

CPU_SECONDS = 0.5
"""CPU time is counted in hundredths of a second, and a tree of processes takes time to list."""

OTHERS_SECONDS = 1.0
"""Others' CPU time is counted in hundredths of a second: shorter spans are not measured."""

SAMPLES_FILE = "samples.jsonl"


@dataclass(frozen=True)
class Samples:
    """All samples of a run, in the order of writing; `notes`: what could not be read."""

    host: tuple[HostSample, ...]
    device: tuple[DeviceSample, ...]
    notes: tuple[str, ...] = ()


def read_samples(run_dir: Path) -> Samples:
    """Read the samples of a run folder; none for a run that was never sampled."""
    path = run_dir / SAMPLES_FILE
    if not path.exists():
        return Samples((), ())
    host: list[HostSample] = []
    device: list[DeviceSample] = []
    lines = JsonLines(path)
    for document in lines:
        try:
            if document.get("event") == HostSample.kind:
                host.append(decode_lenient(HostSample, document))
            elif document.get("event") == DeviceSample.kind:
                device.append(decode_lenient(DeviceSample, document))
        except RecordError as error:
            lines.problem(f"a sample is unreadable ({error})")
    return Samples(tuple(host), tuple(device), tuple(lines.notes()))


def host_use(samples: Samples, bounds_ns: tuple[int, int] | None = None) -> HostUse | None:
    """The process tree over the whole run; None if it was never sampled.

    `bounds_ns`: the wall clock at both ends of the measured steps.
    """
    if not samples.host:
        return None
    begin, end = bounds_ns or (0, 0)
    steady = [s for s in samples.host if begin <= s.unix_time_ns <= end]
    return HostUse(
        cpu_percent=_cpu_percent(samples.host),
        cores_available=available_cores(),
        peak_rss_bytes=max(s.rss_bytes for s in samples.host),
        processes=max(s.processes for s in samples.host),
        others_cpu_percent=_others(samples.host),
        disk_read_bytes=max(known(s.read_bytes for s in samples.host), default=None),
        steady_cpu_percent=_cpu_percent(steady, CPU_SECONDS),
        slow_governor=slow_governor(),
    )


def _cpu_percent(samples: Sequence[HostSample], least_seconds: float = 0.0) -> float | None:
    """Percent of one core; None if the samples span no longer than the least time."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    seconds = (last.unix_time_ns - first.unix_time_ns) / 1e9
    if seconds <= least_seconds:
        return None
    return max(last.cpu_seconds - first.cpu_seconds, 0.0) / seconds * 100


def _others(samples: Sequence[HostSample]) -> float | None:
    told = [(s.unix_time_ns / 1e9, x) for s in samples if (x := s.others_cpu_seconds) is not None]
    if not told or told[-1][0] - told[0][0] < OTHERS_SECONDS:
        return None
    (begin, first), (end, last) = told[0], told[-1]
    return max(0.0, (last - first) / (end - begin) * 100)


def device_uses(samples: Samples, begin_ns: int, end_ns: int) -> list[tuple[int | None, DeviceUse]]:
    """Each sampled device between two wall-clock times, with its CUDA index (None: not certain)."""
    by_uuid: dict[str, list[DeviceSample]] = {}
    for sample in samples.device:
        if begin_ns <= sample.unix_time_ns <= end_ns:
            by_uuid.setdefault(sample.uuid, []).append(sample)
    return [(group[0].cuda_index, _device_use(group)) for group in by_uuid.values()]


def utilization_source(
    sm_activity: float | None, nvml: float | None, activity_source: str
) -> str | None:
    """The source of a GPU's utilisation: SM activity (of GPM or DCGM) if measured, else NVML.

    `activity_source` as in `DeviceSample`.
    """
    if sm_activity is not None:
        return f"{activity_source}_sm_activity"
    return None if nvml is None else "nvml"


def _device_use(group: Sequence[DeviceSample]) -> DeviceUse:
    first, last = group[0], group[-1]
    seconds = (last.unix_time_ns - first.unix_time_ns) / 1e9
    sm_activity = _activity(group, lambda s: s.sm_activity_percent)
    nvml = mean(s.utilization_percent for s in group)
    return DeviceUse(
        device=first.name,
        uuid=first.uuid,
        gpu_utilization_percent=nvml if sm_activity is None else sm_activity,
        gpu_utilization_source=utilization_source(sm_activity, nvml, last.activity_source),
        sm_activity_percent=sm_activity,
        tensor_activity_percent=_activity(group, lambda s: s.tensor_activity_percent),
        dram_activity_percent=_activity(group, lambda s: s.dram_activity_percent),
        graphics_activity_percent=_activity(group, lambda s: s.graphics_activity_percent),
        memory_used_bytes=max(known(s.memory_used_bytes for s in group), default=None),
        memory_total_bytes=last.memory_total_bytes,
        power_watts=mean(s.power_watts for s in group),
        energy_joules=_energy(first, last, seconds),
        temperature_celsius=max(known(s.temperature_celsius for s in group), default=None),
        sm_clock_mhz=mean(s.sm_clock_mhz for s in group),
        throttle_reasons=tuple(sorted({r for s in group for r in s.throttle_reasons})),
        foreign_processes=max(known(s.foreign_processes for s in group), default=None),
        window_seconds=seconds,
        refused=tuple(dict.fromkeys(figure for s in group for figure in s.refused)),
    )


def _energy(first: DeviceSample, last: DeviceSample, seconds: float) -> float | None:
    if first.energy_joules is None or last.energy_joules is None or seconds < ENERGY_SECONDS:
        return None
    return last.energy_joules - first.energy_joules


def _activity(
    group: Sequence[DeviceSample], figure: Callable[[DeviceSample], float | None]
) -> float | None:
    """Mean by time of a figure that covers the time since the sample before."""
    weighted = covered = 0.0
    for before, sample in pairwise(group):
        value = figure(sample)
        if value is not None:
            span = sample.unix_time_ns - before.unix_time_ns
            weighted += value * span
            covered += span
    return weighted / covered if covered else None


CPU_BUILD = "this torch is built without CUDA"
SILENT = "NVML reports nothing about the GPU"
REFUSED = "NVML does not report"


def cpu_build(gpu: str) -> str:
    """A note that the GPU stays idle because this torch is built without CUDA."""
    return f"{CPU_BUILD}: training runs on the CPU although there is a GPU ({gpu})"


def gpu_notes(
    logs: Sequence[ProcessLog], samples: Samples, devices: Iterable[DeviceUse]
) -> list[str]:
    """One note a shortcoming, for the processes that trained and the devices that they used."""
    notes = []
    builds = [log.torch.gpu_build for log in logs if log.torch is not None]
    on_gpu = any(log.on_gpu for log in logs)
    if samples.device and builds and all(build is False for build in builds):
        notes.append(cpu_build(samples.device[0].name))
    if on_gpu and samples.host and not samples.device:
        notes.append(
            f"{SILENT}: its use, its power and other processes on it are not measured; "
            "gpurun doctor says why"
        )
    refusals = {name: _refusal(figures) for name, figures in _refused(devices).items()}
    return [*notes, *(f"{REFUSED} all of {name}: {text}" for name, text in refusals.items())]


def is_about_gpus(note: str) -> bool:
    """True if a note of a run is one of these."""
    return note.startswith((CPU_BUILD, SILENT, REFUSED))


def _refused(devices: Iterable[DeviceUse]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for device in devices:
        if device.refused:
            found.setdefault(device.device, []).extend(device.refused)
    return found


def _refusal(figures: Iterable[str]) -> str:
    """Figures by reason: "utilisation, power (not supported)"."""
    by_reason: dict[str, dict[str, None]] = {}
    for figure in figures:
        name, _, reason = figure.partition(": ")
        by_reason.setdefault(reason, {})[name] = None
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
