"""The state of a search for a culprit, its questions and answers, and the file that keeps it.

A `Bisection` is the range and the log of its measurements. A `SearchState` adds the launches. Its
file is `<records>/bisections/<good>-<bad>-<key>.json`, replaced whole after each pair and each
skipped commit. So the same command continues the search after any end. The key stands for the
repository and for everything that a launch depends on.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.commit_range import CommitRange
from gpurun.bench.trees.folder_locks import sole_user
from gpurun.bench.trees.git import Repository, short
from gpurun.bench.workload import Work
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.bench.bisection import BisectedPair, SecondDrop, SuspectedCommits
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.spec import StopRule
from gpurun.rundir import own_folder, read_json, write_json


@dataclass(frozen=True)
class SearchPlan:
    """The conditions of an answer, and the limits of the search."""

    level: float = 0.999
    """Probability at which an answer is given: with room for pairs that are not independent."""
    smallest: float = 0.025
    """Smallest drop that counts, a fraction of throughput: half the gate's usual threshold."""
    max_pairs: int = 150
    likely: float = 0.7
    """From this probability on a commit is compared with its parent."""
    least_pairs: int = 4
    """Pairs that an answer needs of the two commits that it is about."""
    doubtful: tuple[float, float] = (0.25, 0.9)
    """Probabilities of a second drop. Between them the search measures two pairs again, up to
    `most_pairs` each: the ends of the range, and the culprit with its parent. Does the culprit
    explain the whole drop?"""
    most_pairs: int = 12


@dataclass(frozen=True)
class Pair:
    """One measured pair: `slowdown` is ln(throughput of `against` / throughput of `commit`)."""

    commit: str
    against: str
    slowdown: float
    against_first: bool
    """True if `against` was launched first."""


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
    """The probability so far that `commit` is the culprit."""


class Outcome(enum.Enum):
    """The outcome of a search."""

    FOUND = "found"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Done:
    """The answer. Figures that the outcome does not have are None, never 0."""

    outcome: Outcome
    suspects: tuple[SuspectedCommits, ...]
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
    another: SecondDrop | None = None
    """Another drop in the range, if that is more likely than not."""

    @property
    def culprit(self) -> str | None:
        """The one commit that is to blame, if it is known which."""
        found = self.outcome is Outcome.FOUND and len(self.suspects[0].commits) == 1
        return self.suspects[0].commits[0] if found else None


FOLDER = "bisections"
STATE_SCHEMA = "gpurun/bisection-state@2"


@dataclass(frozen=True)
class LaunchTerms:
    """The terms that the first launches of both ends set for all others.

    `by_samples`: the throughput is in samples/s, else in steps/s. `devices`: those of the machine.
    """

    rule: StopRule
    by_samples: bool
    work: Work
    devices: str


@dataclass(frozen=True)
class SearchState:
    """A search with its launches: `pairs` are those of `search.pairs`, with their figures.

    `skips`: why, by commit. `seconds`: what all calls took.
    """

    search: Bisection
    terms: LaunchTerms | None = None
    pairs: tuple[BisectedPair, ...] = ()
    skips: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    schema: str = STATE_SCHEMA

    def without(self, commit: str, reason: str) -> SearchState:
        """After a commit that cannot be measured."""
        search = self.search.without(commit)
        return replace(self, search=search, skips={**self.skips, commit: reason})


@dataclass
class StateFile:
    """The file of a search, and what it holds: None before the first launch."""

    path: Path
    state: SearchState | None

    def write(self, state: SearchState) -> None:
        """Keep the state, whole or not at all."""
        self.state = state
        try:
            write_json(self.path, to_json(state))
        except OSError as error:
            raise GpurunError(
                f"{self.path} could not be written: {error.strerror or error}",
                "make room there, or name another folder with --out",
            ) from None


def fresh_state(line: CommitRange, plan: SearchPlan) -> SearchState:
    """The state of a search without launches."""
    return SearchState(Bisection(line.good.commit, line.ids, plan=plan))


@contextmanager
def state_file(
    home: Path,
    repository: Repository,
    benchmark: Benchmark,
    line: CommitRange,
    tell: Callable[[str], None],
    fresh: bool = False,
) -> Iterator[StateFile]:
    """The file of this search below the folder of records `home`, for this process alone.

    `fresh` forgets what it holds. A file that cannot be read is set aside. `GpurunError` where
    another process is at the same search.
    """
    ends = f"{short(line.good.commit)}-{short(line.bad.commit)}"
    path = own_folder(home, FOLDER) / f"{ends}-{_key(repository, benchmark, line)}.json"
    with sole_user(path.with_suffix(".lock")) as other:
        if other is not None:
            whose = f" by process {other}" if other else ""
            raise GpurunError(
                f"this search is running already{whose}",
                "wait for its end, or use another folder of records (--out)",
            )
        if fresh:
            path.unlink(missing_ok=True)
        yield StateFile(path, _read(path, line, tell))


def _read(path: Path, line: CommitRange, tell: Callable[[str], None]) -> SearchState | None:
    try:
        state = from_json(SearchState, read_json(path))
        if state.schema != STATE_SCHEMA:
            raise RecordError(f"its schema is {state.schema!r}")
        if (state.search.good, state.search.commits) != (line.good.commit, line.ids):
            raise RecordError("it holds another range")
        if len(state.search.pairs) != len(state.pairs):
            raise RecordError("its pairs do not agree")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        tell(f"the search starts again: its file cannot be read ({error}) and is kept as {aside}")
        return None
    return state


def _key(repository: Repository, benchmark: Benchmark, line: CommitRange) -> str:
    """A hash of the full commits and of everything that decides how a launch runs."""
    document: dict[str, Any] = {
        "repository": str(repository.common),
        "good": line.good.commit,
        "bad": line.bad.commit,
        "folder": str(benchmark.folder),
        "base": str(benchmark.base or benchmark.folder),
        **{
            name: to_json(getattr(benchmark, name))
            for name in ("name", "script", "args", "steps", "setup", "needed")
        },
        "env": dict(benchmark.env),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]
