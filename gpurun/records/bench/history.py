"""The document of `gpurun bench history --json FILE`: what records of benchmarks show over time."""

from __future__ import annotations

import enum

from gpurun.records.bench.benchmark import BenchmarkFingerprint
from gpurun.records.record import record

HISTORY_SCHEMA = "gpurun/history@1"


class ReferenceKind(enum.Enum):
    """The value that the newest record is compared with: an accepted baseline, else the level
    before the last change, else the usual level since then."""

    ACCEPTED = "accepted"
    PREVIOUS_LEVEL = "previous_level"
    USUAL_LEVEL = "usual_level"


@record
class HistoryPoint:
    """One record. `value`: the geometric mean of `launches`, in the unit of the trend.

    `dirty`: the tree differed from the commit; such a record is shown and counts for no level.
    `subject`: the first line of the commit's message, None where git does not know it.
    """

    record: str
    commit: str | None
    subject: str | None
    branch: str | None
    dirty: bool | None
    time: str
    value: float
    launches: tuple[float, ...]


@record
class HistoryLevel:
    """The level of `points[start:stop]`: their geometric mean."""

    start: int
    stop: int
    value: float


@record
class HistoryChange:
    """A change of level that stays until the next one.

    `start`: the index of its first point. `commit`: the first commit on the new level, most likely;
    it came with one of those from `earliest` to `latest` with 90 % probability. `unmeasured`: the
    number of commits right before it without a record: one of these may have brought it. None if
    git does not know. `direction`: "improvement" or "regression". `change`: of the value, a
    fraction (-0.05 is 5 % less), with its 95 % interval, given the commit.
    """

    start: int
    commit: str | None
    subject: str | None
    earliest: str | None
    latest: str | None
    unmeasured: int | None
    time: str
    direction: str
    change: float
    change_confidence_interval: tuple[float, float]


@record
class HistoryDrift:
    """A change that is spread over all points: many commits that each gain or lose a little.

    `direction`: "improvement" or "regression". `change`: of the value from the first to the last
    point, a fraction, with its 95 % interval. `change_per_point`: from one point to the next.
    """

    direction: str
    change: float
    change_confidence_interval: tuple[float, float]
    change_per_point: float


@record
class HistoryReference:
    """The value that the newest one is compared with. `accepted_by`, `reason`: of what was
    accepted."""

    kind: ReferenceKind
    value: float
    commit: str | None
    record: str | None = None
    accepted_by: str | None = None
    time: str | None = None
    reason: str | None = None


@record
class Trend:
    """One metric of one benchmark with one fingerprint and one workload, in the order of commits.

    `unit`: "samples/s", "steps/s", "s", "bytes", "J/sample", "J" or "%". `change`: of the newest
    value against the reference, a fraction; None where there is nothing to hold it against.
    `drift`: None where there is no evidence for one beside the changes of level.
    """

    benchmark: str
    metric: str
    unit: str
    higher_is_better: bool
    fingerprint: BenchmarkFingerprint
    fingerprint_key: str
    args: tuple[str, ...]
    batch_size: float | None
    parameters: int | None
    points: tuple[HistoryPoint, ...]
    levels: tuple[HistoryLevel, ...]
    changes: tuple[HistoryChange, ...]
    reference: HistoryReference | None
    change: float | None
    drift: HistoryDrift | None = None


@record
class History:
    """The question and the trends, the most recently measured first within a benchmark.

    `branch`: None where git knows none. `since` counts, `until` does not. `elsewhere`: matching
    records of commits that are not on the branch. `unmeasured`: records of the branch without a
    point: without this figure, or of failed runs.

    >>> import json
    >>> from gpurun.records.codec import from_json
    >>> with open("history.json") as file:
    ...     history = from_json(History, json.load(file))
    >>> [(c.direction, c.subject) for trend in history.trends for c in trend.changes]
    [('regression', 'Use float64')]
    """

    metric: str
    branch: str | None
    since: str | None
    until: str | None
    trends: tuple[Trend, ...]
    elsewhere: int
    unmeasured: int
    notes: tuple[str, ...] = ()
    schema: str = HISTORY_SCHEMA
