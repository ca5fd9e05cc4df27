"""Launches of a benchmark: isolated and measured like trials, each in the tree that it belongs to.

The first launch of a tree warms it up (files in the page cache, compiled kernels, downloads) and
shows how long a launch must be; what it wrote before its first step is there for the later ones,
and nothing of what any of them writes stays. Later launches all take the same number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.loss_curve import loss_curve
from gpurun.isolation.box import Mode
from gpurun.measure.events import ProcessLog
from gpurun.options import Target, TargetKind
from gpurun.records.benchmark import LossCurve
from gpurun.records.events import OriginsEvent, PlantedEvent
from gpurun.records.failure import Failure
from gpurun.records.result import RunResult
from gpurun.records.spec import StopRule, Trees, TrialSpec
from gpurun.trials.ending import printed
from gpurun.trials.launcher import TrialLauncher
from gpurun.trials.outcome import Outcome
from gpurun.trials.request import LaunchRequest
from gpurun.tuner.settled import Settled

SEED = 1234
WARM_SHARE = 0.5
"""Of a first launch's time: what a later one is thought to take before there was any."""


@dataclass(frozen=True)
class Start:
    """Where and with what launches of one tree start. `trees`: what they record files of.

    `settled`: the settings that they run with. `planted_seconds`: added to each step on purpose.
    """

    name: str
    folder: Path
    python: Path
    variables: Mapping[str, str]
    trees: Trees | None = None
    settled: Settled | None = None
    planted_seconds: float = 0.0


@dataclass(frozen=True)
class Launch:
    """A finished launch. `error`: why it is of no use, "" where it is.

    `parameters`: those of the model that was first called, None where none was. `printed`: the last
    lines of its output. `seconds`: what it took from start to end. `planted`: what slowed it down
    on purpose. `loss_curve`: None where no loss was seen. `failure`: the error with its kind.
    """

    start: Start
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

    @property
    def steps_per_second(self) -> float | None:
        """Training steps a second in the measured window."""
        times = self.result.step_time_ms
        return None if times is None or not times.mean else 1000.0 / times.mean

    @property
    def planted_step_seconds(self) -> float | None:
        """What was added to each step on purpose, as it was measured; None where nothing was."""
        if not self.planted:
            return None
        return sum(one.seconds / max(one.delays, self.result.steps, 1) for one in self.planted)

    @property
    def whole(self) -> bool:
        """Whether the script ended by itself."""
        return self.result.status == "completed"


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
        self.trials = TrialLauncher(folder, mode)
        self._longest_later = 0.0
        self._note = note

    @property
    def longest(self) -> float:
        """Seconds of the longest launch so far."""
        return self.trials.longest

    @property
    def expected(self) -> float:
        """Seconds that another launch may take; a first one is also there to warm its tree up."""
        return self._longest_later or WARM_SHARE * self.longest

    def run(self, start: Start, rule: StopRule, *, first: bool = False) -> Launch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `first`: the launch that warms up its tree.
        """
        done = self._launch(start, rule, first)
        if done.error and not first and self.trials.has_layer(start.name):
            self._note(
                f"a launch on top of what the first one wrote failed ({done.error}): "
                "from here on each starts from the untouched folder"
            )
            self.trials.drop_layer(start.name)
            done = self._launch(start, rule, first)
        return done

    def forget(self, name: str) -> None:
        """Remove what launches of the tree `name` shared: the tree is no more."""
        self.trials.forget(name)

    def close(self) -> None:
        """Remove what only launches needed."""
        self.trials.close()

    def request(self, start: Start, rule: StopRule, *, first: bool = False) -> LaunchRequest:
        """The next launch of a tree, with a run folder of its own."""
        self.launched += 1
        settled = start.settled or Settled({}, self.benchmark.args, {})
        return LaunchRequest(
            name=start.name,
            run_dir=self.folder / "launches" / f"{self.launched:02d}-{start.name}",
            target=Target(TargetKind.SCRIPT, self.benchmark.script, settled.args),
            cwd=start.folder,
            environment=start.variables,
            trial=TrialSpec(stop=rule, seed=SEED, planted_seconds=start.planted_seconds),
            python=str(start.python),
            settings=settled.turned,
            settings_environment=settled.environment,
            training_loaders=settled.training_loaders,
            knob_paths=settled.knob_paths,
            trees=start.trees,
            shared=start.name,
            keep_layer=first,
        )

    def _launch(self, start: Start, rule: StopRule, first: bool) -> Launch:
        outcome = self.trials.run(self.request(start, rule, first=first))
        if not first:
            self._longest_later = max(self._longest_later, outcome.seconds)
        return launch_of(start, outcome)


def launch_of(start: Start, outcome: Outcome) -> Launch:
    """The launch of a benchmark that came of a request."""
    log, failure = outcome.log, outcome.failure
    return Launch(
        start=start,
        result=replace(outcome.result, status=outcome.status),
        error="" if failure is None else failure.text,
        folder=outcome.run_dir,
        seconds=outcome.seconds,
        parameters=parameters_of(log),
        origins=tuple(event for one in outcome.logs for event in one.origins),
        printed=printed(outcome.run_dir),
        planted=() if log is None else log.planted,
        loss_curve=None if log is None else loss_curve(log),
        failure=failure,
    )


def parameters_of(log: ProcessLog | None) -> int | None:
    """Those of the model that a process called first, None where it called none."""
    return log.roots[0].parameters if log is not None and log.roots else None
