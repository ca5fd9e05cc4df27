"""The model is optimized in the same way: first loss, gradients, updates, what moves beside them.

Directions are compared in the first step, where parameters are equal. Sizes are means of log ratios
over the audited steps. All parameters together hide a mistake in some of them, so each parameter is
a place of its own, and for directions each child of the model (its first names).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from gpurun.records.events import BUFFERS, AuditEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Distance, Distances, Name, relative
from gpurun.same.sameness_table import ENOUGH, FEW, FEW_VALUES, ROUNDING_NORM, Kind
from gpurun.stats.descriptive import mean, median

Norms = Mapping[str, "float | None"]
Told = tuple[Norms, Mapping[str, float]]
"""Of a step: the norms of our launch, and those of the other one that tell something."""


def step_distances(ours: LaunchAudit, theirs: LaunchAudit, *, rounds: bool) -> Distances:
    """`rounds`: one of them may round otherwise."""
    if not ours.audits or not theirs.audits:
        return {}
    return {
        **_first_loss(ours.audits[0], theirs.audits[0]),
        **_directions(ours.audits[0], theirs.audits[0]),
        **_gradients(ours, theirs),
        **_updates(ours, theirs, rounds),
        **_side_updates(ours, theirs),
    }


def model_drawn_apart(ours: LaunchAudit, theirs: LaunchAudit, found: Distances) -> bool:
    """True if other random numbers of the model (dropout) may be why `found` is not the same.

    Only launches whose model draws none can tell then. What draws in those all the same is seeded
    alike, and is compared.
    """
    if ours.still or not theirs.draws:
        return False
    return any(d.size > n.kind.value.least for n, d in found.items() if math.isfinite(d.value))


def _first_loss(ours: AuditEvent, theirs: AuditEvent) -> Distances:
    if ours.loss is None or theirs.loss is None or not math.isfinite(theirs.loss):
        return {}
    said = f"the first loss is {ours.loss:.4g} instead of {theirs.loss:.4g}"
    apart = abs(ours.loss - theirs.loss)
    value = relative(apart, abs(theirs.loss)) if math.isfinite(apart) else math.inf
    return {Name(Kind.FIRST_LOSS): Distance(value, said)}


def _directions(ours: AuditEvent, theirs: AuditEvent) -> Distances:
    """The length of the difference of two unit vectors: 0 the same, 1.41 unrelated, 2 reversed."""
    mine, other = gradients_by_name(ours), gradients_by_name(theirs)
    both = sorted(mine.keys() & other.keys() - negligible(theirs.gradient_norms))
    found = {"": (ours.gradient_values, theirs.gradient_values)}
    children = {child: names for child, names in by_child(both).items() if len(names) > 1}
    for place, names in ({name: [name] for name in both} | children).items():
        values = [tuple(x for name in names for x in side[name]) for side in (mine, other)]
        if len(values[1]) >= (FEW if place in children else FEW_VALUES):
            found[place] = values[0], values[1]
    distances: Distances = {}
    for place, sides in found.items():
        alike = cosine(*sides)
        if alike is not None:
            whose = f"the gradients of {place}" if place else "the gradients"
            said = f"{whose} point elsewhere in step 1 (cosine {alike:.2f})"
            apart = math.sqrt(max(0.0, 2 - 2 * alike))
            distances[Name(Kind.DIRECTIONS, place)] = Distance(apart, said)
    return distances


def by_child(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of parameters by the child of the model that has them: their first two names."""
    children: dict[str, list[str]] = {}
    for name in names:
        children.setdefault(".".join(name.split(".")[:2]), []).append(name)
    return children


def gradients_by_name(audit: AuditEvent) -> dict[str, tuple[float, ...]]:
    """The sampled values of each parameter's gradient; empty where they cannot be told apart."""
    names = sorted(n for n, x in audit.gradient_norms.items() if x is not None)
    if len(names) != len(audit.gradient_counts):  # some are sparse
        return {}
    values = iter(audit.gradient_values)
    counts = zip(names, audit.gradient_counts, strict=True)
    return {name: tuple(islice(values, number)) for name, number in counts}


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    """The cosine of the angle between two lists of numbers; None if one is empty, or zero."""
    same = len(a) == len(b)
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b)) if same else 0.0
    if not size or not math.isfinite(size):
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size


