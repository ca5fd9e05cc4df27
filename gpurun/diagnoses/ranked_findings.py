"""All findings of one run, ranked: the kinds of bottleneck are found by walking their folder."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache

import gpurun.diagnoses.kinds as folder
from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.finding import WARNING, Finding, FindingType

SYMPTOM = FindingType.KERNEL_EFFICIENCY
CAUSES = frozenset(
    {
        FindingType.SMALL_BATCH,
        FindingType.OCCUPANCY,
        FindingType.WARP_EFFICIENCY,
        FindingType.PRECISION,
        FindingType.MEMORY_BANDWIDTH,
    }
)


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
    """All findings, the most severe first; of equal ones that with the larger bound.

    Kernels that do not fill the device are a symptom: it comes after the cause, where one is found.
    """
    found = [finding for d in all_diagnoses() if (finding := d.find(evidence)) is not None]
    cause = max((f.severity for f in found if f.type in CAUSES), default=0.0)
    if cause >= WARNING:
        found = [
            replace(f, severity=min(f.severity, cause)) if f.type is SYMPTOM else f for f in found
        ]
    return tuple(
        sorted(found, key=lambda f: (-f.severity, f.type is SYMPTOM, -(f.gain_upper_bound or 1.0)))
    )
