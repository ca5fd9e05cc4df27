"""Notes on figures that are missing because torch or the driver does not support the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpurun.measure.resource_use import Samples
from gpurun.measure.run_events import ProcessLog
from gpurun.records.result import DeviceUse

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
