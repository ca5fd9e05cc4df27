"""Settings of a training that no sound change touches: equal, or not the same.

Each place is compared by itself, so that what repeats of the script differ in (a schedule that
follows the loss) leaves the others compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from gpurun.records.events import AuditEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distances, Kind, exact

IMPLEMENTATION_KEYS = frozenset({"fused", "foreach", "capturable", "differentiable", "initial_lr"})
"""Optimizer settings that choose kernels, not mathematics."""

Settings = Iterator[tuple[str, object, object]]
"""What is set, our value, the other one."""


def setting_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """By place: the first setting that is another one."""
    distances: Distances = {}
    for place, settings in _PLACES.items():
        others = ((what, a, b) for what, a, b in settings(ours, theirs) if a != b)
        said = next((f"{what} is {a} instead of {b}" for what, a, b in others), None)
        distances |= exact(Kind.SETTINGS, place, said)
    return distances


def _steps(ours: LaunchAudit, theirs: LaunchAudit) -> Iterator[tuple[AuditEvent, AuditEvent]]:
    return zip(ours.audits, theirs.audits, strict=False)


def _optimizers(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    for mine, other in zip(ours.optimizers, theirs.optimizers, strict=False):
        yield "the optimizer", mine.class_name, other.class_name
        yield "the number of optimized parameters", mine.parameters, other.parameters


def _hyperparameters(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """Learning rates, decay, momentum and the like, by group, whatever the order of groups."""
    for mine, other in _steps(ours, theirs):
        for a, b in zip(_groups(mine), _groups(other), strict=False):
            for key in sorted(a.keys() & b.keys()):
                yield f"in step {mine.step} the optimizer's {key}", a[key], b[key]


def _groups(audit: AuditEvent) -> list[Mapping[str, str]]:
    groups = [
        {key: _shown(value) for key, value in group.items() if key not in IMPLEMENTATION_KEYS}
        for group in audit.hyperparameters
    ]
    return sorted(groups, key=lambda group: repr(sorted(group.items())))


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) else str(value)


def _rates(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """The learning rates of all steps that both launches took, whatever the order of groups."""
    if ours.rates and theirs.rates:
        both = min(len(ours.losses), len(theirs.losses))
        for step in sorted({step for step, _ in (*ours.rates, *theirs.rates) if step <= both}):
            yield f"in step {step} the learning rate", _rate_in(ours, step), _rate_in(theirs, step)


def _rate_in(launch: LaunchAudit, step: int) -> str:
    changed = bisect_right(launch.rates, step, key=lambda change: change[0]) - 1
    rates = launch.rates[changed][1] if changed >= 0 else ()
    return ", ".join(sorted("?" if rate is None else f"{rate:.5g}" for rate in rates))


def _backward_passes(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """A skipped step leaves two in one."""
    for step, pair in enumerate(zip(ours.microbatches, theirs.microbatches, strict=False), 1):
        yield f"before optimizer step {step} the number of backward passes", *pair


def _modules(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """Settings and mode of each module whose class is still the same (a knob may replace some)."""
    for mine, other in _steps(ours, theirs):
        for name, was in other.modules.items():
            now = mine.modules.get(name, was)
            if now.split("(")[0] == was.split("(")[0]:
                yield f"module {name}", now, was


def _loaders(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    known = {x.loader: x for x in theirs.loaders}
    for mine in ours.loaders:
        other = known.get(mine.loader, mine)
        for what, a, b in (
            ("the number of samples in the data set", mine.dataset_length, other.dataset_length),
            ("the number of batches", mine.length, other.length),
            ("the batch size", mine.batch_size, other.batch_size),
        ):
            if a is not None and b is not None:
                yield what, a, b


def _draws(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """A model that draws random numbers must go on drawing them."""
    if theirs.draws and ours.audits:
        yield "dropout", "on" if ours.draws else "off", "on"


_PLACES = {
    "optimizers": _optimizers,
    "hyperparameters": _hyperparameters,
    "learning rates": _rates,
    "backward passes": _backward_passes,
    "modules": _modules,
    "loaders": _loaders,
    "draws": _draws,
}
