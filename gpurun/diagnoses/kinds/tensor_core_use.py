"""Multiplications that could run on tensor cores and do not."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.kinds.memory_bandwidth import fusable_share
from gpurun.records.finding import WARNING, Finding, FindingType

ADVICE = (
    "autocast to bfloat16: torch.autocast('cuda', dtype=torch.bfloat16) around the forward pass",
    "allow TF32: torch.set_float32_matmul_precision('high'); the same code, other rounding",
)
PEAK_RATIOS = {
    (7, 0): 8.0, (7, 5): 8.0, (8, 0): 16.0, (8, 6): 4.0, (8, 7): 4.0, (8, 9): 4.0, (9, 0): 15.0,
    (10, 0): 30.0, (10, 3): 30.0, (12, 0): 4.0,
}  # fmt: skip
"""Peak of half precision on tensor cores over that of float32 outside them, by compute capability,
rounded up, from NVIDIA's data sheets (V100, T4, A100, A10, Orin, L40S, H100, B200, B300, RTX 5090).
No kernel gains more than this.
"""
UNUSED, WORKING = 0.05, 0.30
"""Tensor and SM activity that tell without a timeline: the one below, the other above."""
MULTIPLIES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention", "LSTM", "GRU")


class TensorCoreUse(Diagnosis):
    """Matrix products, convolutions or attention run outside tensor cores.

    Triggered by kernels of these kinds outside tensor cores that take more than 10 % of the step.
    The bound is a roofline: no such kernel gets faster than the ratio of the device's peaks, and
    kernels that move data take half their time at least.
    Without a timeline, tensor activity near zero on a busy device is a warning without a bound.
    """

    type: ClassVar[FindingType] = FindingType.PRECISION
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE, Source.ACTIVITY)
    thresholds: ClassVar[tuple[str, ...]] = ("outside_tensor_cores",)

    def find(self, evidence: Evidence) -> Finding | None:
        """The share of the step outside tensor cores, with its roofline."""
        capability = _capability(evidence)
        if capability is not None and capability < (7, 0):
            return None  # there are no tensor cores
        precision = None if evidence.figures is None else evidence.figures.precision
        if precision is None:
            return self._by_activity(evidence)
        share = precision.outside_share_of_window
        ratio = None if capability is None else PEAK_RATIOS.get(capability)
        halved = (fusable_share(evidence) or 0.0) / 2  # half as many bytes
        return self.finding(
            evidence,
            evidence.thresholds.severity("outside_tensor_cores", share),
            f"matrix products and convolutions outside tensor cores take {percent(share)} of the "
            "step",
            [
                figure("outside_tensor_cores_share", share, Source.TIMELINE),
                figure("tensor_core_share", precision.tensor_core_share, Source.TIMELINE),
                figure("peak_ratio", ratio, Source.TIMELINE),
            ],
            ADVICE,
            knob="autocast",
            gain=None if ratio is None else gain_without(share * (1 - 1 / ratio) + halved),
        )

    def _by_activity(self, evidence: Evidence) -> Finding | None:
        told = [d.tensor_activity_percent for d in evidence.devices]
        known = [value / 100 for value in told if value is not None]
        activity = evidence.sm_activity
        multiplies = any(
            kind in root.module_types for root in evidence.roots for kind in MULTIPLIES
        )
        if not known or activity is None or not multiplies:
            return None
        tensor = sum(known) / len(known)
        if tensor >= UNUSED or activity < WORKING:
            return None
        return self.finding(
            evidence,
            WARNING,
            f"tensor cores are active {percent(tensor)} of the time, SMs {percent(activity)}",
            [
                figure("tensor_activity", tensor, Source.ACTIVITY),
                figure("sm_activity", activity, Source.ACTIVITY),
            ],
            ADVICE,
            knob="autocast",
        )


def _capability(evidence: Evidence) -> tuple[int, int] | None:
    known = [r.compute_capability for r in evidence.roots if r.compute_capability is not None]
    if not known and evidence.timeline is not None:
        known = [d.capability for d in evidence.timeline.devices or () if d.capability is not None]
    return min(known, default=None)
