"""Launches of a benchmark: isolated and measured like trials, each in the tree that it belongs to.

The first launch of a tree warms it up (files in the page cache, compiled kernels, downloads) and
shows how long a launch must be. Later launches see the files that it wrote before its first step,
and all take the same number of steps. No file that a launch writes stays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.prepared_sides import Side
from gpurun.isolation.available_modes import require
from gpurun.isolation.isolation_mode import Mode
from gpurun.measure.optional_figures import known
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.pairs.engine import PairEngine, PairOutcome
from gpurun.pairs.live_launches import LiveLaunches
from gpurun.pairs.obstacle import live_pair_obstacle, peaks_of
from gpurun.records.bench.benchmark import LossCurve
from gpurun.records.events import OriginsEvent, PlantedEvent
from gpurun.records.failure import Failure
from gpurun.records.result import RunResult
from gpurun.records.script_arguments import masked_text
from gpurun.records.spec import SEED, StopRule, TrialSpec
from gpurun.stats.loss_curve_points import curve_of
from gpurun.trials.applied_settings import AppliedSettings
from gpurun.trials.failure_cause import printed
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.stop_rules import first_rule
from gpurun.trials.trial_launcher import TrialLauncher

Tell = Callable[[str], None]
"""Hears what happens, a line each."""
STEADY_MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
"""For glibc, which learns from freed blocks whether large ones come from its heap or the kernel: by
chance, so that launches of one script differ by 10 % and more. The user's own value wins."""
WARM_UP_SECONDS = 1.0
"""The launch before the pairs measures step time, memory and losses."""


def isolation(folder: Path, in_place: bool, note: Callable[[str], None]) -> Mode:
    """How launches in `folder` are isolated; `note` hears what is imperfect."""
    mode, imperfection = require(folder, in_place=in_place)
    if imperfection:
        note(imperfection)
    return mode


