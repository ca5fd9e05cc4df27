"""The document of `gpurun bench bisect --json FILE`."""

from __future__ import annotations

from gpurun.records.record import record

BISECTION_SCHEMA = "gpurun/bisection@1"


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
    throughput of `commit` is that of `against` times the ratio by turns. `slowdown`: the fraction
    of throughput that `commit` loses. `records`: the ids in the store, of `against` and of
    `commit`; None where the store had no room for one.
    """

    commit: str
    against: str
    against_first: bool
    throughput_of_commit: float
    throughput_of_against: float
    slowdown: float
    records: tuple[str | None, str | None]


@record
class SuspectedCommits:
    """Commits, oldest first, and the probability that one of them brought a drop.

    There are several if only the last of them could be measured.
    """

    commits: tuple[str, ...]
    probability: float


@record
class SecondDrop:
    """A further drop in the same range. `slowdown`: the fraction of throughput that it loses."""

    probability: float
    suspects: tuple[SuspectedCommits, ...]
    slowdown: float


@record
class BisectionReport:
    """The result of a search for the commit that made a benchmark slower.

    `verdict`: "found" (`culprit`, confirmed against its parent), "narrowed" (a few suspects are
    left, all but one of which cannot be measured), "no_drop" (`bad` is not slower than `good`),
    "inconclusive" (pairs or time ended), "failed" (`error` says why) or "interrupted". `commits`:
    those after `good` up to and with `bad`, along first parents, oldest first.

    `suspects`: likeliest first; of a search that is not over, those that are left.
    `no_drop_probability`: that `bad` loses less than `smallest_slowdown`. `slowdown`: the fraction
    of throughput that the culprit loses against its parent, with its 95 % interval;
    `range_slowdown`: the fraction that `bad` loses against `good`, the median of their pairs.
    `launch_noise`: the scatter of a launch, a fraction. None: not measured.

    `seconds`: what the search took, of all calls where it went on after an interruption. `others`:
    searches of further benchmarks of the same configuration.
    """

    benchmark: str
    command: tuple[str, ...]
    verdict: str
    exit_code: int
    good: BisectedCommit | None
    bad: BisectedCommit | None
    commits: tuple[BisectedCommit, ...]
    culprit: str | None
    suspects: tuple[SuspectedCommits, ...]
    no_drop_probability: float | None
    slowdown: float | None
    slowdown_confidence_interval: tuple[float, float] | None
    range_slowdown: float | None
    second_drop: SecondDrop | None
    smallest_slowdown: float
    launch_noise: float | None
    pairs: tuple[BisectedPair, ...]
    recommendation: str
    seconds: float
    notes: tuple[str, ...] = ()
    error: str | None = None
    others: tuple[BisectionReport, ...] = ()
    schema: str = BISECTION_SCHEMA

    @property
    def skipped(self) -> tuple[BisectedCommit, ...]:
        """The commits that could not be measured."""
        return tuple(one for one in self.commits if one.skipped is not None)

    def commit(self, name: str) -> BisectedCommit:
        """The facts about a commit of the range."""
        return next(one for one in self.commits if one.commit == name)
