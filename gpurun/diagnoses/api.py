"""The parts of a diagnosis. A file of this folder defines one class of them, found by walking it.

The class docstring is the documentation: `scripts/generate_diagnoses.py` writes the table of the
guide from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import EvidenceFigure, Finding, FindingType, Location
from gpurun.timeline.model import KernelMetrics

NOTICEABLE = 0.2
"""Findings less severe than this are not made."""


class Diagnosis(ABC):
    """One kind of bottleneck: a pure function from the evidence to a finding or None.

    Where steps were replayed, the finding is a change of their graph, and its gain is the replayed
    one. `sources`: those that it can use, each of which makes it surer. `thresholds`: names in the
    table of thresholds that decide on it.
    """

    type: ClassVar[FindingType]
    sources: ClassVar[tuple[Source, ...]] = ()
    thresholds: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def find(self, evidence: Evidence) -> Finding | None:
        """The finding, None where the evidence shows no such bottleneck."""

    def missing(self, evidence: Evidence) -> tuple[str, ...]:
        """The sources that were not there and would say more."""
        return tuple(s.value for s in self.sources if s not in evidence.sources)

    def finding(
        self,
        evidence: Evidence,
        severity: float | None,
        description: str,
        figures: list[EvidenceFigure | None],
        recommendations: tuple[str, ...],
        *,
        location: Location | None = None,
        knob: str | None = None,
        replayed: float | None = None,
        bound: float | None = None,
    ) -> Finding | None:
        """The finding, None where it is not severe enough to be one.

        `replayed`: the gain by the replay, which decides; else `severity`, and where that is None
        `bound`, an upper bound of the gain.
        """
        if replayed is not None:
            severity, bound = gain_severity(replayed), None
        elif severity is None:
            severity = 0.0 if bound is None else gain_severity(bound)
        if severity < NOTICEABLE:
            return None
        return Finding(
            type=self.type,
            severity=round(severity, 3),
            description=description,
            evidence=tuple(figure for figure in figures if figure is not None),
            location=location,
            recommendations=recommendations,
            knob=knob,
            gain_upper_bound=None if bound is None else round(bound, 3),
            missing_sources=self.missing(evidence),
            replayed_gain=None if replayed is None else round(replayed, 3),
        )


def figure(name: str, value: float | int | str | None, source: Source) -> EvidenceFigure | None:
    """One figure of a finding; None where it was not measured."""
    if value is None:
        return None
    return EvidenceFigure(
        name, round(value, 4) if isinstance(value, float) else value, source.value
    )


def kernel_figures(kernel: KernelMetrics | None) -> list[EvidenceFigure | None]:
    """The kernel that a finding is about, as Nsight Compute measured it; none without one."""
    if kernel is None:
        return []
    return [
        figure("kernel", kernel.name, Source.KERNELS),
        figure("sm_percent", kernel.sm_percent, Source.KERNELS),
        figure("dram_percent", kernel.dram_percent, Source.KERNELS),
    ]


def roofline_gain(evidence: Evidence, kernel: KernelMetrics) -> float | None:
    """The replayed gain if the kernel reached the device's peak: that of its SMs or of its memory.

    None without a replay that shows the kernel, and where neither throughput was measured.
    """
    used = max(kernel.sm_percent or 0.0, kernel.dram_percent or 0.0) / 100
    if evidence.replay is None or not used:
        return None
    return evidence.replay.gain_of_kernel(kernel.name, min(used, 1.0))


def gain_without(share: float | None) -> float | None:
    """The factor of throughput if this share of the step were gone: step / (step - share)."""
    return None if share is None or not 0 <= share < 1 else 1 / (1 - share)


def gain_without_wait(share: float | None, evidence: Evidence) -> float | None:
    """The same of a wait that profiling does not lengthen, as it does the rest of a step.

    So it is a larger part of a step that is not profiled. At most half of the rest is taken for the
    work of the profilers: little is known of a rest that is nearly all theirs.
    """
    if share is None or not 0 <= share < 1:
        return None
    rest = max(1 - share - evidence.profiling_share, (1 - share) / 2)
    return (share + rest) / rest


def location_of(place: str | None) -> Location | None:
    """The location of "file:line" or of a loader's key "file:line#ordinal"."""
    if place is None:
        return None
    file, _, rest = place.partition("#")[0].rpartition(":")
    if not file or not rest.isdigit():
        return Location(place, None)
    return Location(file, int(rest))


def percent(share: float | None) -> str:
    """A share in a sentence: "43 %"; small ones with a digit more."""
    if share is None:
        return "an unknown part"
    return f"{share * 100:.0f} %" if share >= 0.095 else f"{share * 100:.1f} %"
