"""Launches of a benchmark: isolated and measured like trials, each in the tree that it belongs to.

The first launch of a tree warms it up (files in the page cache, compiled kernels, downloads) and
shows how long a launch must be; what it wrote before its first step is there for the later ones,
and nothing of what any of them writes stays. Later launches all take the same number of steps.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.loss_curve import loss_curve
from gpurun.isolation.box import Box, BoxSpec, Mode, discard, quiet_services
from gpurun.launch.caches import for_short_launches
from gpurun.launch.command import command_line
from gpurun.launch.environment import child_environment
from gpurun.launch.spec_file import write_spec
from gpurun.measure import summarise_run
from gpurun.measure.events import ProcessLog, read_run
from gpurun.options import Target, TargetKind
from gpurun.records.benchmark import LossCurve
from gpurun.records.codec import to_json
from gpurun.records.events import LoaderEvent, OriginsEvent, PlantedEvent
from gpurun.records.result import RunResult
from gpurun.records.spec import RunSpec, StopRule, Trees, TrialSpec
from gpurun.rundir import write_json
from gpurun.trials.ending import ending_status, explained, last_lines, main_log
from gpurun.trials.live_pair import LEAST_STEPS as LEAST_TURN_STEPS
from gpurun.trials.live_pair import make_fifos
from gpurun.trials.live_trials import STRETCH_SECONDS, TURN_SECONDS, PairSide, run_live
from gpurun.trials.supervision import Watch, launch
from gpurun.trials.turn_ratio import TurnRatio
from gpurun.tuner.settled import Settled

WARMUP_STEPS = 10
LEAST_STEPS = 12
"""Fewest measured steps that say anything."""
WINDOW_SECONDS = 4.0
"""What a measured window lasts, where the script trains for so long."""
MOST_STEPS = 5000
SEED = 1234
FIRST_PATIENCE = 1800.0
"""The first launch may be silent for so many seconds: it may download its data or compile."""
LEAST_PATIENCE = 120.0
WARM_SHARE = 0.5
"""Of a first launch's time: what a later one is thought to take before there was any."""
PAIR_SECONDS = 2 * STRETCH_SECONDS + TURN_SECONDS
"""What a live pair measures at most, its start left out."""
SHOWN_LINES = 5
DEFAULT_PREFETCH = 2
"""Batches that each worker of a DataLoader keeps ready unless it is told otherwise."""
FIRST_WINDOW_SECONDS = 2.0
"""What a first launch measures at least: step time, memory, and losses."""

WHOLE = StopRule(
    min_steps=1 << 60, min_seconds=0.0, max_steps=1 << 60, warmup_steps=0, audit_steps=0
)
"""For a script that ends by itself before the window would."""


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
    on purpose. `loss_curve`: None where no loss was seen. `stock`: batches that workers of a loader
    keep ready at most.
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
    stock: int = 0

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


@dataclass(frozen=True)
class LiveLaunches:
    """The launches of a live pair. `ratio`: step time of the second over the first one's.

    `failure`: why there is no ratio, "" where there is one.
    """

    first: Launch
    second: Launch
    ratio: TurnRatio | None
    failure: str


def first_rule(steps: int | None) -> StopRule:
    """The rule of a first launch: `steps` measured ones, None for as many as a window takes."""
    if steps is not None:
        return _rule(steps)
    return StopRule(
        min_steps=WARMUP_STEPS + LEAST_STEPS,
        min_seconds=FIRST_WINDOW_SECONDS,
        max_steps=WARMUP_STEPS + MOST_STEPS,
        warmup_steps=WARMUP_STEPS,
        audit_steps=0,
    )


def later_rule(steps: int | None, first: Iterable[Launch]) -> StopRule:
    """The rule of all later launches, by the first ones (one of each tree): steps alike for all."""
    launches = list(first)
    if steps is None:
        rates = [rate for rate in (one.steps_per_second for one in launches) if rate]
        steps = max((math.ceil(WINDOW_SECONDS * rate) for rate in rates), default=LEAST_STEPS)
        steps = min(max(steps, LEAST_STEPS), MOST_STEPS)
    ended = [one.result.steps - WARMUP_STEPS for one in launches if one.whole]
    # A script that ends by itself must not be in doubt whether it is stopped before.
    if ended and min(ended) <= steps:
        return WHOLE
    return _rule(steps)