def _gradients(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Every parameter gets its gradient, finite and of the usual size."""
    lost: dict[str, str] = {}
    steps = []
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        told = _told(other.gradient_norms)
        for name in told:
            norm = mine.gradient_norms.get(name)
            if name not in mine.gradient_norms:
                lost.setdefault(name, f"parameter {name} is no longer optimized")
            elif not norm:
                lost.setdefault(name, f"parameter {name} gets no gradient in step {mine.step}")
            elif not math.isfinite(norm):
                lost.setdefault(name, f"the gradient of {name} is not finite in step {mine.step}")
        steps.append((mine.gradient_norms, told))
    return _sizes(Kind.GRADIENTS, "gradients", steps, lost)


def _updates(ours: LaunchAudit, theirs: LaunchAudit, rounds: bool) -> Distances:
    """Every parameter moves, and as far as it used to.

    A parameter whose true gradient is zero (a convolution's bias before a normalisation) says
    nothing: Adam makes whole steps of the rounding that is left of it. If something rounds, it may
    also swallow the least step that a type can hold.
    """
    silent = set.intersection(*(negligible(audit.gradient_norms) for audit in theirs.audits))
    moving = {n for audit in ours.audits for n, d in audit.update_norms.items() if d}
    lost: dict[str, str] = {}
    steps = []
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        told = {n: d for n, d in _told(other.update_norms).items() if n not in silent}
        still = [n for n in told if not mine.update_norms.get(n, told[n])]
        swallowed = moving.intersection(other.updates_near_zero) if rounds else set()
        if told and len(still) == len(told):
            lost.setdefault("", f"step {mine.step} changed no parameter")
        for name in (n for n in still if n not in swallowed):
            lost.setdefault(name, f"step {mine.step} left parameter {name} as it was")
        steps.append((mine.update_norms, told))
    return _sizes(Kind.UPDATES, "updates", steps, lost)


def negligible(norms: Norms) -> set[str]:
    """The names whose norm is zero, or made of rounding alone."""
    known = {n: x for n, x in norms.items() if x is not None and math.isfinite(x)}
    typical = median([x for x in known.values() if x > 0] or [0.0])
    return {n for n, x in known.items() if x <= ROUNDING_NORM * typical}


def _told(norms: Norms) -> dict[str, float]:
    but = negligible(norms)
    return {n: x for n, x in norms.items() if x is not None and math.isfinite(x) and n not in but}


def _sizes(kind: Kind, what: str, steps: Sequence[Told], lost: Mapping[str, str]) -> Distances:
    """The mean log ratio of all norms together, then of each parameter's, over the steps.

    `lost`: why a parameter has none.
    """
    names = sorted({name for _, told in steps for name in told})
    found: Distances = {}
    for place, members in ({"": names} | {name: [name] for name in names}).items():
        ratios = []
        for mine, told in steps:
            seen = [name for name in members if name in told]
            ours = math.hypot(*(mine.get(name) or 0.0 for name in seen))
            theirs = math.hypot(*(told[name] for name in seen))
            if ours and theirs and math.isfinite(ours):
                ratios.append(math.log(ours / theirs))
        if len(ratios) >= ENOUGH:
            whose = f"{what} of {place}" if place else what
            said = f"{whose} are {math.exp(mean(ratios)):.2f} times the baseline's"
            found[Name(kind, place)] = Distance(abs(mean(ratios)), said)
    return found | {Name(kind, name): Distance(math.inf, said) for name, said in lost.items()}


def _side_updates(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """EMA copies and statistics of normalisations go on changing, and as far as they used to."""
    mine, found = _moved(ours), Distances()
    for name, size in _moved(theirs).items():
        if size > 0 and name in mine:
            ratio = mine[name] / size
            said = f"{name} moves {ratio:.2g} times as far"
            if not ratio:
                said = f"{name} no longer follows the model"
            apart = abs(math.log(ratio)) if ratio else math.inf
            found[Name(Kind.SIDE_UPDATES, name)] = Distance(apart, said)
    return found


def _moved(launch: LaunchAudit) -> dict[str, float]:
    """How far each moved in all audited steps.

    Copies of the model are numbered as they lie in memory, and another process finds them in
    another order. So they are numbered anew, the one that moved furthest first.
    """
    total: dict[str, float] = {}
    copies: dict[str, list[float]] = {}
    for audit in launch.audits:
        for name, size in audit.side_update_norms.items():
            total[name] = total.get(name, 0.0) + (size if math.isfinite(size) else 0.0)
    for name in [n for n in total if not n.startswith(BUFFERS)]:
        copies.setdefault(name.rpartition(" ")[0], []).append(total.pop(name))
    for kind, sizes in copies.items():
        total |= {f"{kind} {n}": size for n, size in enumerate(sorted(sizes, reverse=True))}
    return total
