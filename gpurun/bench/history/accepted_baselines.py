"""Baselines accepted between the two sides of a comparison: slowdowns taken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.bench.history.past_records import changed_work
from gpurun.bench.trees.git import Revision, open_repository, short
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import AcceptedBaseline, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore


def with_accepted(
    document: Comparison, store: BenchmarkStore, folder: Path, tell: Callable[[str], None]
) -> Comparison:
    """The comparison with a note for each baseline that was accepted between its sides.

    The verdict stays as it is: what was accepted is for a person to weigh, who sees both figures. A
    store out of reach says nothing.
    """
    older, newer = document.baseline.commit, document.current.commit
    record = document.current.record
    if older is None or newer is None or record is None or document.error is not None:
        return document
    try:
        notes = _notes(document.benchmark, record, store, folder, older, newer)
    except GpurunError:  # the verdict stands without a database
        return document
    for note in notes:
        tell(note)
    return replace(document, notes=(*document.notes, *notes))


def _notes(
    benchmark: str, record: str, store: BenchmarkStore, folder: Path, older: str, newer: str
) -> list[str]:
    baselines = store.baselines(benchmark)
    if not baselines:
        return []
    repository = open_repository(folder)
    sides = Revision("the baseline", older), Revision("HEAD", newer)
    between = set(repository.commits_between(*sides))
    current = store.get(record)
    if current is None:
        return []
    here = [b for b in baselines if of_same_work(b, current, store)]
    last = {b.commit: b for b in here if b.commit in between}
    return [_note(accepted) for accepted in last.values()]


def of_same_work(
    accepted: AcceptedBaseline, record: BenchmarkRecord, store: BenchmarkStore
) -> bool:
    """True if a baseline has the fingerprint and, as far as is known, the workload of a record."""
    if accepted.fingerprint != record.fingerprint.key:
        return False
    own = store.get(accepted.record)
    return own is None or changed_work(own, record) is None


def _note(accepted: AcceptedBaseline) -> str:
    assert accepted.commit is not None
    reason = f": {accepted.reason}" if accepted.reason else ""
    return (
        f"this comparison includes commit {short(accepted.commit)}, which {accepted.accepted_by} "
        f"accepted as baseline on {accepted.time[:10]}{reason}"
    )