def _rule(steps: int) -> StopRule:
    total = WARMUP_STEPS + steps
    return StopRule(total, 0.0, total, WARMUP_STEPS, audit_steps=0)


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
        self.longest = 0.0
        """Seconds of the longest launch so far."""
        self.longest_pair = 0.0
        """Seconds of the longest live pair so far."""
        self._longest_later = 0.0
        self._note = note
        self._layers: dict[str, Path] = {}
        self._stocks: dict[str, int] = {}

    @property
    def expected_pair(self) -> float:
        """Seconds that another live pair may take."""
        return self.longest_pair or WARM_SHARE * self.longest + PAIR_SECONDS

    @property
    def expected(self) -> float:
        """Seconds that another launch may take; a first one is also there to warm its tree up."""
        return self._longest_later or WARM_SHARE * self.longest

    def run(self, start: Start, rule: StopRule, *, first: bool = False) -> Launch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `first`: the launch that warms up its tree.
        """
        done = self._launch(start, rule, first)
        if done.error and not first and start.name in self._layers:
            self._note(
                f"a launch on top of what the first one wrote failed ({done.error}): "
                "from here on each starts from the untouched folder"
            )
            del self._layers[start.name]
            done = self._launch(start, rule, first)
        return done

    def forget(self, name: str) -> None:
        """Remove what launches of the tree `name` shared: the tree is no more."""
        self._layers.pop(name, None)
        for kind in ("layers", "caches"):
            discard(self.folder / kind / name)

    def close(self) -> None:
        """Remove what only launches needed."""
        self._layers.clear()
        for kind in ("layers", "caches"):
            discard(self.folder / kind)

    def run_pair(self, starts: tuple[Start, Start], deadline: float = math.inf) -> LiveLaunches:
        """Launch two trees as a live pair, and wait for the end of both.

        Each is measured in an uninterrupted stretch, and then in turns with the other one. No turn
        begins after the `deadline` (of `time.monotonic`).
        """
        run_dirs = [self._run_dir(start) for start in starts]
        sides = [
            PairSide(
                name=f"the {start.name} side",
                start=partial(self._start_live, start, run_dir),
                run_dir=run_dir,
                patience_seconds=max(LEAST_PATIENCE, 4 * self.longest),
                least_steps=max(LEAST_TURN_STEPS, 2 * self._stocks.get(start.name, 0)),
            )
            for start, run_dir in zip(starts, run_dirs, strict=True)
        ]
        draws = random.Random(SEED + self.launched)
        end = run_live((sides[0], sides[1]), lambda: None, draws, deadline)
        self.longest_pair = max(self.longest_pair, end.seconds)
        launches = [
            _concluded(start, run_dir, code, end.seconds, end.failure if code is None else "")
            for start, run_dir, code in zip(starts, run_dirs, end.exit_codes, strict=True)
        ]
        few = "the turns ended too soon" if end.ratio is None else ""
        return LiveLaunches(launches[0], launches[1], end.ratio, end.failure or few)

    def _start_live(self, start: Start, run_dir: Path) -> Box:
        make_fifos(run_dir / "control")
        spec = self._spec(start, run_dir, _rule(LEAST_STEPS), hold=False)
        write_spec(replace(spec, turns_after_steps=0))
        return Box(self._box(start, run_dir))

    def _launch(self, start: Start, rule: StopRule, first: bool) -> Launch:
        run_dir = self._run_dir(start)
        (run_dir / "control").mkdir()
        write_spec(self._spec(start, run_dir, rule, hold=first))
        patience = FIRST_PATIENCE if first else max(LEAST_PATIENCE, 4 * self.longest)
        watch = Watch(patience, partial(self._keep_layer, start.name) if first else None)
        exit_code, seconds, given_up = launch(self._box(start, run_dir), run_dir, watch)
        self.longest = max(self.longest, seconds)
        if not first:
            self._longest_later = max(self._longest_later, seconds)
        done = _concluded(start, run_dir, exit_code, seconds, given_up)
        self._stocks[start.name] = done.stock
        return done

    def _run_dir(self, start: Start) -> Path:
        """The folder of the next launch, which is made here."""
        self.launched += 1
        run_dir = self.folder / "launches" / f"{self.launched:02d}-{start.name}"
        run_dir.mkdir(parents=True)
        return run_dir

    def _spec(self, start: Start, run_dir: Path, rule: StopRule, *, hold: bool) -> RunSpec:
        trial = TrialSpec(
            stop=rule, seed=SEED, hold_at_first_step=hold, planted_seconds=start.planted_seconds
        )
        spec = RunSpec(str(run_dir), os.getpid(), trial=trial, trees=start.trees)
        if start.settled is None:
            return spec
        return replace(
            spec,
            settings=start.settled.turned,
            training_loaders=start.settled.training_loaders,
            knob_paths=start.settled.knob_paths,
        )

    def _box(self, start: Start, run_dir: Path) -> BoxSpec:
        cache = self.folder / "caches" / start.name
        cache.mkdir(parents=True, exist_ok=True)
        variables = quiet_services(child_environment(run_dir / "spec.json", start.variables))
        environment = for_short_launches(variables, cache, str(start.python))
        args = self.benchmark.args
        if start.settled is not None:
            environment.update(start.settled.environment)
            args = start.settled.args
        target = Target(TargetKind.SCRIPT, self.benchmark.script, args)
        layer = self._layers.get(start.name)
        return BoxSpec(
            argv=command_line(target, str(start.python)),
            env=environment,
            cwd=start.folder,
            writable=(run_dir, cache),
            layers=() if layer is None else (layer,),
            mode=self.mode,
            log=run_dir / "output.log",
        )

    def _keep_layer(self, name: str, box: Box, go: Callable[[], None]) -> None:
        layer = self.folder / "layers" / name
        if box.capture_layer(layer):
            self._layers[name] = layer
        go()


def _concluded(
    start: Start,
    run_dir: Path,
    exit_code: int | None,
    seconds: float,
    given_up: str,
) -> Launch:
    logs = read_run(run_dir).processes
    status = ending_status(logs, exit_code, bool(given_up))
    result = summarise_run(run_dir, exit_code=exit_code, wall_seconds=seconds, status=status)
    status, reason = explained(status, run_dir, result)
    if status in ("stopped", "completed"):
        reason = "" if result.measured_steps else _without_steps(result, logs)
    else:
        reason = given_up or reason or status
    result = replace(result, status=status)
    write_json(run_dir / "result.json", to_json(result))
    log = main_log(logs)
    return Launch(
        start=start,
        result=result,
        error=reason,
        folder=run_dir,
        seconds=seconds,
        parameters=parameters_of(log),
        origins=tuple(event for one in logs for event in one.origins),
        printed=tuple(last_lines(run_dir / "output.log")[-SHOWN_LINES:]),
        planted=() if log is None else log.planted,
        loss_curve=None if log is None else loss_curve(log),
        stock=0 if log is None else max(map(_stock, log.loaders), default=0),
    )


def _stock(loader: LoaderEvent) -> int:
    return loader.workers * (loader.prefetch_factor or DEFAULT_PREFETCH)


def parameters_of(log: ProcessLog | None) -> int | None:
    """Those of the model that a process called first, None where it called none."""
    return log.roots[0].parameters if log is not None and log.roots else None


def _without_steps(result: RunResult, logs: tuple[ProcessLog, ...]) -> str:
    if result.steps:
        return f"it ended after {result.steps} training steps, before any could be measured"
    if not any(log.torch is not None for log in logs):
        return "it imports no torch, so that there are no training steps to measure"
    return "no training step was seen: there is nothing to measure"
