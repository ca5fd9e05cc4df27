"""Settings of a training that no sound change touches: equal, or not the same.

Each place is compared by itself, so that what repeats of the script differ in (a schedule that
follows the loss) leaves the others compared.
"""

from __future__ import annotations

from bisect import bisect_right
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
            known, was = _mathematics(a), _mathematics(b)
            for key in sorted(known.keys() & was.keys()):
                if known[key] != was[key]:
                    return (
                        f"the optimizer's {key} is {a[key]} instead of {b[key]} "
                        f"(group {number}, step {mine.step})"
                    )
    return None


def _groups(audit: AuditEvent) -> Counter[str]:
    return Counter(repr(sorted(_mathematics(g).items())) for g in audit.hyperparameters)


def _mathematics(group: Mapping[str, object]) -> dict[str, str]:
    return {
        key: f"{value:.5g}" if isinstance(value, (int, float)) else str(value)
        for key, value in group.items()
        if key not in IMPLEMENTATION_KEYS
    }


def _rates(ours: LaunchAudit, theirs: LaunchAudit) -> str | None:
    """The learning rates of all steps that both launches took, whatever the order of groups."""
    if not ours.rates or not theirs.rates:
        return None
    for step in range(1, min(len(ours.losses), len(theirs.losses)) + 1):
        mine, other = _rate_in(ours, step), _rate_in(theirs, step)
        if mine != other:
            return f"the learning rate is {mine} instead of {other} in step {step}"
    return None


def _rate_in(launch: LaunchAudit, step: int) -> str:
    changed = bisect_right(launch.rates, step, key=lambda change: change[0]) - 1
    rates = launch.rates[changed][1] if changed >= 0 else ()
    return ", ".join(sorted("?" if rate is None else f"{rate:.5g}" for rate in rates))


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
