"""What a search for a culprit knows, asks for and answers: records that `bench bisect` keeps.

A `Bisection` is all the state that there is, JSON by `gpurun.records.codec`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from gpurun.errors import ExitCode, GpurunError


@dataclass(frozen=True)
class SearchPlan:
    """What counts as found, and what the search may cost."""

    level: float = 0.999
    """Probability at which an answer is given: with room for pairs that are not independent."""
    smallest: float = 0.025
    """Smallest drop that counts, a fraction of throughput: half the gate's usual threshold."""
    max_pairs: int = 150
    likely: float = 0.7
    """From this probability on a commit is held against its parent."""
    least_pairs: int = 4
    """Pairs that an answer needs of the two commits that it is about."""
    doubtful: tuple[float, float] = (0.25, 0.9)
    """Between these probabilities of a second drop, the ends of the range and the culprit and its
    parent are measured again, each up to `most_pairs`: does the culprit account for all?"""
    most_pairs: int = 12


@dataclass(frozen=True)
class Pair:
    """One measured pair: `slowdown` is ln(throughput of `against` / throughput of `commit`)."""

    commit: str
    against: str
    slowdown: float
    against_first: bool
    """Which of the two was launched first."""


@dataclass(frozen=True)
class Bisection:
    """The range, and the log of its measurements."""

    good: str
    commits: tuple[str, ...]
    """GOOD..BAD without GOOD, oldest first; the last one is BAD."""
    pairs: tuple[Pair, ...] = ()
    skipped: tuple[str, ...] = ()
    """Commits that do not build or run."""
    plan: SearchPlan = SearchPlan()

    def __post_init__(self) -> None:
        if not self.commits or len({self.good, *self.commits}) != len(self.commits) + 1:
            raise ValueError("a search needs different commits")

    def with_pair(self, pair: Pair) -> Bisection:
        """This search after one more pair."""
        return replace(self, pairs=(*self.pairs, pair))

    def without(self, commit: str) -> Bisection:
        """This search without a commit that cannot be measured; GOOD and BAD must be."""
        if commit in (self.good, self.commits[-1]):
            raise GpurunError(
                f"{commit} cannot be measured, and it is an end of the range",
                "name an end of the range whose benchmark runs",
                ExitCode.BENCHMARK_FAILED,
            )
        return replace(self, skipped=(*self.skipped, commit))


@dataclass(frozen=True)
class Measure:
    """Launch `commit` and `against` once each, `against` first or second."""

    commit: str
    against: str
    against_first: bool


@dataclass(frozen=True)
class Confirm(Measure):
    """A `Measure` of a likely culprit against its parent (the nearest one that can be measured)."""

    probability: float
    """That `commit` is the culprit, so far."""


class Outcome(enum.Enum):
    """How a search ended."""

    FOUND = "found"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Suspect:
    """Commits of which one may have brought the drop; several where all but the last one of them
    were skipped, so that nothing tells them apart."""

    commits: tuple[str, ...]
    probability: float


@dataclass(frozen=True)
class Another:
    """A second drop in the same range: how sure, where most likely, how large (a fraction)."""

    probability: float
    suspects: tuple[Suspect, ...]
    slowdown: float


@dataclass(frozen=True)
class Done:
    """The answer. Figures that the outcome does not have are None, never 0."""

    outcome: Outcome
    suspects: tuple[Suspect, ...]
    """The culprit alone if found; if inconclusive, the likeliest, which together reach the level
    unless "there is no drop" is among what is left. Likeliest first."""
    no_drop: float
    """Probability that BAD is not slower than GOOD by `smallest` or more."""
    pairs: int
    noise: float | None
    """Scatter of a launch, a fraction of its throughput."""
    slowdown: float | None = None
    """Throughput that the culprit loses against its parent, a fraction; with its 95 % interval."""
    slowdown_interval: tuple[float, float] | None = None
    bad_slowdown: float | None = None
    """Throughput that BAD loses against GOOD, a fraction: the median of their pairs. Less than the
    culprit's where part of its loss was made good later in the range."""
    another: Another | None = None
    """Another drop in the range, if that is more likely than not."""

    @property
    def culprit(self) -> str | None:
        """The one commit that is to blame, if it is known which."""
        found = self.outcome is Outcome.FOUND and len(self.suspects[0].commits) == 1
        return self.suspects[0].commits[0] if found else None
