"""All findings of one run, ranked: the kinds of bottleneck are found by walking their folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import gpurun.diagnoses.kinds as folder
from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.finding import WARNING, Finding, FindingType

SYMPTOMS = {
    FindingType.KERNEL_EFFICIENCY: {
        FindingType.SMALL_BATCH,
        FindingType.OCCUPANCY,
        FindingType.WARP_EFFICIENCY,
        FindingType.PRECISION,
        FindingType.MEMORY_BANDWIDTH,
    },
    FindingType.LAUNCH_BOUND: {FindingType.SMALL_BATCH},
}
"""Findings that come after the one of these that explains them: kernels that do not fill the
device, and kernels that are short because the batch is small."""


@cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every kind of bottleneck, in the order of the finding types."""
    for module in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
        importlib.import_module(module.name)
    order = list(FindingType)
    kinds = Diagnosis.__subclasses__()
    found = [kind() for kind in kinds if kind.__module__.startswith(folder.__name__)]
    return tuple(sorted(found, key=lambda diagnosis: order.index(diagnosis.type)))


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the most severe first; of equal ones that with the larger gain.

    Severity rises with the gain. A symptom without a gain is no more severe than its cause; one
    with a gain comes after a cause of its level.
    """
    found = {d.type: f for d in all_diagnoses() if (f := d.find(evidence)) is not None}
    explained = {}
    for kind in SYMPTOMS.keys() & found.keys():
        symptom, cause = found[kind], _cause(kind, found)
        if cause is not None and not _gain(symptom):
            found[kind] = symptom = replace(symptom, severity=min(symptom.severity, cause.severity))
        if cause is not None and cause.level == symptom.level:
            explained[kind] = min(symptom.severity, cause.severity)

    def order(finding: Finding) -> tuple[float, bool, float]:
        rank = explained.get(finding.type, finding.severity)
        return -rank, finding.type in explained, -_gain(finding)

    return tuple(sorted(found.values(), key=order))


def _cause(kind: FindingType, found: Mapping[FindingType, Finding]) -> Finding | None:
    """The most severe finding that explains this kind, if it is a warning at least."""
    causes = (found[each] for each in SYMPTOMS[kind] & found.keys())
    known = [cause for cause in causes if cause.severity >= WARNING]
    return max(known, key=lambda cause: cause.severity, default=None)


def _gain(finding: Finding) -> float:
    return finding.replayed_gain or finding.gain_upper_bound or 0.0
