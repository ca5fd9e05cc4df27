"""Settings of a training that no sound change touches: equal, or not the same.

Each place is compared by itself, so that what repeats of the script differ in (a schedule that
follows the loss) leaves the others compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from gpurun.records.events import AuditEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distances, Kind, exact

IMPLEMENTATION_KEYS = frozenset({"fused", "foreach", "capturable", "differentiable", "initial_lr"})
"""Optimizer settings that choose kernels, not mathematics."""


def setting_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Optimizers, their settings, learning rates, backward passes, modules, loaders, dropout."""
    found = {
        "optimizers": _optimizers(ours, theirs),
        "hyperparameters": _hyperparameters(ours, theirs),
        "learning rates": _rates(ours, theirs),
        "backward passes": _microbatches(ours, theirs),
        "modules": _modules(ours, theirs),
        "loaders": _loaders(ours, theirs),
        "draws": _draws(ours, theirs),
    }
    distances: Distances = {}
    for place, reason in found.items():
        distances |= exact(Kind.SETTINGS, place, reason)
    return distances


def _steps(ours: LaunchAudit, theirs: LaunchAudit) -> list[tuple[AuditEvent, AuditEvent]]:
    return list(zip(ours.audits, theirs.audits, strict=False))


def _optimizers(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    for mine, other in zip(ours.optimizers, theirs.optimizers, strict=False):
        if mine.class_name != other.class_name:
            return f"the optimizer is {mine.class_name} instead of {other.class_name}"
        if mine.parameters != other.parameters:
            return f"{mine.parameters} parameters are optimized instead of {other.parameters}"
    return None


def _hyperparameters(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """Learning rates, decay, momentum and the like, by group, whatever the order of groups."""
    for mine, other in _steps(ours, theirs):
        if _groups(mine) == _groups(other):
            continue
        groups = zip(mine.hyperparameters, other.hyperparameters, strict=False)
        for number, (a, b) in enumerate(groups):
            for key in sorted((set(a) & set(b)) - IMPLEMENTATION_KEYS):
                if not _equal(a[key], b[key]):
                    return (
                        f"the optimizer's {key} is {a[key]} instead of {b[key]} "
                        f"(group {number}, step {mine.step})"
                    )
    return None


def _groups(audit: AuditEvent) -> Counter[str]:
    return Counter(repr(sorted(_mathematics(g).items())) for g in audit.hyperparameters)


def _mathematics(group: Mapping[str, object]) -> dict[str, str]:
    return {
        key: f"{value:.5g}" if isinstance(value, float) else str(value)
        for key, value in group.items()
        if key not in IMPLEMENTATION_KEYS
    }


def _equal(a: object, b: object) -> bool:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12)
    return a == b


def _rates(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """The learning rates of all steps that both launches took, whatever the order of groups."""
    if not ours.rates or not theirs.rates:
        return None
    steps = min(len(ours.losses), len(theirs.losses))
    pairs = zip(_by_step(ours, steps), _by_step(theirs, steps), strict=True)
    for step, (mine, other) in enumerate(pairs, 1):
        if mine != other:
            return f"the learning rate is {mine} instead of {other} in step {step}"
    return None


def _by_step(launch: LaunchAudit, steps: int) -> list[str]:
    changes = iter([*launch.rates, (steps + 1, ())])
    now, (first, following) = "", next(changes)
    found = []
    for step in range(1, steps + 1):
        while step >= first:
            now = ", ".join(sorted("?" if x is None else f"{x:.5g}" for x in following))
            first, following = next(changes)
        found.append(now)
    return found


def _microbatches(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """A skipped step leaves two backward passes in one."""
    pairs = zip(ours.microbatches, theirs.microbatches, strict=False)
    for step, (mine, other) in enumerate(pairs, 1):
        if mine != other:
            return f"{mine} backward passes instead of {other} before optimizer step {step}"
    return None


def _modules(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """Settings and mode of each module whose class is still the same (a knob may replace some)."""
    for mine, other in _steps(ours, theirs):
        for name, was in other.modules.items():
            now = mine.modules.get(name, was)
            if now != was and now.split("(")[0] == was.split("(")[0]:
                return f"module {name} is {now} instead of {was}"
    return None


def _loaders(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    known = {x.loader: x for x in theirs.loaders}
    for mine in ours.loaders:
        other = known.get(mine.loader)
        if other is None:
            continue
        for what, a, b in (
            ("number of samples in the data set", mine.dataset_length, other.dataset_length),
            ("number of batches", mine.length, other.length),
            ("batch size", mine.batch_size, other.batch_size),
        ):
            if a is not None and b is not None and a != b:
                return f"the {what} is {a} instead of {b}"
    return None


def _draws(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """A model that draws random numbers (dropout) must go on drawing them."""
    if theirs.draws and ours.audits and not any(a.draws for a in ours.audits):
        return "the model no longer draws random numbers (dropout)"
    return None
