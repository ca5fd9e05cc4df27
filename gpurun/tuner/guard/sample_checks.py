"""Do the same samples reach the model? The loss guard's checks on indices and contents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from gpurun.formatting.number_text import count
from gpurun.records.events import SamplesEvent
from gpurun.stats.two_samples import chance_of_larger, chance_of_more
from gpurun.tuner.guard.training_evidence import Comparison, Evidence, same_pass, same_start

FEW = 16
"""Fewer samples than this show nothing of a distribution."""
KOLMOGOROV = 2.2
"""Critical value of the two-sample test: by chance one in 10,000 goes further."""
UNRELATED = 0.8
"""A random leaf whose samples are as far from themselves was never told apart by its moments."""
BY_CHANCE = 1e-3
"""Chance takes sound samples for other ones this seldom. With 128 samples fetched twice, 97 of 100
mixed-up loaders are still found where a sample is to itself 0.7 times as far as to others."""
FIXED = 0.1
"""A random part that varies in less than this part of the samples that varied before is lost."""
DEPENDENT_BY_CHANCE = 1e-6
"""Chance, where some samples come out alike: rows of one batch may depend on one another (sorted by
length)."""
SELDOM = 0.1
"""A part that varies in less than this part of the samples is compared sample by sample, too."""
INPUT_TOLERANCE = 0.5
"""Relative distance between some input values that rounding upstream of the model may make."""

Checksums = tuple[int, ...]


# -- what is drawn ---------------------------------------------------------------------------------


def data_set(case: Comparison) -> str | None:
    """The training loaders are as long as they were."""
    if case.partner is None:
        return None
    theirs = {x.loader: x for x in case.partner.loaders}
    for ours in case.candidate.loaders:
        other = theirs.get(ours.loader)
        if other is None:
            continue
        for what, a, b in (
            (
                "the number of samples in the data set is {} instead of {}",
                ours.dataset_length,
                other.dataset_length,
            ),
            ("the number of batches is {} instead of {}", ours.length, other.length),
            ("the batch size is {} instead of {}", ours.batch_size, other.batch_size),
        ):
            if a is not None and b is not None and a != b:
                return what.format(a, b)
    return None


def order(case: Comparison) -> str | None:
    """Each pass hands out the same indices in the same order, or an order as good as that.

    Another order is as good where the data set draws random numbers: in workers it draws them from
    other generators, and later shuffles come out differently. Then it must still be a shuffle: of
    the same indices, none twice, unsorted, and new in every pass.
    """
    for ours in case.candidate.samples:
        theirs = [s for b in case.partners for s in b.samples if same_pass(s, ours)]
        if not theirs:
            continue
        reason = _length(case, ours, theirs)
        if reason is not None:
            return reason
        if any(same_start(ours, t) for t in theirs):
            continue
        if _must_repeat(case, ours, theirs):
            return "other samples are drawn, or in another order, than in the baseline"
        reason = _poor_order(case, ours)
        if reason is not None:
            return reason
    return None


def _must_repeat(case: Comparison, ours: SamplesEvent, theirs: Sequence[SamplesEvent]) -> bool:
    if not all(same_start(theirs[0], t) for t in theirs[1:]):
        return False
    random_parts = any(
        not all(s.repeatable) for b in case.baselines for s in b.samples if s.repeatable
    )
    if random_parts and not case.same_data and (ours.epoch > 1 or len(case.candidate.loaders) > 1):
        return False
    drawing = any(a.draws for b in case.baselines for a in b.audits)
    return ours.epoch == 1 or not (random_parts or drawing)


def _length(case: Comparison, ours: SamplesEvent, theirs: Sequence[SamplesEvent]) -> str | None:
    """A pass that was followed by another is a whole one."""
    if not _followed(case.candidate, ours):
        return None
    whole = {
        len(t.order) for b in case.partners for t in theirs if t in b.samples and _followed(b, t)
    }
    longest = max(len(t.order) for t in theirs)
    if (whole and len(ours.order) not in whole) or len(ours.order) < longest:
        handed_out = count(len(ours.order), "sample")
        return f"a pass over the data hands out {handed_out} instead of {longest}"
    return None


def _followed(trial: Evidence, event: SamplesEvent) -> bool:
    return any(s.loader == event.loader and s.epoch > event.epoch for s in trial.samples)


def _poor_order(case: Comparison, ours: SamplesEvent) -> str | None:
    theirs = [s for b in case.baselines for s in b.samples if s.loader == ours.loader]
    if len(ours.order) < FEW or not theirs:
        return None
    most = max(max(Counter(t.order).values(), default=1) for t in theirs)
    mine = max(Counter(ours.order).values())
    if most == 1 and mine > 1:
        return f"a sample is drawn {mine} times in one pass instead of once"
    reference = max(theirs, key=lambda t: len(t.order))
    if _apart(sorted(ours.order), sorted(reference.order)):
        return "the samples come from another part of the data set"
    if _neighbours(ours) > max(0.1, 2 * max(map(_neighbours, theirs))):
        return "the samples are no longer shuffled"
    return _stale_shuffle(case, ours)


def _apart(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Two-sample Kolmogorov-Smirnov test on indices."""
    n, m = len(ours), len(theirs)
    if min(n, m) < FEW:
        return False
    i = j = 0
    largest = 0.0
    while i < n and j < m:
        value = min(ours[i], theirs[j])
        while i < n and ours[i] == value:
            i += 1
        while j < m and theirs[j] == value:
            j += 1
        largest = max(largest, abs(i / n - j / m))
    return largest > KOLMOGOROV * math.sqrt((n + m) / (n * m))


