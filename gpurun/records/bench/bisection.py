"""The document of `gpurun bench bisect --json FILE`."""

from __future__ import annotations

from gpurun.records.record import record

BISECTION_SCHEMA = "gpurun/bisection@2"


@record
class BisectedCommit:
    """A commit of the range. `authored`: ISO 8601. `merge`: it has more parents than one.

    `skipped`: why it could not be measured; None where it could, or nobody tried.
    """

    commit: str
    subject: str
    author: str
    authored: str
    merge: bool
    skipped: str | None = None


@record
class BisectedPair:
    """A launch of two commits each, live or one after the other; `against` is the earlier commit.

    The throughputs are in samples/s (steps/s where samples cannot be counted). In a live pair, the
    throughput of `commit` is that of `against` times the ratio by turns, and `error` is the
    standard error of the ratio's logarithm; None for launches in turn. `records`: the ids in the
    store, of `against` and of `commit`; None where the store had no room for one. `loose`: host or
    loader held up a GPU, and launches are assumed to differ by more.
    """

    commit: str
    against: str
    against_first: bool
    throughput_of_commit: float
    throughput_of_against: float
    error: float | None
    records: tuple[str | None, str | None]
    loose: bool = False


@record
class BisectionReport:
    """A search for the commit that made a benchmark slower: its pairs, and what they say.

    `verdict`: "found" (`culprit`, confirmed against its parent), "narrowed" (one of `suspects`: the
    others could not be measured or stayed undecided), "no_drop" (the last commit is not slower than
    `good` by `smallest_slowdown`), "inconclusive" (`recommendation` says why), "failed" (`error`
    says why) or "interrupted". `commits`: those after `good`, along first parents, oldest first.
    `suspects`: those of them that are left, in the same order.

    `slowdown`: the fraction of throughput that the last suspect loses against the commit before the
    first one, the culprit against its parent; `range_slowdown`: the fraction that the last commit
    loses against `good`. Their intervals are those of the gate. None: not measured.

    `seconds`: what the search took, of all calls where it went on after an interruption. `others`:
    searches of further benchmarks of the same configuration.
    """

    benchmark: str
    command: tuple[str, ...]
    smallest_slowdown: float
    good: BisectedCommit | None = None
    commits: tuple[BisectedCommit, ...] = ()
    pairs: tuple[BisectedPair, ...] = ()
    seconds: float = 0.0
    verdict: str = "inconclusive"
    exit_code: int = 3
    culprit: str | None = None
    suspects: tuple[str, ...] = ()
    slowdown: float | None = None
    slowdown_interval: tuple[float, float] | None = None
    range_slowdown: float | None = None
    range_slowdown_interval: tuple[float, float] | None = None
    recommendation: str = ""
    notes: tuple[str, ...] = ()
    error: str | None = None
    others: tuple[BisectionReport, ...] = ()
    schema: str = BISECTION_SCHEMA

    @property
    def line(self) -> tuple[BisectedCommit, ...]:
        """All commits from `good` on; none where the range is not known."""
        return () if self.good is None else (self.good, *self.commits)

    @property
    def skipped(self) -> tuple[BisectedCommit, ...]:
        """The commits that could not be measured."""
        return tuple(one for one in self.commits if one.skipped is not None)

    def commit(self, name: str) -> BisectedCommit:
        """The facts about a commit of the range."""
        return next(one for one in self.line if one.commit == name)
