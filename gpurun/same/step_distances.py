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
from gpurun.same.named_distance import Distance, Distances, Kind, Name, exact, relative
from gpurun.same.sameness_table import ENOUGH, FEW, FEW_VALUES, ROUNDING_NORM, TABLE
from gpurun.stats.descriptive import median

Norms = Mapping[str, "float | None"]


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
    return any(d.size > TABLE[n.kind].least for n, d in found.items() if math.isfinite(d.value))


def _first_loss(ours: AuditEvent, theirs: AuditEvent) -> Distances:
    if ours.loss is None or theirs.loss is None or not math.isfinite(theirs.loss):
        return {}
    said = f"the first loss is {ours.loss:.4g} instead of {theirs.loss:.4g}"
    apart = abs(ours.loss - theirs.loss)
    value = relative(apart, abs(theirs.loss)) if math.isfinite(apart) else math.inf
    return {Name(Kind.FIRST_LOSS): Distance(value, said)}


# -- directions ------------------------------------------------------------------------------------


def _directions(ours: AuditEvent, theirs: AuditEvent) -> Distances:
    """The length of the difference of two unit vectors: 0 the same, 1.41 unrelated, 2 reversed."""
    found = _direction("", ours.gradient_values, theirs.gradient_values)
    mine, other = gradients_by_name(ours), gradients_by_name(theirs)
    told = other.keys() - negligible(theirs.gradient_norms)
    both = sorted(mine.keys() & told)
    for name in both:
        if len(other[name]) >= FEW_VALUES:
            found |= _direction(name, mine[name], other[name])
    for child, names in by_child(both).items():
        ours_there, theirs_there = ([x for n in names for x in side[n]] for side in (mine, other))
        if len(names) > 1 and len(theirs_there) >= FEW:
            found |= _direction(child, ours_there, theirs_there)
    return found


def by_child(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of parameters by the child of the model that has them: their first two names."""
    children: dict[str, list[str]] = {}
    for name in names:
        children.setdefault(".".join(name.split(".")[:2]), []).append(name)
    return children


def _direction(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Distances:
    alike = cosine(ours, theirs)
    if alike is None:
        return {}
    whose = f"the gradients of {name}" if name else "the gradients"
    said = f"{whose} point elsewhere in step 1 (cosine {alike:.2f})"
    return {Name(Kind.DIRECTIONS, name): Distance(math.sqrt(max(0.0, 2 - 2 * alike)), said)}


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
    if len(a) != len(b) or not a:
        return None
    size = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    if not math.isfinite(size) or size == 0:
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / size


# -- sizes -----------------------------------------------------------------------------------------


def _gradients(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Every parameter gets its gradient, finite and of the usual size."""
    lost: Distances = {}
    steps = []
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        told = _told(other.gradient_norms)
        for name in told:
            norm = mine.gradient_norms.get(name)
            if name not in mine.gradient_norms:
                said = f"parameter {name} is no longer optimized"
            elif not norm:
                said = f"parameter {name} gets no gradient in step {mine.step}"
            elif math.isfinite(norm):
                continue
            else:
                said = f"the gradient of {name} is not finite in step {mine.step}"
            lost.setdefault(Name(Kind.GRADIENTS, name), Distance(math.inf, said))
        steps.append((mine.gradient_norms, told))
    return _sizes(Kind.GRADIENTS, "gradients", steps) | lost


def _updates(ours: LaunchAudit, theirs: LaunchAudit, rounds: bool) -> Distances:
    """Every parameter moves, and as far as it used to.

    A parameter whose true gradient is zero (a convolution's bias before a normalisation) says
    nothing: Adam makes whole steps of the rounding that is left of it. If something rounds, it may
    also swallow the least step that a type can hold.
    """
    silent = _silent(theirs)
    moving = {n for audit in ours.audits for n, d in audit.update_norms.items() if d}
    lost: Distances = {}
    steps = []
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        told = {n: d for n, d in _told(other.update_norms).items() if n not in silent}
        still = [n for n in told if not mine.update_norms.get(n, told[n])]
        swallowed = moving.intersection(other.updates_near_zero) if rounds else set()
        missed = {n: f"left parameter {n} as it was" for n in still if n not in swallowed}
        if told and len(still) == len(told):
            missed = {"": "changed no parameter", **missed}
        for name, said in missed.items():
            why = Distance(math.inf, f"step {mine.step} {said}")
            lost.setdefault(Name(Kind.UPDATES, name), why)
        steps.append((mine.update_norms, told))
    return _sizes(Kind.UPDATES, "updates", steps) | lost


def _silent(launch: LaunchAudit) -> set[str]:
    """The parameters whose gradient is next to nothing in every audited step."""
    small = [negligible(audit.gradient_norms) for audit in launch.audits]
    return set.intersection(*small) if small else set()


def negligible(norms: Norms) -> set[str]:
    """The names whose norm is zero, or made of rounding alone."""
    known = {n: x for n, x in norms.items() if x is not None and math.isfinite(x)}
    typical = median([x for x in known.values() if x > 0] or [0.0])
    return {n for n, x in known.items() if x <= ROUNDING_NORM * typical}


def _told(norms: Norms) -> dict[str, float]:
    but = negligible(norms)
    return {n: x for n, x in norms.items() if x is not None and math.isfinite(x) and n not in but}


def _sizes(kind: Kind, what: str, steps: Sequence[tuple[Norms, Mapping[str, float]]]) -> Distances:
    """The mean log ratio of all norms together, then of each parameter's, over the steps."""
    whole = [
        _log_ratio(_total({n: mine.get(n) for n in told}), _total(told)) for mine, told in steps
    ]
    found = _ratio(Name(kind), what, whole)
    for name in sorted({n for _, told in steps for n in told}):
        each = [_log_ratio(mine.get(name), told.get(name)) for mine, told in steps]
        found |= _ratio(Name(kind, name), f"{what} of {name}", each)
    return found


def _ratio(name: Name, what: str, ratios: Sequence[float | None]) -> Distances:
    known = [r for r in ratios if r is not None]
    if len(known) < ENOUGH:
        return {}
    mean = math.fsum(known) / len(known)
    said = f"{what} are {math.exp(mean):.2f} times the baseline's"
    return {name: Distance(abs(mean), said)}


def _total(norms: Norms) -> float:
    return math.sqrt(math.fsum((x or 0.0) ** 2 for x in norms.values()))


def _log_ratio(ours: float | None, theirs: float | None) -> float | None:
    if not ours or not theirs or not math.isfinite(ours) or not math.isfinite(theirs):
        return None
    return math.log(ours / theirs)


# -- what moves beside the optimizer ---------------------------------------------------------------


def _side_updates(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """EMA copies and statistics of normalisations go on changing, and as far as they used to."""
    mine, found = _moved(ours), Distances()
    for name, size in _moved(theirs).items():
        if size <= 0 or name not in mine:
            continue
        if not mine[name]:
            found |= exact(Kind.SIDE_UPDATES, name, f"{name} no longer follows the model")
            continue
        ratio = mine[name] / size
        said = f"{name} moves {ratio:.2g} times as far"
        found[Name(Kind.SIDE_UPDATES, name)] = Distance(abs(math.log(ratio)), said)
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