def _neighbours(event: SamplesEvent) -> float:
    """Part of the samples that come right after the one before them in the data set."""
    pairs = list(pairwise(event.order))
    return sum(b - a == 1 for a, b in pairs) / len(pairs) if pairs else 0.0


def _stale_shuffle(case: Comparison, ours: SamplesEvent) -> str | None:
    def repeats(trial: Evidence) -> bool:
        passes = [s for s in trial.samples if s.loader == ours.loader and len(s.order) >= FEW]
        return any(same_start(a, b) for a, b in pairwise(passes))

    if repeats(case.candidate) and not any(map(repeats, case.baselines)):
        return "every pass over the data has the same order"
    return None


# -- what is in it ---------------------------------------------------------------------------------


def samples(case: Comparison) -> str | None:
    """A sample has the same content under its index, in every part that is not random by design.

    A file handle shared by forked workers corrupts samples without an error; labels may be mixed
    up between workers.
    """
    wrong = total = 0
    for loader in {s.loader for s in case.candidate.samples}:
        stable = _repeatable_leaves(case.baselines, loader)
        seldom = _seldom_varied(case.baselines, loader, stable)
        unlike, compared = Counter[int](), 0
        for event in (s for s in case.candidate.samples if s.loader == loader):
            known, leaves = _reference(case, event, stable | seldom.keys())
            for index, sums in event.checksums.items():
                reference = known.get(index)
                if reference is None or len(reference) != len(sums):
                    continue
                compared += 1
                other = {x for x in leaves if x < len(sums) and sums[x] != reference[x]}
                wrong += bool(other & stable)
                unlike.update(other - stable)
        total += compared
        for leaf, number in unlike.items():
            if 2 * number > compared and _improbable((number, compared), seldom[leaf]):
                return f"{number} of {compared} samples have another content than in the baseline"
    if wrong:
        return f"{wrong} of {total} samples have another content than in the baseline"
    return None


def _improbable(now: tuple[int, int], usual: tuple[int, int]) -> bool:
    return chance_of_more(now, usual) < DEPENDENT_BY_CHANCE


def _seldom_varied(
    baselines: Sequence[Evidence], loader: int, stable: set[int]
) -> dict[int, tuple[int, int]]:
    """The leaves that few samples change when fetched twice. By leaf: how many, of how many.

    A data set may hand out another sample for a broken one, or now and then another label. In the
    candidate half of the samples must differ: the other rows of a batch may follow one of them.
    """
    events = _one_a_seed(baselines, loader)
    found = {}
    for leaf in set(range(_leaves(events))) - stable:
        alike, seen = _fetched_twice(events, leaf)
        if 0 < seen - alike < SELDOM * seen:
            found[leaf] = seen - alike, seen
    return found


def _repeatable_leaves(baselines: Sequence[Evidence], loader: int) -> set[int]:
    """The leaves that every baseline trial could fetch twice alike."""
    known = [
        {i for i, same in enumerate(s.repeatable) if same}
        for b in baselines
        for s in b.samples
        if s.loader == loader and s.repeatable is not None
    ]
    return set.intersection(*known) if known else set()


