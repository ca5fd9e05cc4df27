"""Samples that reach the model: content by index, order, what it is fed.

A sample is known by a checksum for each leaf of its batch (image, label, ...), one of a stream by
its position. In audited steps it draws its random numbers by its index
(`gpurun.runtime.trial.sample_seeds`), so it must be equal. So must further passes over these
samples (`sample_passes`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from gpurun.formatting.number_text import count
from gpurun.records.events import SamplesEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Distance, Distances, Name, exact, relative
from gpurun.same.sameness_table import FEW, Kind
from gpurun.stats.descriptive import root_mean_square


def sample_distances(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Contents, order, and what the model is fed."""
    return {
        **_contents(ours, theirs),
        **_order(ours, theirs),
        **_shuffles(ours, theirs),
        **_inputs(ours, theirs),
    }


def drawn_later(ours: LaunchAudit, theirs: LaunchAudit) -> bool:
    """True if samples after the audited steps draw other random numbers than the other launch's.

    Samples of workers draw from streams of their own. Where a batch more was seeded by its index,
    the script's own stream is a batch behind.
    """
    if not any(event.drawn for event in (*ours.samples, *theirs.samples)):
        return False
    one, other = (
        max((event.seeded_batches for event in launch.samples), default=0)
        for launch in (ours, theirs)
    )
    return one != other or other_workers(ours, theirs)


def other_workers(ours: LaunchAudit, theirs: LaunchAudit) -> bool:
    """True if other processes load the samples of a loader that both have."""
    known = {x.loader: (x.workers, x.persistent_workers) for x in theirs.loaders}
    mine = {x.loader: (x.workers, x.persistent_workers) for x in ours.loaders}
    return any(known.get(loader, workers) != workers for loader, workers in mine.items())


def _contents(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """By leaf: the part of the samples whose content is another one than under the same index."""
    differing: dict[str, list[bool]] = defaultdict(list)
    for place, differs in _same_samples(ours, theirs):
        differing[place].append(differs)
    found: Distances = {}
    for place, wrong in differing.items():
        said = f"{sum(wrong)} of {len(wrong)} samples have another content than in the baseline"
        found[Name(Kind.SAMPLES, place)] = Distance(relative(sum(wrong), len(wrong)), said)
    if other_workers(ours, theirs) and theirs.again:
        lost = None if ours.again else "workers hand out no samples"
        found |= exact(Kind.SAMPLES, "loaded at all", lost)
    return found


def _same_samples(ours: LaunchAudit, theirs: LaunchAudit) -> Iterator[tuple[str, bool]]:
    """Of each leaf of samples that both launches show: where it is, and does its content differ?"""
    for mine, other in _passes(ours, theirs):
        if not _same_start(mine, other):  # padding depends on the other samples of a batch
            continue
        for index in mine.checksums.keys() & other.checksums.keys():
            one, same = mine.checksums[index], other.checksums[index]
            if len(one) == len(same):
                for part, (a, b) in enumerate(zip(one, same, strict=True), 1):
                    yield f"loader {mine.loader}, part {part}", a != b
    for loader in ours.again.keys() & theirs.again.keys() if other_workers(ours, theirs) else ():
        for one, same in zip(ours.again[loader], theirs.again[loader], strict=False):
            if one[:1] == same[:1]:  # not in batches of another size
                for a, b in zip(one[1:], same[1:], strict=False):
                    yield f"loader {loader}, loaded again", a != b


def _same_start(a: SamplesEvent, b: SamplesEvent) -> bool:
    common = min(len(a.order), len(b.order))
    return a.order[:common] == b.order[:common]


def _order(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """The first pass hands out the same indices in the same order; whole passes are as long.

    A pass that was followed by another is a whole one; the other launch may have ended in it.
    """
    found: Distances = {}
    for mine, other in _passes(ours, theirs):
        whole = any(s.loader == mine.loader and s.epoch > mine.epoch for s in ours.samples)
        short = whole and len(mine.order) < len(other.order)
        handed = f"{count(len(mine.order), 'sample')} instead of {len(other.order)}"
        lost = f"a pass over the data hands out {handed}" if short else None
        found |= exact(Kind.ORDER, f"length of pass {mine.epoch}", lost)
    first = [pair for pair in _passes(ours, theirs) if pair[0].epoch == 1]
    if first:
        alike = _same_start(*min(first, key=lambda pair: pair[0].loader))
        said = "other samples are drawn, or in another order, than in the baseline"
        found |= exact(Kind.ORDER, "first pass", None if alike else said)
    return found


def _passes(ours: LaunchAudit, theirs: LaunchAudit) -> Iterator[tuple[SamplesEvent, SamplesEvent]]:
    known = {(s.loader, s.epoch): s for s in theirs.samples}
    for mine in ours.samples:
        other = known.get((mine.loader, mine.epoch))
        if other is not None:
            yield mine, other


def _shuffles(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Later passes may be shuffled otherwise (workers draw elsewhere), but as well."""
    found: Distances = {}
    for loader in dict.fromkeys(event.loader for event in ours.samples):
        mine, other = (
            [s for s in launch.samples if s.loader == loader and len(s.order) >= FEW]
            for launch in (ours, theirs)
        )
        for said, measured in _ORDERS.items() if mine and other else ():
            value = max(0.0, measured(mine) - measured(other))
            found[Name(Kind.SHUFFLES, f"loader {loader}: {said}")] = Distance(value, said)
    return found


def _repeated(passes: Sequence[SamplesEvent]) -> float:
    """The part of the samples that came before in their pass; the most of any pass."""
    return max(1 - len(set(event.order)) / len(event.order) for event in passes)


def _neighbours(passes: Sequence[SamplesEvent]) -> float:
    """The part of the samples that follow the one before them in the data set."""
    return max(
        sum(b - a == 1 for a, b in pairwise(event.order)) / (len(event.order) - 1)
        for event in passes
    )


def _stale(passes: Sequence[SamplesEvent]) -> float:
    return float(any(_same_start(a, b) for a, b in pairwise(passes)))


_ORDERS = {
    "a sample is drawn several times in one pass": _repeated,
    "the samples are no longer shuffled": _neighbours,
    "every pass over the data has the same order": _stale,
}


def _inputs(ours: LaunchAudit, theirs: LaunchAudit) -> Distances:
    """Some values of the first tensor that the model is given, in each audited step."""
    worst, step = 0.0, 0
    for mine, other in zip(ours.audits, theirs.audits, strict=False):
        if len(mine.input_values) == len(other.input_values) > 0:
            pairs = zip(mine.input_values, other.input_values, strict=True)
            apart = root_mean_square([a - b for a, b in pairs])
            apart = relative(apart, root_mean_square(other.input_values))
            apart = math.inf if math.isnan(apart) else apart
            worst, step = max((worst, step), (apart, mine.step), key=lambda at: at[0])
    said = f"the model is fed other tensors in step {step} (off by {worst:.1%})"
    return {Name(Kind.INPUTS): Distance(worst, said)} if ours.audits and theirs.audits else {}
