"""Launches trials in isolation, one at a time, and waits for their ends."""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.isolation.box import Box, BoxSpec, Mode, discard
from gpurun.isolation.services import quiet_services
from gpurun.knobs import find
from gpurun.launch.caches import for_short_launches
from gpurun.launch.command import agent_command_line, command_line
from gpurun.launch.environment import child_environment
from gpurun.launch.spec_file import write_spec
from gpurun.measure import summarise_run
from gpurun.measure.events import read_run
from gpurun.measure.figures import known
from gpurun.measure.sampler import Sampler
from gpurun.options import Options
from gpurun.records.codec import to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import ORDER, Exchange, RunSpec, Setting, TrialSpec
from gpurun.records.tuning import TrialRecord
from gpurun.rundir import write_json
from gpurun.trials.ending import ending_status, failure_of, main_log, while_compiling
from gpurun.trials.live_pair import LEAST_STEPS, make_fifos
from gpurun.trials.live_trials import PairSide, run_live
from gpurun.trials.outcome import STATUSES
from gpurun.trials.prestart import Standby, places, several, what_to_import
from gpurun.trials.progress import Progress
from gpurun.trials.supervision import Supervision, wait
from gpurun.trials.turn_ratio import TurnRatio
from gpurun.tuner import asking
from gpurun.tuner.asking import KnobRaised
from gpurun.tuner.evidence import evidence
from gpurun.tuner.hidden_ranks import hidden_ranks
from gpurun.tuner.trial import Request, Trial

BASE_SEED = 1234
PATIENCE_SECONDS = 120.0
"""A trial may be silent for so long at least; longer where earlier ones took long."""
LIMIT_SECONDS = 600.0
"""A trial may take so long at least."""
GRACE_SECONDS = 10.0
"""Once a rank has seen enough and left, the others have so long: they may wait for it forever."""


