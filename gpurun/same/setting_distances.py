"""Settings of a training that no sound change touches: equal, or not the same.

Each place is compared by itself, so that what repeats of the script differ in (a schedule that
follows the loss) leaves the others compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping

from gpurun.records.events import AuditEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Distances, exact
from gpurun.same.sameness_table import Kind

IMPLEMENTATION_KEYS = frozenset({"fused", "foreach", "capturable", "differentiable", "initial_lr"})
"""Optimizer settings that choose kernels, not mathematics."""
PLACES = (
    "optimizers", "hyperparameters", "learning rates", "backward passes", "modules", "loaders",
    "draws",
)  # fmt: skip

Settings = Iterator[tuple[str, str, object, object]]
"""The place, what is set, our value, the other one."""


def setting_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """By place: the first setting that is another one."""
    said: dict[str, str] = {}
    for place, what, a, b in (*_of_steps(ours, theirs), *_of_launches(ours, theirs)):
        if a != b:
            said.setdefault(place, f"{what} is {a} instead of {b}")
    found: Distances = {}
    for place in PLACES:
        found |= exact(Kind.SETTINGS, place, said.get(place))
    return found


def _of_steps(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    """Learning rates, decay, momentum and the like, by group, whatever the order of groups.

    Settings and mode of each module whose class is still the same (a knob may replace some).
    """
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        for a, b in zip(_groups(mine), _groups(other), strict=False):
            for key in sorted(a.keys() & b.keys()):
                what = f"in step {mine.step} the optimizer's {key}"
                yield "hyperparameters", what, a[key], b[key]
        for name, was in other.modules.items():
            now = mine.modules.get(name, was)
            if now.split("(")[0] == was.split("(")[0]:
                yield "modules", f"module {name}", now, was
    both = min(len(ours.losses), len(theirs.losses)) if ours.rates and theirs.rates else 0
    for step in sorted({step for step, _ in (*ours.rates, *theirs.rates) if step <= both}):
        rates = _rate_in(ours, step), _rate_in(theirs, step)
        yield "learning rates", f"in step {step} the learning rate", *rates
    for step, passes in enumerate(zip(ours.microbatches, theirs.microbatches, strict=False), 1):
        what = f"before optimizer step {step} the number of backward passes"
        yield "backward passes", what, *passes  # a skipped step leaves two in one


def _of_launches(ours: LaunchAudit, theirs: LaunchAudit) -> Settings:
    for mine, other in zip(ours.optimizers, theirs.optimizers, strict=False):
        yield "optimizers", "the optimizer", mine.class_name, other.class_name
        what = "the number of optimized parameters"
        yield "optimizers", what, mine.parameters, other.parameters
    known = {x.loader: x for x in theirs.loaders}
    for one in ours.loaders:
        twin = known.get(one.loader, one)
        for what, a, b in (
            ("the number of samples in the data set", one.dataset_length, twin.dataset_length),
            ("the number of batches", one.length, twin.length),
            ("the batch size", one.batch_size, twin.batch_size),
        ):
            if a is not None and b is not None:
                yield "loaders", what, a, b
    if theirs.draws and ours.audits:  # a model that draws random numbers must go on drawing them
        yield "draws", "dropout", "on" if ours.draws else "off", "on"


def _groups(audit: AuditEvent) -> list[Mapping[str, str]]:
    groups = [
        {key: _shown(value) for key, value in group.items() if key not in IMPLEMENTATION_KEYS}
        for group in audit.hyperparameters
    ]
    return sorted(groups, key=lambda group: repr(sorted(group.items())))


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) else str(value)


def _rate_in(launch: LaunchAudit, step: int) -> str:
    """The rates of all groups, whatever their order."""
    changed = bisect_right(launch.rates, step, key=lambda change: change[0]) - 1
    rates = launch.rates[changed][1] if changed >= 0 else ()
    return ", ".join(sorted("?" if rate is None else f"{rate:.5g}" for rate in rates))
