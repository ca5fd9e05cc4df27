"""Diagnoses: each file of this folder that defines one is found by walking it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import cast

from gpurun.diagnoses.api import Diagnosis, DiagnosisBase
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.finding import Finding


@cache
def all_diagnoses() -> tuple[Diagnosis, ...]:
    """Every diagnosis of this folder, in the order of the finding types."""
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    found = [_diagnosis_of(importlib.import_module(module.name)) for module in modules]
    known = [diagnosis for diagnosis in found if diagnosis is not None]
    order = list(type(known[0].type)) if known else []
    return tuple(sorted(known, key=lambda diagnosis: order.index(diagnosis.type)))


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """All findings, the most severe first; of equal ones that with the larger bound."""
    found = [finding for d in all_diagnoses() if (finding := d.find(evidence)) is not None]
    return tuple(sorted(found, key=lambda f: (-f.severity, -(f.gain_upper_bound or 1.0))))


def _diagnosis_of(module: ModuleType) -> Diagnosis | None:
    """An instance of the one diagnosis that the module itself defines, if it defines one."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, DiagnosisBase):
            if value is not DiagnosisBase and value.__module__ == module.__name__:
                return cast(Diagnosis, value())
    return None
