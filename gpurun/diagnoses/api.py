"""The parts of a diagnosis. The files of `kinds/` define their classes, found by walking it.

The class docstring is the documentation: `scripts/generate_diagnoses.py` writes the table of the
guide from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import EvidenceFigure, Finding, FindingType, Location
from gpurun.replay.what_ifs import Change

NOTICEABLE = 0.2
"""Findings less severe than this are not made."""


class Diagnosis(ABC):
    """One kind of bottleneck: a pure function from the evidence to a finding or None.

    `change`: of the graph of the steps; where they were replayed, its gain is that of the finding.
    `sources`: those that it can use, each of which makes it surer. `thresholds`: names in the table
    of thresholds that decide on it.
    """

    type: ClassVar[FindingType]
    change: ClassVar[Change | None] = None
    sources: ClassVar[tuple[Source, ...]] = ()
    thresholds: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def find(self, evidence: Evidence) -> Finding | None:
        """The finding, None where the evidence shows no such bottleneck."""

    def finding(
        self,
        evidence: Evidence,
        description: str,
        figures: Sequence[EvidenceFigure],
        recommendations: tuple[str, ...],
        *,
        severity: float | None = None,
        location: Location | None = None,
        knob: str | None = None,
        replayed: float | None = None,
        bound: float | None = None,
    ) -> Finding | None:
        """The finding, None where it is not severe enough to be one.

        `replayed`: the gain by the replay, if not that of `change`, which decides; else `severity`,
        and where that is None `bound`, an upper bound of the gain.
        """
        if replayed is None and self.change is not None:
            replayed = evidence.replayed_gain(self.change)
        if replayed is not None:
            severity, bound = gain_severity(replayed), None
        elif severity is None:
            severity = gain_severity(bound or 1.0)
        if severity < NOTICEABLE:
            return None
        return Finding(
            type=self.type,
            severity=round(severity, 3),
            description=description,
            evidence=tuple(figures),
            location=location,
            recommendations=recommendations,
            knob=knob,
            gain_upper_bound=None if bound is None else round(bound, 3),
            missing_sources=tuple(s.value for s in self.sources if s not in evidence.sources),
            replayed_gain=None if replayed is None else round(replayed, 3),
        )


def measured(
    source: Source | str, **values: float | str | list[str] | tuple[str, ...] | None
) -> list[EvidenceFigure]:
    """The figures of a finding by their names, one for each of a list; without unmeasured ones."""
    told = source.value if isinstance(source, Source) else source
    return [
        EvidenceFigure(name, round(each, 4) if isinstance(each, float) else each, told)
        for name, value in values.items()
        for each in (value if isinstance(value, (list, tuple)) else [value])
        if each is not None
    ]


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
    return Location(file, int(rest)) if file and rest.isdigit() else Location(place, None)


def percent(share: float | None) -> str:
    """A share in a sentence: "43 %"; small ones with a digit more."""
    if share is None:
        return "an unknown part"
    return f"{share * 100:.0f} %" if share >= 0.095 else f"{share * 100:.1f} %"
