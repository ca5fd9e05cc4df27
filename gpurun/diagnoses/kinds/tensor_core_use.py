"""Multiplications that could run on tensor cores and do not."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.replay.what_ifs import PEAK_RATIOS, Change

ADVICE = (
    "autocast to bfloat16: torch.autocast('cuda', dtype=torch.bfloat16) around the forward pass",
    "allow TF32: torch.set_float32_matmul_precision('high'); the same code, other rounding",
)
UNUSED, WORKING = 0.05, 0.30
"""Tensor and SM activity that tell without a timeline: the one below, the other above."""
MULTIPLIES = ("Linear", "Conv1d", "Conv2d", "Conv3d", "MultiheadAttention", "LSTM", "GRU")


class TensorCoreUse(Diagnosis):
    """Matrix products, convolutions or attention run outside tensor cores.

    Replayed with such kernels at the ratio of the device's peaks: a roofline. Without a replay, the
    bound is the same roofline.
    Without a timeline, tensor activity near zero on a busy device is a warning without a bound.
    """

    type: ClassVar[FindingType] = FindingType.PRECISION
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE, Source.ACTIVITY)

    def find(self, evidence: Evidence) -> Finding | None:
        """The share of the step outside tensor cores, with its roofline."""
        capability = _capability(evidence)
        if capability is not None and capability < (7, 0):
            return None  # there are no tensor cores
        precision = evidence.figures.precision
        if precision is None:
            return self._by_activity(evidence)
        share = precision.outside_share_of_window
        ratio = None if capability is None else PEAK_RATIOS.get(capability)
        products = share * (1 - 1 / (ratio or min(PEAK_RATIOS.values())))
        return self.finding(
            evidence,
            gain_severity(gain_without(products) or 1.0),
            f"matrix products and convolutions outside tensor cores take {percent(share)} of the "
            "step",
            [
                figure("outside_tensor_cores_share", share, Source.TIMELINE),
                figure("tensor_core_share", precision.tensor_core_share, Source.TIMELINE),
                figure("peak_ratio", ratio, Source.TIMELINE),
            ],
            ADVICE,
            knob="autocast",
            replayed=evidence.replayed_gain(Change.PRECISION),
            bound=None if ratio is None else gain_without(products),
        )

    def _by_activity(self, evidence: Evidence) -> Finding | None:
        tensor, activity = evidence.activity("tensor_activity_percent"), evidence.sm_activity
        multiplies = any(
            kind in root.module_types for root in evidence.roots for kind in MULTIPLIES
        )
        if tensor is None or activity is None or not multiplies:
            return None
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
