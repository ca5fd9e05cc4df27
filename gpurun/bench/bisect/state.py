"""What a search has found so far, in a file, so that the same command goes on after any end of it.

`<records>/bisections/<good>-<bad>-<key>.json`, replaced whole after each pair and each commit that
is skipped. The key stands for the repository and for all that a launch depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisection import Bisection, SearchPlan
from gpurun.bench.bisect.line import Line
from gpurun.bench.trees.claim import sole_user
from gpurun.bench.trees.git import Repository, short
from gpurun.bench.workload import Work
from gpurun.errors import GpurunError
from gpurun.records.bisection import BisectedPair
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.spec import StopRule
from gpurun.rundir import own_folder, write_json

FOLDER = "bisections"
STATE_SCHEMA = "gpurun/bisection-state@1"


@dataclass(frozen=True)
class Settled:
    """What the first launches of both ends settle for all others.

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
    settled: Settled | None = None
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


def fresh_state(line: Line, plan: SearchPlan) -> SearchState:
    """That of a search without launches."""
    return SearchState(Bisection(line.good.commit, line.ids, plan=plan))


@contextmanager
def state_file(
    home: Path,
    repository: Repository,
    benchmark: Benchmark,
    line: Line,
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
                f"this search is under way already{whose}",
                "wait for its end; or start this one with another folder of records (--out)",
            )
        if fresh:
            path.unlink(missing_ok=True)
        yield StateFile(path, _read(path, line, tell))


def _read(path: Path, line: Line, tell: Callable[[str], None]) -> SearchState | None:
    try:
        state = from_json(SearchState, json.loads(path.read_text(encoding="utf-8")))
        if state.schema != STATE_SCHEMA:
            raise RecordError(f"it is of schema {state.schema!r}")
        if (state.search.good, state.search.commits) != (line.good.commit, line.ids):
            raise RecordError("it is of another range")
        if len(state.search.pairs) != len(state.pairs):
            raise RecordError("its pairs do not agree")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        aside = path.with_suffix(".unreadable")
        path.replace(aside)
        tell(f"the search is begun anew: its file cannot be read ({error}) and is kept as {aside}")
        return None
    return state


def _key(repository: Repository, benchmark: Benchmark, line: Line) -> str:
    """Of the commits in full, and of all that decides what a launch does."""
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
