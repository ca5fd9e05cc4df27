"""Do the same samples reach the model? The loss guard's checks of indices and contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpurun.records.events import SamplesEvent
from gpurun.tuner.evidence import Evidence


def order(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    """Each pass over the data hands out the same indices.

    In the same order too where the baseline repeats it under one seed; later passes may be shuffled
    otherwise, because workers take the transforms' random numbers out of the main process.
    """
    partners = [b for b in baselines if b.seed == candidate.seed]
    for ours in candidate.samples:
        theirs = [s for b in partners for s in b.samples if _same_pass(s, ours)]
        if not theirs or any(_same_start(ours, t) for t in theirs):
            continue
        if ours.epoch == 1 and all(_same_start(theirs[0], t) for t in theirs[1:]):
            return "other samples are drawn, or in another order, than in the baseline"
        reason = _other_multiset(ours, theirs[0])
        if reason is not None:
            return reason
    return None


def _same_pass(a: SamplesEvent, b: SamplesEvent) -> bool:
    return a.loader == b.loader and a.epoch == b.epoch


def _same_start(a: SamplesEvent, b: SamplesEvent) -> bool:
    common = min(len(a.order), len(b.order))
    return a.order[:common] == b.order[:common]


def _other_multiset(ours: SamplesEvent, theirs: SamplesEvent) -> str | None:
    """In passes of another order: no index may come more often than in the baseline's."""
    allowed = max(Counter(theirs.order).values(), default=1)
    if len(ours.order) >= len(theirs.order) and allowed == 1:
        missing = len(set(theirs.order) - set(ours.order))
        if len(ours.order) == len(theirs.order) and missing and _whole(ours, theirs):
            return f"{missing} samples of the data set are left out"
    most = max(Counter(ours.order).values(), default=1)
    if most > allowed:
        return f"a sample is drawn {most} times in one pass instead of {allowed}"
    return None


def _whole(a: SamplesEvent, b: SamplesEvent) -> bool:
    """Both look like whole passes: every index below the largest was drawn in one of them."""
    return len(set(a.order) | set(b.order)) <= max(len(a.order), len(b.order))


def samples(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    """A sample has the same content under its index, in every part that is not random by design.

    A file handle shared by forked workers corrupts samples without an error; labels may be mixed
    up between workers.
    """
    known = _reference(baselines)
    leaves = _repeatable_leaves(baselines)
    wrong = total = 0
    for event in candidate.samples:
        for index, sums in event.checksums.items():
            reference = known.get((event.loader, index))
            if reference is None or len(reference) != len(sums):
                continue
            total += 1
            wrong += any(
                a != b
                for leaf, (a, b) in enumerate(zip(sums, reference, strict=True))
                if leaf in leaves.get(event.loader, ())
            )
    if wrong:
        return f"{wrong} of {total} samples have another content than in the baseline"
    return None


def _reference(baselines: Sequence[Evidence]) -> dict[tuple[int, str], tuple[int, ...]]:
    return {
        (event.loader, index): sums
        for trial in baselines
        for event in trial.samples
        for index, sums in event.checksums.items()
    }


def _repeatable_leaves(baselines: Sequence[Evidence]) -> dict[int, set[int]]:
    """By loader: the leaves that every baseline trial could fetch twice alike."""
    leaves: dict[int, set[int]] = {}
    for trial in baselines:
        for event in trial.samples:
            if event.repeatable is not None:
                stable = {i for i, same in enumerate(event.repeatable) if same}
                leaves[event.loader] = leaves.get(event.loader, stable) & stable
    return leaves


def inputs(baselines: Sequence[Evidence], candidate: Evidence) -> str | None:
    """The model is fed the same tensors, where the baseline feeds the same under one seed and the
    loader's samples are not random: a stale or overwritten buffer shows here.
    """
    partners = [b for b in baselines if b.seed == candidate.seed]
    if len(partners) < 2 or not candidate.samples or not _all_repeatable(baselines):
        return None
    if order(baselines, candidate) is not None:
        return None
    reference = partners[0]
    for number, ours in enumerate(candidate.audits):
        theirs = [p.audits[number].inputs for p in partners if number < len(p.audits)]
        if len(set(theirs)) == 1 and theirs[0] is not None and ours.inputs != theirs[0]:
            if _same_samples_so_far(reference, candidate):
                return f"the model is fed other tensors in step {ours.step}"
    return None


def _all_repeatable(baselines: Sequence[Evidence]) -> bool:
    seen = [e.repeatable for b in baselines for e in b.samples if e.checksums]
    return bool(seen) and all(r is not None and all(r) for r in seen)


def _same_samples_so_far(reference: Evidence, candidate: Evidence) -> bool:
    return all(
        any(_same_pass(a, b) and _same_start(a, b) for b in reference.samples)
        for a in candidate.samples
        if a.checksums
    )
