"""Floating-point operations of a step, and which part of its device's peak they reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpurun.measure.measured_window import Window
from gpurun.measure.optional_figures import known
from gpurun.records.events import RootEvent

TERA = 1e12
PEAKS = (
    ("B300", 2250.0), ("B200", 2250.0), ("GB200", 2500.0), ("GH200", 989.4), ("H200 NVL", 835.0),
    ("H200", 989.4), ("H20", 148.0), ("H100 NVL", 835.0), ("H100 PCIe", 756.5), ("H100", 989.4),
    ("H800 PCIe", 756.5), ("H800", 989.4), ("A100", 312.0), ("A800", 312.0), ("A30", 165.0),
    ("A40", 149.7), ("A10G", 70.0), ("A10", 125.0), ("L40S", 362.0), ("L40", 181.0), ("L4", 121.0),
    ("V100", 125.0), ("T4", 65.0), ("RTX 6000 Ada", 364.2), ("RTX A6000", 154.8),
    ("RTX 5090", 209.5), ("RTX 4090", 165.2), ("RTX 3090", 71.0),
)  # fmt: skip
"""By a part of the device's name, the peak of dense half-precision products on tensor cores with
32-bit sums, in TFLOP/s, from NVIDIA's data sheets. The first that fits counts."""
SLICE = "MIG"
"""In the name of a part of a GPU, whose peak is not known."""


def peak_flops_per_second(device: str | None) -> float | None:
    """The peak of a device by its name; None where it is not known, as of processors."""
    if device is None or SLICE in device:
        return None
    words = f"{device.replace('-', ' ')} "
    return next((peak * TERA for name, peak in PEAKS if f" {name} " in f" {words}"), None)


def compute_figures(group: Sequence[Window], devices: int) -> dict[str, Any]:
    """Operations a step of all ranks, a second, and as a fraction of the devices' peak.

    `devices`: how many were seen in use, 0 if nobody looked.
    """
    counts = [_flops(window) for window in group]
    flops = sum(known(counts)) if counts and None not in counts else None
    seconds = max(((w.seconds or 0.0) / max(w.measured_steps, 1) for w in group), default=0.0)
    rate = flops / seconds if flops is not None and seconds else None
    peaks = [peak_flops_per_second(_device_name(window)) for window in group]
    peak = None
    if peaks and None not in peaks:  # ranks may share a device
        peak = sum(known(peaks)) * min(devices or len(peaks), len(peaks)) / len(peaks)
    return {
        "flops_per_step": flops,
        "flops_per_second": rate,
        "mfu": rate / peak if rate is not None and peak else None,
    }


def _flops(window: Window) -> int | None:
    """Of the step that was counted by the clock that counts steps."""
    kind = window.clock.kind
    return next((e.flops for e in reversed(window.log.flops) if e.step_clock == kind), None)


def _device_name(window: Window) -> str | None:
    roots: Sequence[RootEvent] = window.log.roots
    names = {root.device_name for root in roots}
    return names.pop() if len(names) == 1 else None