def _reference(
    case: Comparison, event: SamplesEvent, stable: set[int]
) -> tuple[dict[str, Checksums], set[int]]:
    """Contents by index, and the leaves to compare.

    In batches of the same composition all stable leaves; else those that do not depend on what else
    is in the batch (as padding does).
    """
    for partner in case.partners:
        for other in partner.samples:
            if same_pass(other, event) and same_start(other, event):
                return other.checksums, stable
    known: dict[str, Checksums] = {}
    leaves = set(stable)
    for other in _events(case.baselines, event.loader):
        for index, sums in other.checksums.items():
            before = known.setdefault(index, sums)
            leaves -= {i for i, (a, b) in enumerate(zip(before, sums, strict=False)) if a != b}
    return known, leaves


def _events(trials: Sequence[Evidence], loader: int) -> Iterator[SamplesEvent]:
    return (s for t in trials for s in t.samples if s.loader == loader)


def distinct(case: Comparison) -> str | None:
    """Where no two samples have the same content, none may come up under another index."""
    for loader in {s.loader for s in case.candidate.samples}:
        theirs = [_doubled(b, loader) for b in case.baselines]
        ours = _doubled(case.candidate, loader)
        for leaf, number in ours.items():
            if number and all(t.get(leaf) == 0 for t in theirs):
                return f"{count(number, 'sample')} with the content of another one"
    return None


def _doubled(trial: Evidence, loader: int) -> dict[int, int]:
    """By leaf: contents that came up under several indices."""
    owners: dict[tuple[int, int], set[str]] = {}
    for event in _events([trial], loader):
        for index, sums in event.checksums.items():
            for leaf, value in enumerate(sums):
                owners.setdefault((leaf, value), set()).add(index)
    counts = {leaf: 0 for leaf, _ in owners}
    for (leaf, _), indices in owners.items():
        counts[leaf] += len(indices) > 1
    return counts


def likeness(case: Comparison) -> str | None:
    """Parts that are random by design (augmented images) still resemble the baseline's, by index.

    Told by each sample's mean and spread, as far as these survive the baseline's own transforms:
    its samples that were fetched twice show how far. A few samples of a batch show little of that,
    so chance must be ruled out as well.
    """
    for loader in {s.loader for s in case.candidate.samples}:
        theirs = _one_a_seed(case.baselines, loader)
        twice = [pair for e in theirs for pair in _pairs(e.moments, e.moments_again)]
        # another seed may make other data
        first = {i: m for s in _events(case.partners[:1], loader) for i, m in s.moments.items()}
        ours = {i: m for s in _events([case.candidate], loader) for i, m in s.moments.items()}
        now = _pairs(first, ours)
        for leaf in range(min((len(a) for a, _ in twice), default=0)):
            usual, expected = _unlikeness(twice, leaf)
            found, apart = _unlikeness(now, leaf)
            if expected is None or apart is None or len(found) < FEW or expected >= UNRELATED:
                continue
            if apart > (1 + expected) / 2 and chance_of_larger(found, usual) < BY_CHANCE:
                return "samples no longer resemble those of the same index in the baseline"
    return None


Moments = tuple["tuple[float, float] | None", ...]


def _one_a_seed(trials: Sequence[Evidence], loader: int) -> list[SamplesEvent]:
    """The events of one trial for each seed: trials of one seed repeat one another."""
    one = {t.seed: t for t in reversed(trials)}
    return list(_events(list(one.values()), loader))


def _pairs(
    first: Mapping[str, Moments], second: Mapping[str, Moments]
) -> list[tuple[Moments, Moments]]:
    return [(first[index], second[index]) for index in second if index in first]


