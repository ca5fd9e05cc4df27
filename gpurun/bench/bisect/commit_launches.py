"""Launches of the commits of a search, each in a tree that is made when it is first asked for.

A tree is launched once to warm it up before its launches count. A launch counts only if it ran its
own tree to the end and did the work that GOOD does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace

from gpurun.bench.bench_pairs import MeasuredPair, PairLauncher
from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_state import LaunchTerms
from gpurun.bench.compare.pair_runner import Tell
from gpurun.bench.record_of_launches import Version, record_of
from gpurun.bench.trees.git import short
from gpurun.bench.trees.module_origins import check_origins
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.bench.workload import Work
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.spec import Trees
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.stop_rules import WHOLE, first_rule

MOST_TREES = 4
"""Both ends of the range, and the two commits that are compared with each other."""


class TreePool:
    """At most `most` trees; for a further one the one that was not used for longest goes.

    `make` opens the tree of a commit; `gone` hears of each that is removed, by its side's name.
    """

    def __init__(
        self,
        make: Callable[[str], AbstractContextManager[Sides]],
        gone: Callable[[str], None],
        most: int = MOST_TREES,
    ) -> None:
        self._make = make
        self._gone = gone
        self._most = most
        self._open: dict[str, tuple[Sides, ExitStack]] = {}

    def __contains__(self, commit: str) -> bool:
        return commit in self._open

    def get(self, commit: str) -> Sides | None:
        """The tree of a commit, now the one used last; None where it is not here."""
        entry = self._open.pop(commit, None)
        if entry is None:
            return None
        self._open[commit] = entry
        return entry[0]

    def add(self, commit: str) -> Sides:
        """The tree of a commit that is not here; `GpurunError` where it cannot be made."""
        with ExitStack() as stack:
            sides = stack.enter_context(self._make(commit))
            self._open[commit] = (sides, stack.pop_all())
        return sides

    def make_room(self) -> None:
        """Remove trees until there is room for one more."""
        while len(self._open) >= self._most:
            self.remove(next(iter(self._open)))

    def remove(self, commit: str) -> None:
        """Remove the tree of a commit, if it is here."""
        sides, stack = self._open.pop(commit, (None, None))
        if sides is not None and stack is not None:
            stack.close()
            self._gone(sides.current.name)

    def close(self) -> None:
        """Remove them all."""
        for commit in list(self._open):
            self.remove(commit)

    def watched(self, side: Side) -> Trees:
        """The trees whose files launches of `side` record: its own, and all others here."""
        alive = (sides for sides, _ in self._open.values())
        roots = [root for sides in alive for root in (sides.current.tree.root, sides.users.root)]
        others = dict.fromkeys(str(root) for root in roots if root != side.tree.root)
        return Trees(own=str(side.tree.root), others=tuple(others))


OF_COMMIT = (ExitCode.BENCHMARK_FAILED, ExitCode.NO_BASELINE)
"""Errors of making a tree that are the commit's own; others (no room, no git) are not."""


class Unmeasurable(Exception):
    """The commit cannot be measured; `reason` and `todo` are one line each. `launch`: the one
    that failed, None where it was none."""

    def __init__(
        self, commit: str, reason: str, todo: str = "", launch: Launch | None = None
    ) -> None:
        super().__init__(reason)
        self.commit, self.reason, self.todo, self.launch = commit, reason, todo, launch


@dataclass
class CommitLauncher:
    """Launches commits. `terms`: what all launches have to agree in, once that is known."""

    benchmark: Benchmark
    launcher: Launcher
    pool: TreePool
    interruption: SignalGuard
    tell: Tell
    terms: LaunchTerms | None = field(init=False, default=None)
    notes: list[str] = field(init=False, default_factory=list)
    _longest: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.pairing = PairLauncher(self.launcher)

    def estimate(self, commits: Iterable[str]) -> float:
        """Seconds that a pair of these commits may take, by the longest launches and trees."""
        launch = self.launcher.expected
        missing = sum(commit not in self.pool for commit in commits)
        return self.pairing.expected + missing * (launch + self._longest)

    def first(self, commit: str) -> Launch:
        """Make the tree of a commit, and launch it to warm it up."""
        self.interruption.hold()
        self.pool.make_room()
        self.interruption.release()
        began = time.monotonic()
        try:
            sides = self.pool.add(commit)
            self._longest = max(self._longest, time.monotonic() - began)
        except GpurunError as error:
            if error.code not in OF_COMMIT:
                raise
            raise Unmeasurable(commit, error.what, error.todo) from None
        for note in sides.notes:
            self.remember(f"{short(commit)}: {note}")
        self.tell(f"first launch of {short(commit)}, to warm it up")
        rule = first_rule(self.benchmark.steps)
        launch = self.launcher.run(self._start(sides), rule, first=True)
        self._check(commit, sides, launch)
        self.pairing.consider((launch, launch))
        return launch

    def pair(self, one: str, other: str, terms: LaunchTerms) -> MeasuredPair:
        """A pair of both commits: live, or launched in this order with equal numbers of steps."""
        trees = [self._tree(commit) for commit in (one, other)]
        names = [sides.current.name for sides in trees]

        def check(launch: Launch) -> None:
            at = names.index(launch.start.name)
            commit = (one, other)[at]
            self._check(commit, replace(trees[at], baseline=trees[1 - at].current), launch)
            steps, wanted = launch.result.steps, terms.rule.max_steps
            if terms.rule != WHOLE and launch.whole and steps < wanted:
                reason = f"it ends after {count(steps, 'step')}, but other commits take {wanted}"
                raise Unmeasurable(commit, reason)

        starts = (self._start(trees[0]), self._start(trees[1]))
        taken = self.pairing.take(starts, terms.rule, check)
        if self.pairing.in_turn and self.pairing.why not in self.notes:
            self.remember(self.pairing.why)
        for launch in (taken.first, taken.second):
            check(launch)
        return taken

    def drop(self, commit: str) -> None:
        """Remove the tree of a commit that is not measured any more."""
        self.pool.remove(commit)

    def record(self, commit: str, launch: Launch) -> BenchmarkRecord:
        """The record of one launch."""
        version = Version(commit, None, False)
        return record_of(self.benchmark, [launch], version, BenchmarkPurpose.BISECT)

    def remember(self, line: str) -> None:
        """Tell a line that belongs into the report, too."""
        if line not in self.notes:
            self.notes.append(line)
        self.tell(line)

    def _tree(self, commit: str) -> Sides:
        sides = self.pool.get(commit)
        if sides is None:
            self.first(commit)
            sides = self.pool.get(commit)
        assert sides is not None
        return sides

    def _start(self, sides: Sides) -> Side:
        return replace(sides.current, trees=self.pool.watched(sides.current))

    def _check(self, commit: str, sides: Sides, launch: Launch) -> None:
        if launch.error:
            for line in launch.printed:
                self.tell(f"{short(commit)}: {line}")
            todo = f"the whole output is in {launch.folder / 'output.log'}"
            raise Unmeasurable(commit, launch.error, todo, launch)
        try:
            check_origins(sides, sides.current, launch.origins)
        except GpurunError as error:
            raise Unmeasurable(commit, error.what, error.todo) from None
        if self.terms is None:
            return
        difference = Work.of(launch).difference(self.terms.work, there=" at GOOD")
        if difference is not None:
            raise Unmeasurable(commit, f"its workload differs: {difference}")
