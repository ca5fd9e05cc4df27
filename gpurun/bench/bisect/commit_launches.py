"""Launches of the commits of a search, each in a tree that is made when it is first asked for.

A tree is launched once to warm it up before its launches count. A launch counts only if it ran its
own tree to the end, in as many steps as GOOD takes, and did the work that GOOD does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from gpurun.bench.benchmark_launcher import BenchEngine, Launch, Launcher, Tell, warm_up_rule
from gpurun.bench.bisect.culprit_search import Measure
from gpurun.bench.trees.git import short
from gpurun.bench.trees.module_origins import check_origins
from gpurun.bench.trees.prepared_sides import Sides
from gpurun.bench.workload import Work
from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.engine import Pair, ToldOnce
from gpurun.records.spec import StopRule
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.stop_rules import WHOLE, later_rule

SAME_WORK = (
    "name the same value for all commits, as in args of [bench], or search on one side of the "
    "commit that changed it"
)


class Unmeasurable(Exception):
    """The commit cannot be measured, for the reason of `error`. `launch`: the one that failed."""

    def __init__(self, commit: str, error: GpurunError, launch: Launch | None = None) -> None:
        super().__init__(error.what)
        self.commit, self.error, self.launch = commit, error, launch


@dataclass
class CommitLauncher:
    """Launches commits; GOOD and the two that are compared have a tree. `make` opens that of one.

    `good`: the commit whose first launch sets the steps and the work of all others. `deadline`: of
    `time.monotonic`; from then on no pair is measured again.
    """

    good: str
    launcher: Launcher
    make: Callable[[str], AbstractContextManager[Sides]]
    interruption: SignalGuard
    tell: Tell
    deadline: float = math.inf
    _rule: StopRule | None = field(init=False, default=None)
    _work: Work | None = field(init=False, default=None)
    _trees: dict[str, tuple[Sides, ExitStack]] = field(init=False, default_factory=dict)
    _first_launches: dict[str, Launch] = field(init=False, default_factory=dict)
    _engine: BenchEngine | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.remember = ToldOnce(self.tell)
        """Tells a line that belongs into the report, too."""

    def estimate(self, wanted: Measure) -> float:
        """Seconds that a pair may take, with first launches of trees that are not here."""
        missing = {wanted.commit, wanted.against} - self._trees.keys()
        pair = 0.0 if self._engine is None else self._engine.seconds
        return pair + len(missing) * self.launcher.trials.longest

    def pair(self, wanted: Measure, number: int) -> Pair[Launch]:
        """The pair of this number, `against` first; or `Unmeasurable`, or `NotLive`."""
        both = (wanted.against, wanted.commit)
        self.interruption.hold()
        for commit in self._trees.keys() - {self.good, *both}:
            self.drop(commit)
        self.interruption.release()
        for commit in both:
            if commit not in self._trees:
                self._first(commit)
        against, of = (self._trees[commit][0].current for commit in both)
        assert self._engine is not None
        taken = self._engine.take(against, of, number, turned=not wanted.against_first)
        if taken.in_turn:
            self.remember(f"launches one after the other, not live pairs: {taken.in_turn}")
        self._check(taken.first)
        self._check(taken.second)
        return taken

    def drop(self, commit: str) -> None:
        """Remove the tree of a commit, if it has one."""
        if commit in self._trees:
            sides, stack = self._trees.pop(commit)
            stack.close()
            self.launcher.trials.forget(sides.current.name)

    def close(self) -> None:
        """Remove all trees."""
        for commit in list(self._trees):
            self.drop(commit)

    def _first(self, commit: str) -> None:
        """Make the tree of a commit, and launch it to warm it up; GOOD before all others."""
        if self._work is None and commit != self.good:
            self._first(self.good)
        with ExitStack() as stack:
            try:
                sides = stack.enter_context(self.make(commit))
            except GpurunError as error:
                if error.code not in (ExitCode.BENCHMARK_FAILED, ExitCode.NO_BASELINE):
                    raise  # not the commit's own: no room, no git
                raise Unmeasurable(commit, error) from None
            self._trees[commit] = (sides, stack.pop_all())
        for note in sides.notes:
            self.remember(f"{short(commit)}: {note}")
        self.tell(f"first launch of {short(commit)}, to warm it up")
        steps = self.launcher.benchmark.steps
        launch = self.launcher.run(sides.current, warm_up_rule(steps), first=True)
        self._check(launch)
        if self._rule is None:
            self._rule, self._work = later_rule(steps, [launch.result]), Work.of(launch)
            self._engine = self.launcher.engine(
                self._rule,
                self.remember,
                lambda: self.deadline - time.monotonic(),
                lambda side: self._first_launches[side.name],
            )
        self._first_launches[sides.current.name] = launch

    def _check(self, launch: Launch) -> None:
        """`Unmeasurable` where a launch failed, ran another tree, or did other work than GOOD."""
        commit, failure = launch.start.commit, launch.error
        if not failure and not launch.steps_per_second:
            failure = "no step was measured"
        if failure:
            for line in launch.printed:
                self.tell(f"{short(commit)}: {line}")
            todo = f"the whole output is in {launch.folder / 'output.log'}"
            error = GpurunError(failure, todo, ExitCode.BENCHMARK_FAILED)
            raise Unmeasurable(commit, error, launch)
        sides = self._trees[commit][0]
        try:
            check_origins(sides, sides.current, launch.origins)
        except GpurunError as error:
            raise Unmeasurable(commit, error) from None
        if self._rule is None or self._work is None:
            return
        different = Work.of(launch).difference(self._work, there=" at GOOD")
        steps, most = launch.result.steps, self._rule.max_steps
        if different is None and self._rule != WHOLE and launch.whole and steps < most:
            different = f"it ends after {steps} steps, and GOOD takes {most}"
        if different is not None:
            what = f"its workload differs: {different}"
            raise Unmeasurable(commit, GpurunError(what, SAME_WORK, ExitCode.NO_BASELINE))