@dataclass(frozen=True)
class Launch:
    """A finished launch. `error`: why it is of no use, "" where it is.

    `parameters`: those of the model that was first called, None where none was. `printed`: the last
    lines of its output. `seconds`: what it took from start to end. `planted`: what slowed it down
    on purpose. `loss_curve`: None where no loss was seen. `failure`: the error with its kind.
    `files_opened`: those of its tree, from the top folder; None where some may be missing.
    """

    start: Side
    result: RunResult
    error: str
    folder: Path
    seconds: float
    parameters: int | None = None
    origins: tuple[OriginsEvent, ...] = ()
    printed: tuple[str, ...] = ()
    planted: tuple[PlantedEvent, ...] = ()
    loss_curve: LossCurve | None = None
    failure: Failure | None = None
    files_opened: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.start.name

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second in the measured window."""
        times = self.result.step_time_ms
        return None if times is None or not times.mean else 1000.0 / times.mean

    @property
    def planted_step_seconds(self) -> float | None:
        """The measured delay that was planted in each step; None without one."""
        if not self.planted:
            return None
        return sum(one.seconds / max(one.delays, self.result.steps, 1) for one in self.planted)

    @property
    def whole(self) -> bool:
        """True if the script ended by itself."""
        return self.result.status == "completed"


BenchEngine = PairEngine[Side, Launch]


def warm_up_rule(steps: int | None) -> StopRule:
    """The rule of the launches that come before pairs: shorter than those that are judged."""
    rule = first_rule(steps)
    return rule if steps is not None else replace(rule, min_seconds=WARM_UP_SECONDS)


class Launcher:
    """Launches one benchmark, one launch at a time. `close` removes what launches shared.

    `folder` receives a run folder for each launch. `note` hears what is not as it should be.
    """

    def __init__(
        self, benchmark: Benchmark, folder: Path, mode: Mode, note: Callable[[str], None]
    ) -> None:
        self.benchmark = benchmark
        self.folder = folder
        self.mode = mode
        self.launched = 0
        self.trials = TrialLauncher(folder, mode, tell=note)
        self._live = LiveLaunches(self.trials)
        self._note = note

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `first`: the launch that warms up its tree.
        """
        outcome = self.trials.run(self.request(start, rule, first=first))
        done = launch_of(start, outcome, self.benchmark.args)
        if done.error and not first and self.trials.has_layer(start.name):
            self._note(
                f"a launch failed on top of the first launch's files ({done.error}): "
                "from now on each launch starts from the original folder"
            )
            self.trials.drop_layer(start.name)
            return self.run(start, rule)
        return done

    def run_pair(self, starts: tuple[Side, Side], rule: StopRule) -> PairOutcome[Launch]:
        """Launch two trees as a live pair, and wait for the end of both.

        Only the warm-up of `rule` counts: turns last until the ratio is known.
        """
        requests = [self.request(start, rule) for start in starts]
        one, other = (replace(each, name=f"the {each.name} side") for each in requests)
        both = self._live.run_pair(one, other)
        first, second = (
            None if outcome is None else launch_of(start, outcome, self.benchmark.args)
            for start, outcome in zip(starts, (both.first, both.second), strict=True)
        )
        return PairOutcome(first, second, both.ratio, both.failure)

    def engine(
        self,
        rule: StopRule,
        note: Callable[[str], None],
        left: Callable[[], float],
        warmed_up: Callable[[Side], Launch],
    ) -> BenchEngine:
        """The pair engine of one comparison or search. `rule`: of launches in turn.

        `note` hears what disturbed pairs; `left`: seconds until no further pair may begin.
        `warmed_up`: the first launch of a tree.
        """
        return PairEngine(
            lambda *both: self.run_pair(both, rule),
            lambda start: self.run(start, rule),
            note,
            left,
            obstacle=lambda *both: self.obstacle([warmed_up(start) for start in both]),
            key=lambda start: start.name,
            both_run=True,
        )

    def obstacle(self, first: Sequence[Launch]) -> str:
        """Why launches like these cannot be live pairs, "" if they can."""
        if any(launch.whole for launch in first):
            return "the script is over too soon to take turns"
        results = [launch.result for launch in first]
        gpus = known(d.memory_total_bytes for result in results for d in result.devices)
        peaks = list(map(peaks_of, results))
        reason = self._live.in_turn_reason(ranks=False)
        return reason or live_pair_obstacle(results, peaks, min(gpus, default=None))

    def close(self) -> None:
        """Remove what only launches needed."""
        self.trials.close()

    def request(self, start: Side, rule: StopRule, *, first: bool = False) -> LaunchRequest:
        """The next launch of a tree, with a run folder of its own."""
        self.launched += 1
        applied = start.applied or AppliedSettings({}, self.benchmark.args, {})
        return LaunchRequest(
            name=start.name,
            run_dir=self.folder / "launches" / f"{self.launched:02d}-{start.name}",
            target=Target(TargetKind.SCRIPT, self.benchmark.script, applied.args),
            cwd=start.folder,
            environment={**STEADY_MALLOC, **start.variables},
            trial=TrialSpec(stop=rule, seed=SEED, planted_seconds=start.planted_seconds),
            python=str(start.python),
            settings=applied.turned,
            settings_environment=applied.environment,
            training_loaders=applied.training_loaders,
            knob_paths=applied.knob_paths,
            trees=start.trees,
            shared=start.name,
            keep_layer=first,
        )


def launch_of(start: Side, outcome: Outcome, args: Sequence[str]) -> Launch:
    """The launch of a benchmark that came of a request. `args`: those of its script."""
    log, failure = outcome.log, outcome.failure
    if failure is not None:
        failure = replace(failure, text=masked_text(failure.text, args))
    roots = () if log is None else log.roots
    clock = None if log is None else step_clock(log)
    return Launch(
        start=start,
        result=replace(outcome.result, status=outcome.status),
        error="" if failure is None else failure.text,
        folder=outcome.run_dir,
        seconds=outcome.seconds,
        parameters=roots[0].parameters if roots else None,
        origins=tuple(event for one in outcome.logs for event in one.origins),
        printed=printed(outcome.run_dir),
        planted=() if log is None else log.planted,
        loss_curve=None if clock is None else curve_of(clock.steps.loss),
        failure=failure,
        files_opened=_files_opened(start, outcome.logs),
    )


def _files_opened(start: Side, logs: Sequence[ProcessLog]) -> tuple[str, ...] | None:
    """None unless the script itself is among them: else the wrong folder was watched."""
    told = [log.files_opened for log in logs if log.files_opened is not None]
    if not told or any(one.files is None for one in told):
        return None
    files = {file for one in told for file in one.files or ()}
    root = os.path.realpath(start.tree.root)
    modules = [module for log in logs for event in log.origins for module in event.own]
    paths = [(name, os.path.relpath(os.path.realpath(file), root)) for name, file in modules]
    if not any(name == "__main__" and path in files for name, path in paths):
        return None
    return tuple(sorted(files | {path for _, path in paths}))