class Laboratory:
    """Launches the trials of one tuning, numbers them, and keeps their folders.

    `close` removes what they shared: caches, and what the script wrote before its first step.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        mode: Mode,
        environment: Mapping[str, str],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.options = options
        self.folder = folder
        self.mode = mode
        self.trials: list[TrialRecord] = []
        self.layers: tuple[Path, ...] = ()
        self.layer_bytes = 0
        self.training_loaders: tuple[str, ...] = ()
        self.standby_modules: tuple[str, ...] = ()
        """What a process imports that is started early; none are if there is nothing."""
        self._standby = Standby()
        self._hidden = hidden_ranks(options, mode)
        self._environment = dict(environment)
        if self._hidden is not None:
            self._environment = self._hidden.environment(environment)
        self._on_progress = on_progress
        self._layer = folder / "layer"
        self._cache = folder / "cache"
        self._cache.mkdir(parents=True, exist_ok=True)

    def run(self, request: Request) -> Trial:
        """Launch one trial and wait for its end; KeyboardInterrupt kills it first."""
        number = len(self.trials) + 1
        run_dir = self._run_dir(number)
        try:
            order = self._box(run_dir, request.settings)
        except KnobRaised as raised:
            self._standby.drop(run_dir)
            run_dir.mkdir(parents=True)
            trial = _not_launched(number, os.path.relpath(run_dir, self.folder), request, raised)
        else:
            trial = self._launch(number, run_dir, request, order)
        self.trials.append(trial.record)
        write_json(run_dir / "trial.json", to_json(trial.record))
        return trial

    def run_pair(self, requests: tuple[Request, Request]) -> LiveTrials:
        """Launch two trials as a live pair and wait for its end.

        It is over by the limit of the requests; a pair that had few rounds by then is a failure.
        """
        deadline = time.monotonic() + min(request.limit_seconds for request in requests)
        first = len(self.trials) + 1
        run_dirs = [self._run_dir(first + coming) for coming in (0, 1)]
        try:
            orders = [self._box(d, r.settings) for d, r in zip(run_dirs, requests, strict=True)]
        except KnobRaised as raised:
            return LiveTrials(None, None, None, str(raised))
        sides = [
            PairSide(
                name=request.purpose,
                start=partial(self._start_side, order, run_dir, request),
                run_dir=run_dir,
                patience_seconds=min(self._patience(request)),
                least_steps=_least_steps(request),
            )
            for order, run_dir, request in zip(orders, run_dirs, requests, strict=True)
        ]
        draws = random.Random(requests[0].seed_offset)
        try:
            end = run_live((sides[0], sides[1]), self._standby.stop, draws, deadline)
        finally:
            self._standby.go_on()
        # they shared the time: each side counts for half of it
        trials = [
            self._conclude(
                first + n,
                run_dirs[n],
                requests[n],
                code,
                end.seconds / 2,
                Failure(FailureKind.HUNG, end.failure) if end.failure and code is None else None,
            )
            for n, code in enumerate(end.exit_codes)
        ]
        for run_dir, trial in zip(run_dirs, trials, strict=True):
            self.trials.append(trial.record)
            write_json(run_dir / "trial.json", to_json(trial.record))
        return LiveTrials(trials[0], trials[1], end.ratio, end.failure)

    def _start_side(self, order: BoxSpec, run_dir: Path, request: Request) -> Box:
        """One side of a live pair, by the process that waits for it if there is one."""
        waiting = self._standby.take(order, run_dir)
        make_fifos(run_dir / "control")
        spec = self._spec(run_dir, request)
        write_spec(spec)
        if waiting is not None:
            write_json(run_dir / "control" / ORDER, to_json(spec))
        return waiting or Box(order)

    @property
    def in_turn_only(self) -> str:
        """Why trials of this tuning cannot be live pairs, "" if they can."""
        if self._hidden is not None or self.options.elastic:
            return "the script runs in several ranks"
        if self.mode is Mode.IN_PLACE:
            return "trials work on the real files"
        return ""

    def close(self) -> None:
        """End what waits, and remove what only trials needed."""
        self._standby.close()
        self.layers = ()
        for folder in (self._cache, self._layer):
            discard(folder)

    def drop_layers(self) -> None:
        """Forget what the first trial left behind: a later one could not live with it."""
        self.layers = ()

    def _launch(self, number: int, run_dir: Path, request: Request, order: BoxSpec) -> Trial:
        started = time.monotonic()
        waiting = self._standby.take(order, run_dir)
        with closing(Sampler(run_dir)) as sampler:
            sampler.look_around()
            spec = self._spec(run_dir, request)
            (run_dir / "control").mkdir(parents=True, exist_ok=True)
            write_spec(spec)
            if waiting is not None:
                write_json(run_dir / "control" / ORDER, to_json(spec))
            try:
                with waiting or Box(order) as box:
                    self._start_next(number + 1, request)
                    sampler.beside = self._standby.pids
                    given_up = wait(box, run_dir, sampler, self._watch(run_dir, request))
                    if given_up:
                        box.kill()
                    exit_code = None if given_up else box.poll()
            finally:
                self._standby.go_on()
        seconds = time.monotonic() - started
        return self._conclude(number, run_dir, request, exit_code, seconds, given_up)

    # -- before --------------------------------------------------------------------------------

    def _run_dir(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:02d}"

    def _start_next(self, number: int, request: Request) -> None:
        """Have the processes of the next trials import what they need meanwhile."""
        if not self.standby_modules:
            return
        following = request.following or itertools.repeat(request.settings)
        for coming, settings in enumerate(itertools.islice(following, places()), number):
            run_dir = self._run_dir(coming)
            try:
                order = self._box(run_dir, settings)
            except KnobRaised:
                continue
            if self._standby.fits(order, run_dir):
                continue
            self._standby.drop(run_dir)
            (run_dir / "control").mkdir(parents=True)
            spec = RunSpec(str(run_dir), os.getpid(), standby=self.standby_modules)
            write_spec(spec)
            self._standby.start(order, run_dir)

    def _holds(self, request: Request) -> bool:
        """Whether the trial waits at its first step, until those beside it are stopped."""
        return request.hold or bool(self.standby_modules)

    def _spec(self, run_dir: Path, request: Request) -> RunSpec:
        return RunSpec(
            run_dir=str(run_dir),
            launcher_pid=os.getpid(),
            settings=tuple(Setting(k, v) for k, v in request.settings.items()),
            training_loaders=self.training_loaders,
            knob_paths=self.options.knob_paths,
            parallel=None if self._hidden is None else self._hidden.parallel(BASE_SEED),
            exchange=Exchange(options=self.options.ddp_options),
            trial=TrialSpec(
                stop=request.stop,
                seed=BASE_SEED,
                seed_offset=request.seed_offset,
                hold_at_first_step=self._holds(request) and not request.live,
                rounded=request.rounded,
            ),
            turns_after_steps=0 if request.live else None,
        )

    def _box(self, run_dir: Path, settings: Mapping[str, Any]) -> BoxSpec:
        environment = quiet_services(child_environment(run_dir / "spec.json", self._environment))
        arguments = self.options.target.args
        for name, value in settings.items():
            try:
                knob = find(name, self.options.knob_paths, self.options.tuned_arguments)
                environment.update(asking.environment(knob, value))
                arguments = asking.arguments(knob, value, arguments)
            except (KnobRaised, GpurunError) as error:
                raise KnobRaised(f"{name}: {error}") from error
        target = replace(self.options.target, args=arguments)
        argv = self._argv(replace(self.options, target=target), run_dir)
        return BoxSpec(
            argv=argv,
            env=for_short_launches(environment, self._cache, argv[0]),
            cwd=Path.cwd(),
            writable=(run_dir, self._cache),
            layers=self.layers,
            mode=self.mode,
            log=run_dir / "output.log",
            scratch=None,
        )

    def _argv(self, options: Options, run_dir: Path) -> tuple[str, ...]:
        if self._hidden is not None:
            return self._hidden.argv(options.target, run_dir, self._cache)
        if options.elastic:
            return agent_command_line(options.torchrun, options.target)
        return command_line(options.target)

    # -- while it runs -------------------------------------------------------------------------

    def _watch(self, run_dir: Path, request: Request) -> Supervision:
        patience, limit = self._patience(request)
        told, left = -1, math.inf

        def at_first_step(box: Box, go: Callable[[], None]) -> None:
            if request.hold:
                self._keep_layer(box)
            self._standby.stop()
            go()
            if request.hold and several():
                self._start_second(run_dir, request)

        def look(box: Box, progress: Progress, seconds: float) -> Failure | None:
            nonlocal told, left
            if progress.steps != told:
                told = progress.steps
                self._on_progress(told, request.stop.min_steps)
            left = min(left, seconds if progress.stopped else math.inf)
            if seconds - left > GRACE_SECONDS:
                box.kill()
                return None
            text = f"not done after {limit:.3g} s"
            return Failure(FailureKind.OUT_OF_TIME, text) if seconds > limit else None

        return Supervision(patience, at_first_step if self._holds(request) else None, look)

    def _start_second(self, run_dir: Path, request: Request) -> None:
        """Start the second trial's process while the first is measured: only that one is disturbed,
        and of it nothing is claimed.
        """
        log = next((x for x in read_run(run_dir).processes if x.imports is not None), None)
        modules = None if log is None else what_to_import(self.options, log)
        if isinstance(modules, tuple):
            self.standby_modules = modules
            self._start_next(len(self.trials) + 2, replace(request, following=[request.settings]))

    def _patience(self, request: Request) -> tuple[float, float]:
        """Seconds of silence, and seconds in all, after which the trial is given up."""
        if request.hold:
            return request.limit_seconds, request.limit_seconds
        longest = max((t.seconds for t in self.trials), default=0.0)
        limit = min(request.limit_seconds, max(LIMIT_SECONDS, 10 * longest))
        usual = request.patience_seconds or max(PATIENCE_SECONDS, 4 * longest)
        return self.options.patience_seconds or usual, limit

    def _keep_layer(self, box: Box) -> None:
        self.layer_bytes = box.capture_layer(self._layer)
        if self.layer_bytes:
            self.layers = (self._layer,)

    # -- afterwards ----------------------------------------------------------------------------

    def _conclude(
        self,
        number: int,
        run_dir: Path,
        request: Request,
        exit_code: int | None,
        seconds: float,
        given_up: Failure | None,
    ) -> Trial:
        ended_ns = time.time_ns()
        logs = read_run(run_dir).processes
        status = ending_status(logs, exit_code, bool(given_up))
        result = summarise_run(run_dir, exit_code=exit_code, wall_seconds=seconds, status=status)
        write_json(run_dir / "result.json", to_json(result))
        if given_up is not None:
            failure: Failure | None = while_compiling(logs, ended_ns, given_up)
        else:
            failure = failure_of(logs, run_dir, result, tuple(request.settings))
        if failure is not None and failure.kind is not FailureKind.TOO_FEW_STEPS:
            status = "timeout" if failure.timed_out else STATUSES.get(failure.kind, "failed")
        record = TrialRecord(
            number=number,
            purpose=request.purpose,
            knobs=dict(request.settings),
            status=status,
            samples_per_second=result.samples_per_second,
            step_time_ms=result.step_time_ms,
            peak_memory_bytes=result.peak_memory_bytes,
            final_loss=result.final_loss,
            seconds=seconds,
            reason="" if failure is None else failure.text,
            run_dir=os.path.relpath(run_dir, self.folder),
            others_cpu_percent=None if result.host is None else result.host.others_cpu_percent,
            foreign_processes=max(known(d.foreign_processes for d in result.devices), default=None),
        )
        log = main_log(logs)
        shown = None if log is None else evidence(log, request.seed_offset, request.rounded)
        return Trial(record, result, log, shown, exit_code, self.options.aim)


@dataclass(frozen=True)
class LiveTrials:
    """Both sides of a live pair and the ratio of their step times, second over first.

    `failure`: why there is no ratio, "" where there is one. A side is None if it was not launched.
    """

    first: Trial | None
    second: Trial | None
    ratio: TurnRatio | None
    failure: str


def _least_steps(request: Request) -> int:
    """Steps of a turn: as many as empty the stock of the loader's workers twice."""
    workers = int(request.settings.get("loader_workers") or 0)
    prefetch = int(request.settings.get("loader_prefetch") or 2)
    return max(LEAST_STEPS, 2 * workers * prefetch)


def _not_launched(number: int, run_dir: str, request: Request, raised: KnobRaised) -> Trial:
    """The record of settings with which nothing could be launched."""
    record = TrialRecord(
        number=number,
        purpose=request.purpose,
        knobs=dict(request.settings),
        status="skipped",
        samples_per_second=None,
        step_time_ms=None,
        peak_memory_bytes=None,
        final_loss=None,
        seconds=0.0,
        reason=str(raised),
        run_dir=run_dir,
    )
    return Trial(record, None, None, None, None)
