"""The device runs below its clock, for heat or for power."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import WARNING, EvidenceFigure, Finding, FindingType
from gpurun.records.samples import POWER_CAP, DeviceSample

ADVICE_HEAT = (
    "check the cooling: temperature, fans and neighbours of this GPU (nvidia-smi -q -d "
    "TEMPERATURE,PERFORMANCE)",
    "move the job to another GPU and compare",
)
ADVICE_POWER = (
    "see whether the power limit was lowered: nvidia-smi -q -d POWER",
    "bfloat16 and fused kernels do the same work with less energy",
)


class Throttling(Diagnosis):
    """The clock of the device is held down.

    Triggered by thermal, hardware or power-brake slow-downs in more than 10 % of the samples, or by
    a clock that these hold 5 % below the highest seen. The power cap alone is usual under full load
    and a note.
    """

    type: ClassVar[FindingType] = FindingType.THROTTLING
    sources: ClassVar[tuple[Source, ...]] = (Source.DEVICE,)
    thresholds: ClassVar[tuple[str, ...]] = ("throttled_share", "clock_loss")

    def find(self, evidence: Evidence) -> Finding | None:
        """The device that is held down most; the bound is its highest clock throughout."""
        by_device: dict[str, list[DeviceSample]] = {}
        for sample in evidence.device_samples:
            by_device.setdefault(sample.uuid, []).append(sample)
        found = [self._of_device(evidence, samples) for samples in by_device.values()]
        known = [finding for finding in found if finding is not None]
        return max(known, key=lambda finding: finding.severity, default=None)

    def _of_device(self, evidence: Evidence, samples: Sequence[DeviceSample]) -> Finding | None:
        reasons = sorted({reason for sample in samples for reason in sample.throttle_reasons})
        hot = [s for s in samples if any(r != POWER_CAP for r in s.throttle_reasons)]
        held = [s for s in samples if s.throttle_reasons]
        share, loss = len(hot) / len(samples), _clock_loss(samples, held)
        rate = evidence.thresholds.severity
        severity = max(rate("throttled_share", share), rate("clock_loss", loss) if held else 0.0)
        severity = severity if hot else min(severity, WARNING / 2)
        temperatures = [s.temperature_celsius for s in samples if s.temperature_celsius is not None]
        return self.finding(
            evidence,
            severity,
            f"the GPU is slowed down by {' and '.join(reasons)} in "
            f"{percent(len(held) / len(samples))} of the samples",
            [
                figure("throttled_share", share, Source.DEVICE),
                figure("clock_loss", loss, Source.DEVICE),
                figure("temperature_celsius", max(temperatures, default=None), Source.DEVICE),
                *(EvidenceFigure("reason", reason, Source.DEVICE.value) for reason in reasons),
            ],
            ADVICE_HEAT if hot else ADVICE_POWER,
            bound=None if loss is None or loss >= 1 else 1 / (1 - loss),
        )


def _clock_loss(samples: Sequence[DeviceSample], held: Sequence[DeviceSample]) -> float | None:
    """By how much the mean clock while held down is below the highest that was seen."""
    highest = max((s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None), default=None)
    clocks = [s.sm_clock_mhz for s in held if s.sm_clock_mhz is not None]
    return 1 - sum(clocks) / len(clocks) / highest if highest and clocks else None
