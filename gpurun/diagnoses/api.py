"""The parts of a diagnosis. The files of `kinds/` define them, one function each.

The function's docstring is the documentation: `scripts/generate_diagnoses.py` writes the table of
the guide from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.records.finding import EvidenceFigure, Finding, FindingType, Location
from gpurun.replay.what_ifs import Change

NOTICEABLE = 0.2
"""Findings less severe than this are not made."""


@dataclass(frozen=True)
class Seen:
    """What a diagnosis saw.

    `{share}` in the description becomes `share`, the measured one; more if more goes with the gain,
    so that a sentence and its gain never contradict each other.
    `replayed`: the gain by the replay, if not that of the diagnosis' change, which decides; else
    `severity`, and where that is None `bound`, an upper bound of the gain.
    """

    description: str
    figures: Sequence[EvidenceFigure]
    recommendations: tuple[str, ...]
    severity: float | None = None
    location: Location | None = None
    knob: str | None = None
    replayed: float | None = None
    bound: float | None = None
    share: float | None = None


Look = Callable[[Evidence], Seen | None]


@dataclass(frozen=True)
class Diagnosis:
    """One kind of bottleneck. `look`: a pure function from the evidence to what it shows, or None.

    `change`: of the graph of the steps; its replayed gain is that of the finding. `sources`: those
    that it can use. `thresholds`: names in the table of thresholds that decide on it.
    """

    type: FindingType
    look: Look
    sources: tuple[Source, ...] = ()
    change: Change | None = None
    thresholds: tuple[str, ...] = ()

    @property
    def documentation(self) -> str:
        """A sentence, and the rest below an empty line."""
        return inspect.cleandoc(self.look.__doc__ or "")

    def find(self, evidence: Evidence) -> Finding | None:
        """The finding, None where the evidence shows no such bottleneck, or none worth a word."""
        seen = self.look(evidence)
        if seen is None:
            return None
        replayed, severity, bound = seen.replayed, seen.severity, seen.bound
        if replayed is None and self.change is not None:
            replayed = evidence.replayed_gain(self.change)
        if replayed is not None:
            severity, bound = gain_severity(replayed), None
        elif severity is None:
            severity = gain_severity(bound or 1.0)
        if severity < NOTICEABLE:
            return None
        gain = bound if replayed is None else replayed
        told = max((seen.share or 0.0, share_without(gain))) or seen.share
        return Finding(
            type=self.type,
            severity=round(severity, 3),
            description=seen.description.replace("{share}", percent(told)),
            evidence=tuple(seen.figures),
            location=seen.location,
            recommendations=seen.recommendations,
            knob=seen.knob,
            gain_upper_bound=None if bound is None else round(bound, 3),
            missing_sources=tuple(s.value for s in self.sources if s not in evidence.sources),
            replayed_gain=None if replayed is None else round(replayed, 3),
        )


KINDS: list[Diagnosis] = []
"""All that were defined so far."""


def diagnosis(
    kind: FindingType,
    *sources: Source,
    change: Change | None = None,
    thresholds: tuple[str, ...] = (),
) -> Callable[[Look], Look]:
    """Make a function a diagnosis."""

    def add(look: Look) -> Look:
        KINDS.append(Diagnosis(kind, look, sources, change, thresholds))
        return look

    return add


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


def gain_without(share: float | None, profiling_share: float = 0.0) -> float | None:
    """The factor of throughput if this share of the step were gone: step / (step - share).

    `profiling_share`: of the step, the work of profilers, which does not lengthen a wait. At most
    half of the rest is taken for it: little is known of a rest that is nearly all theirs.
    """
    if share is None or not 0 <= share < 1:
        return None
    rest = max(1 - share - profiling_share, (1 - share) / 2)
    return 1 + share / rest


def share_without(gain: float | None) -> float:
    """The share of the step that goes with this gain, the inverse of `gain_without`; 0 if none."""
    return 0.0 if gain is None or gain <= 1 else 1 - 1 / gain


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
