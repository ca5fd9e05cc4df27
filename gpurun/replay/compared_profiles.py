"""Two profiles of a training compared: what changed, and what it explains of the step's change.

Where both replays match, each change is taken out of both graphs, and what the replayed steps then
lose is what it explains. Else the steps are compared as the device spent them, or, without a
device, as the host did.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpurun.records import diagnosis as records
from gpurun.records.diagnosis import CauseChange, ChangeKind, ComparisonBasis, ProfileChange
from gpurun.records.finding import Finding
from gpurun.replay import spent_time
from gpurun.replay.replay_check import Replayed, StepTimes, replayed_timeline
from gpurun.replay.replayed_changes import replayed_changes
from gpurun.replay.replayed_steps import median_step_ms
from gpurun.replay.spent_time import ProfiledSide

PROFILED = "profiled steps, means"


@dataclass(frozen=True)
class _Explained:
    """The steps that are compared, the ground of the explanation, and what changed.

    `others`: changes that the first ones hold already.
    """

    steps_ms: tuple[float, float]
    measured: str
    basis: ComparisonBasis
    changes: tuple[ProfileChange, ...]
    others: tuple[ProfileChange, ...] = ()
    why_no_replay: str | None = None
    replay_error_ms: float | None = None


def compared_profiles(
    before: ProfiledSide, after: ProfiledSide
) -> records.ProfileComparison | None:
    """What changed from one to the other; None if they measured nothing in common a step."""
    found = _by_timelines(before, after) or _by_split(before, after) or _by_operators(before, after)
    if found is None:
        return None
    others = (*found.others, *spent_time.function_changes(before, after))
    changes = (*found.changes, *(replace(each, explained_ms=None) for each in others))
    difference = found.steps_ms[1] - found.steps_ms[0]
    explained = sum(change.explained_ms or 0.0 for change in changes)
    matched, other_names = spent_time.renamed(before, after)
    return records.ProfileComparison(
        before=_record(before, found.steps_ms[0]),
        after=_record(after, found.steps_ms[1]),
        difference_ms=difference,
        basis=found.basis,
        measured=found.measured,
        why_no_replay=found.why_no_replay,
        replay_error_ms=found.replay_error_ms,
        changes=_ranked(changes, difference, found.replay_error_ms or 0.0),
        explained_ms=explained,
        not_explained_ms=difference - explained,
        kernels_matched=matched,
        renamed_kernels=other_names,
        causes=tuple(_causes(before.findings, after.findings)),
        notes=tuple(dict.fromkeys((*before.notes, *after.notes))),
    )


def _by_timelines(before: ProfiledSide, after: ProfiledSide) -> _Explained | None:
    """By the replay of the unprofiled steps, by that of the profiled ones, or by device time."""
    if not before.kernels or not after.kernels or before.step_ms is None or after.step_ms is None:
        return None
    idle = spent_time.idle_changes(before.figures, after.figures)
    plain, why = (before.times, after.times), None
    for times in (plain, (None, None)) if None not in plain else ((None, None),):
        replays = _replayed(before, times[0]), _replayed(after, times[1])
        mismatches = zip(("before", "after"), (found.mismatch for found, _ in replays), strict=True)
        why = next((f"{name}: {said}" for name, said in mismatches if said is not None), None)
        if why is None:
            return replace(_by_replay((before, after), replays, times), others=idle)
    return _Explained(
        (before.step_ms, after.step_ms),
        PROFILED,
        ComparisonBasis.DEVICE_TIME,
        (*spent_time.device_changes(before, after), *idle),
        why_no_replay=why,
    )


def _replayed(side: ProfiledSide, times: StepTimes | None) -> Replayed:
    assert side.timeline is not None
    if side.replayed is not None and times is side.times:
        return side.replayed
    return replayed_timeline(side.timeline, times, workers=side.workers)


def _by_replay(
    sides: Sequence[ProfiledSide],
    replays: Sequence[Replayed],
    times: Sequence[StepTimes | None],
) -> _Explained:
    """`times`: of the steps that were not profiled; None: the profiled ones are compared."""
    graphs = [replay.graph for _, replay in replays if replay is not None]
    before, after = (
        median_step_ms(graph, graph.recorded_ns) if each is None else each.plain_ms
        for graph, each in zip(graphs, times, strict=True)
    )
    return _Explained(
        (before, after),
        f"{'profiled' if None in times else 'unprofiled'} steps, medians",
        ComparisonBasis.REPLAY,
        replayed_changes(graphs, [side.timeline for side in sides if side.timeline is not None]),
        replay_error_ms=abs(median_step_ms(graphs[0]) - before)
        + abs(median_step_ms(graphs[1]) - after),
    )


def _by_split(before: ProfiledSide, after: ProfiledSide) -> _Explained | None:
    one, other = before.result, after.result
    if one is None or other is None or one.split is None or other.split is None:
        return None
    if one.step_time_ms is None or other.step_time_ms is None:
        return None
    return _Explained(
        (one.step_time_ms.mean, other.step_time_ms.mean),
        "steps of the whole run, means",
        ComparisonBasis.STEP_SPLIT,
        spent_time.split_changes(one.split, other.split),
        spent_time.operator_changes(before.timeline, after.timeline),
    )


def _by_operators(before: ProfiledSide, after: ProfiledSide) -> _Explained | None:
    changes = spent_time.operator_changes(before.timeline, after.timeline)
    if not changes or before.step_ms is None or after.step_ms is None:
        return None
    return _Explained((before.step_ms, after.step_ms), PROFILED, ComparisonBasis.OPERATORS, changes)


def _ranked(
    changes: Sequence[ProfileChange], difference: float, error: float
) -> tuple[ProfileChange, ...]:
    """Those that explain most first, then the others by how much they differ.

    A share of a difference that is within the replay's own error says nothing.
    """

    def rank(change: ProfileChange) -> tuple[bool, float]:
        size = (change.after_ms or 0.0) - (change.before_ms or 0.0)
        explained = change.explained_ms
        return explained is None, -abs(size if explained is None else explained)

    ranked = sorted(changes, key=rank)
    if abs(difference) <= error:
        return tuple(ranked)
    return tuple(
        replace(each, explained_share=each.explained_ms and each.explained_ms / difference)
        for each in ranked
    )


def _causes(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[CauseChange]:
    """The new and the changed ones as the later profile ranks them, then those that are gone."""
    found = {finding.type: finding for finding in before}
    for finding in after:
        earlier = found.pop(finding.type, None)
        if earlier is None:
            yield CauseChange(finding.type, ChangeKind.ADDED, None, finding)
        elif earlier.level != finding.level:
            worse = finding.severity > earlier.severity
            change = ChangeKind.SLOWER if worse else ChangeKind.FASTER
            yield CauseChange(finding.type, change, earlier, finding)
    for finding in found.values():
        yield CauseChange(finding.type, ChangeKind.LOST, finding, None)


def _record(side: ProfiledSide, step_ms: float) -> records.ComparedProfile:
    figures, result, timeline = side.figures, side.result, side.timeline
    return records.ComparedProfile(
        subject=side.subject,
        step_ms=step_ms,
        steps=figures.steps,
        rank=None if timeline is None else timeline.rank,
        samples_per_step=None if result is None else result.batch_size,
        idle_share=None if figures.idle is None else figures.idle.total,
    )