def _unlikeness(
    pairs: Sequence[tuple[Moments, Moments]], leaf: int
) -> tuple[list[float], float | None]:
    """Each sample's distance from itself, and their mean over that from others: 0 the same, 1
    unrelated. None where samples have no moments, or all the same."""
    known = [
        (x, y)
        for a, b in pairs
        if leaf < min(len(a), len(b))
        for x, y in [(a[leaf], b[leaf])]
        if x is not None and y is not None
    ]
    own = [_distance(a, b) for a, b in known]
    shifted = known[len(known) // 2 :] + known[: len(known) // 2]
    other = [_distance(a, b) for (a, _), (_, b) in zip(known, shifted, strict=True)]
    return own, math.fsum(own) / math.fsum(other) if math.fsum(other) > 0 else None


def _distance(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def transforms(baselines: Sequence[Evidence], candidates: Sequence[Evidence]) -> str | None:
    """Parts that are random in the baseline are random in the candidate.

    Fetched twice, or seen in two passes or under two seeds, they come out differently: all of them
    (noise), half (flips), or some (a length that is rounded).
    """
    for loader in {s.loader for c in candidates for s in c.samples}:
        theirs, ours = _one_a_seed(baselines, loader), _one_a_seed(candidates, loader)
        for leaf in range(_leaves(theirs)):
            usual = _fetched_twice(theirs, leaf)
            if usual[0] == usual[1]:
                continue
            if any(_lost(_fetched_twice([event], leaf), usual) for event in ours) or _lost(
                _seen_twice(ours, leaf), _seen_twice(theirs, leaf)
            ):
                return "the data set's random transforms no longer vary"
    return None


def _leaves(events: Sequence[SamplesEvent]) -> int:
    return max((len(sums) for e in events for sums in e.checksums_again.values()), default=0)


def _fetched_twice(events: Sequence[SamplesEvent], leaf: int) -> tuple[int, int]:
    """How many samples came out alike under other seeds, of how many."""
    twice = [
        (event.checksums[index][leaf], again[leaf])
        for event in events
        for index, again in event.checksums_again.items()
        if index in event.checksums and leaf < min(len(again), len(event.checksums[index]))
    ]
    return sum(a == b for a, b in twice), len(twice)


def _seen_twice(events: Sequence[SamplesEvent], leaf: int) -> tuple[int, int]:
    """The same for samples that several seeds or passes came to."""
    seen: dict[str, list[int]] = {}
    for event in events:
        for index, sums in event.checksums.items():
            if leaf < len(sums):
                seen.setdefault(index, []).append(sums[leaf])
    several = [values for values in seen.values() if len(values) > 1]
    return sum(len(set(values)) < len(values) for values in several), len(several)


def _lost(now: tuple[int, int], usual: tuple[int, int]) -> bool:
    (alike, seen), (alike_before, seen_before) = now, usual
    if not seen or not seen_before:
        return False
    varied, varied_before = seen - alike, seen_before - alike_before
    if varied / seen >= FIXED * varied_before / seen_before:
        return False
    return _improbable(now, usual) if alike_before else chance_of_more(now, usual) < BY_CHANCE


# -- what the model is fed -------------------------------------------------------------------------


def fed(case: Comparison) -> str | None:
    """The model is called with the batch that the loader handed out for it.

    A batch is known again by its bytes, whatever is random in it: a stale or overwritten buffer
    between loader and model shows here.
    """
    for number, ours in enumerate(case.candidate.audits):
        theirs = [b.audits[number].fed for b in case.baselines if number < len(b.audits)]
        if not theirs or any(t != theirs[0] for t in theirs) or len(ours.fed) != len(theirs[0]):
            continue
        for a, b in zip(ours.fed, theirs[0], strict=True):
            if b is not None and a != b:
                what = "no batch of the loader" if a is None else f"batch {a}"
                return f"the model is fed {what} instead of batch {b} in step {ours.step}"
    return None


def inputs(case: Comparison) -> str | None:
    """The model is fed the same numbers, where the baseline's repeats of one seed agree on them.

    Rounding upstream (another model's output, say) may move them a little.
    """
    if len(case.partners) < 2 or not case.same_draws:
        return None
    for number, ours in enumerate(case.candidate.audits):
        theirs = [p.audits[number].input_values for p in case.partners if number < len(p.audits)]
        if not theirs or any(t != theirs[0] for t in theirs):
            continue
        apart = _relative_distance(ours.input_values, theirs[0])
        if apart is not None and apart > INPUT_TOLERANCE:
            return f"the model is fed other tensors in step {ours.step}"
    return None


def _relative_distance(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    size = math.sqrt(math.fsum(x * x for x in theirs))
    if len(ours) != len(theirs) or not size or not math.isfinite(size):
        return None
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(ours, theirs, strict=True))) / size
