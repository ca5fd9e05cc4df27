"""One trial: a short launch of the script in isolation, and what became of it."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.isolation.box import Box, BoxSpec, Mode, discard
from gpurun.isolation.services import quiet_services
from gpurun.knobs import find
from gpurun.launch.command import agent_command_line, command_line
from gpurun.launch.environment import child_environment
from gpurun.measure import summarise_run
from gpurun.measure.events import ProcessLog, read_run
from gpurun.measure.sampler import Sampler
from gpurun.options import Objective, Options
from gpurun.records.codec import to_json
from gpurun.records.result import RunResult, status_of
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.records.tuning import TrialRecord
from gpurun.rundir import write_json
from gpurun.tuner import asking
from gpurun.tuner.asking import KnobRaised
from gpurun.tuner.evidence import Evidence, evidence
from gpurun.tuner.plan import NEEDED_STEPS
from gpurun.tuner.progress import Progress

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 0.5
BASE_SEED = 1234
PATIENCE_SECONDS = 120.0
"""A trial may be silent for so long at least; longer where earlier ones took long."""
LIMIT_SECONDS = 600.0
"""A trial may take so long at least."""
GRACE_SECONDS = 10.0
"""Once a rank has seen enough and left, the others have so long: they may wait for it forever."""
OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|an't allocate memory|annot allocate memory|MemoryError"
    r"|_ALLOC_FAILED"
)
EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Warning)\b")
END_WELL = "let it end with exit code 0, or train for longer than a trial lasts"
"""What to do about a script that trains and then ends otherwise on purpose."""
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Trial:
    """A finished trial. `result`, `log` and `evidence` are None where nothing was recorded."""

    record: TrialRecord
    result: RunResult | None
    log: ProcessLog | None
    evidence: Evidence | None
    exit_code: int | None
    objective: Objective = Objective.THROUGHPUT

    @property
    def score(self) -> float | None:
        """How good it is for the tuning's objective, the higher the better; None if it failed."""
        if self.objective is Objective.THROUGHPUT or self.throughput is None:
            return self.throughput
        peak = self.record.peak_memory_bytes
        return None if not peak else 1.0 / peak

    @property
    def throughput(self) -> float | None:
        """Samples (or steps, where samples cannot be counted) a second; None if it failed."""
        if self.record.status not in ("stopped", "completed") or self.result is None:
            return None
        if self.result.samples_per_second is not None:
            return self.result.samples_per_second
        mean = self.result.step_time_ms
        return None if mean is None else 1000.0 / mean.mean


@dataclass(frozen=True)
class Request:
    """What to launch: settings by knob, how long, and under which seeds."""

    purpose: str
    settings: Mapping[str, Any]
    stop: StopRule
    seed_offset: int = 0
    hold: bool = False
    patience_seconds: float | None = None
    """A trial that records and prints nothing for so long hangs; None: by what earlier ones took.
    One that holds (the first) may be silent to its limit: it may have to download its data."""
    limit_seconds: float = math.inf
    """A trial is given up after so long at most, and earlier by what others took."""


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
        self._environment = dict(environment)
        self._on_progress = on_progress
        self._layer = folder / "layer"
        self._cache = folder / "cache"
        self._cache.mkdir(parents=True, exist_ok=True)

    def run(self, request: Request) -> Trial:
        """Launch one trial and wait for its end; KeyboardInterrupt kills it first."""
        number = len(self.trials) + 1
        run_dir = self.folder / "trials" / f"{number:02d}"
        (run_dir / "control").mkdir(parents=True)
        try:
            order = self._box(run_dir, request)
        except KnobRaised as raised:
            trial = _not_launched(number, os.path.relpath(run_dir, self.folder), request, raised)
        else:
            trial = self._launch(number, run_dir, request, order)
        self.trials.append(trial.record)
        write_json(run_dir / "trial.json", to_json(trial.record))
        return trial

    def close(self) -> None:
        """Remove what only trials needed."""
        self.layers = ()
        for folder in (self._cache, self._layer):
            discard(folder)

    def drop_layers(self) -> None:
        """Forget what the first trial left behind: a later one could not live with it."""
        self.layers = ()

    def _launch(self, number: int, run_dir: Path, request: Request, order: BoxSpec) -> Trial:
        self._write_spec(run_dir, request)
        started = time.monotonic()
        with Box(order) as box:
            given_up = self._watch(box, run_dir, request)
            if given_up is not None:
                box.kill()
            exit_code = None if given_up else box.poll()
        seconds = time.monotonic() - started
        return self._conclude(number, run_dir, request, exit_code, seconds, given_up)

    # -- before --------------------------------------------------------------------------------

    def _write_spec(self, run_dir: Path, request: Request) -> None:
        spec = RunSpec(
            run_dir=str(run_dir),
            launcher_pid=os.getpid(),
            settings=tuple(Setting(k, v) for k, v in request.settings.items()),
            training_loaders=self.training_loaders,
            knob_paths=self.options.knob_paths,
            trial=TrialSpec(
                stop=request.stop,
                seed=BASE_SEED,
                seed_offset=request.seed_offset,
                hold_at_first_step=request.hold,
            ),
        )
        write_json(run_dir / "spec.json", to_json(spec))

    def _box(self, run_dir: Path, request: Request) -> BoxSpec:
        environment = quiet_services(child_environment(run_dir / "spec.json", self._environment))
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self._cache / "inductor"))
        environment.setdefault("PYTHONHASHSEED", "0")
        arguments = self.options.target.args
        for name, value in request.settings.items():
            try:
                knob = find(name, self.options.knob_paths, self.options.tuned_arguments)
                environment.update(asking.environment(knob, value))
                arguments = asking.arguments(knob, value, arguments)
            except (KnobRaised, GpurunError) as error:
                raise KnobRaised(f"{name}: {error}") from error
        target = replace(self.options.target, args=arguments)
        return BoxSpec(
            argv=self._argv(replace(self.options, target=target)),
            env=environment,
            cwd=Path.cwd(),
            writable=(run_dir, self._cache),
            layers=self.layers,
            mode=self.mode,
            log=run_dir / "output.log",
            scratch=None,
        )

    def _argv(self, options: Options) -> tuple[str, ...]:
        if options.elastic:
            return agent_command_line(options.torchrun, options.target)
        return command_line(options.target)

    # -- while it runs -------------------------------------------------------------------------

    def _watch(self, box: Box, run_dir: Path, request: Request) -> str | None:
        """Wait for the end; why the trial had to be given up, None if it ended by itself."""
        progress = Progress(run_dir, run_dir / "output.log")
        sampler = Sampler(run_dir)
        patience, limit = self._patience(request)
        began = changed = sampled = time.monotonic()
        held = request.hold
        stopped: float | None = None
        try:
            while box.poll() is None:
                time.sleep(POLL_SECONDS)
                moment = time.monotonic()
                if held and (run_dir / "control" / "first_step").exists():
                    held = False
                    self._keep_layer(box)
                    (run_dir / "control" / "go").touch()
                if progress.advanced():
                    changed = moment
                    self._on_progress(progress.steps, request.stop.min_steps)
                if moment - sampled > SAMPLE_SECONDS:
                    sampled = moment
                    sampler.tick(box.pid)
                if progress.stopped and stopped is None:
                    stopped = moment
                if stopped is not None and moment - stopped > GRACE_SECONDS:
                    box.kill()
                elif moment - changed > patience:
                    return f"hangs: given up after {patience:.3g} s without a sign of life"
                elif moment - began > limit:
                    return f"not done after {limit:.3g} s"
        finally:
            sampler.close()
        return None

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
        given_up: str | None,
    ) -> Trial:
        logs = read_run(run_dir).processes
        status = _status(logs, exit_code, given_up is not None)
        result = summarise_run(run_dir, exit_code=exit_code, wall_seconds=seconds, status=status)
        write_json(run_dir / "result.json", to_json(result))
        status, reason = _explained(status, run_dir, result, request)
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
            reason=given_up or reason,
            run_dir=os.path.relpath(run_dir, self.folder),
            others_cpu_percent=None if result.host is None else result.host.others_cpu_percent,
        )
        log = main_log(logs)
        shown = None if log is None else evidence(log, request.seed_offset)
        objective = self.options.objective or Objective.THROUGHPUT
        return Trial(record, result, log, shown, exit_code, objective)


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


def main_log(logs: tuple[ProcessLog, ...]) -> ProcessLog | None:
    """The process that trains: rank 0, else the one with most steps, else the first."""
    if not logs:
        return None
    return max(logs, key=lambda x: (sum(map(len, x.steps.values())), -(x.process.rank or 0)))


def _status(logs: tuple[ProcessLog, ...], exit_code: int | None, timed_out: bool) -> str:
    if timed_out:
        return "timeout"
    # A rank that has seen enough leaves the others in the lurch: how they end means nothing.
    if any(log.stop is not None for log in logs):
        return "stopped"
    return status_of(exit_code)


def _explained(status: str, run_dir: Path, result: RunResult, request: Request) -> tuple[str, str]:
    """The final status and, where the trial is of no use, why."""
    if status in ("failed", "killed"):
        if result.exit_code == 128 + signal.SIGKILL:
            return "oom", "killed (SIGKILL), most likely for memory"
        said = last_words(run_dir / "output.log")
        if EXCEPTION.match(said):
            return ("oom" if OUT_OF_MEMORY.search(said) else status), said
        told = f"{_ending(result)}{f', after it printed: {said}' if said else ''}"
        if status == "failed" and not request.settings and result.steps >= NEEDED_STEPS:
            told += f"; it took {result.steps} steps: {END_WELL}"
        return status, told
    for outcome in result.knobs:
        if outcome.knob in request.settings and outcome.outcome == "failed":
            return "skipped", f"{outcome.knob}: {outcome.detail}"
    for error in result.hook_errors:
        if any(error.startswith(f"knob {name}:") for name in request.settings):
            return "skipped", f"its hook failed: {error}"
    return status, ""


def _ending(result: RunResult) -> str:
    code = result.exit_code or 0
    if code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass  # an exit code of its own
    return f"exit code {code}"


def last_words(log: Path, limit: int = 8192) -> str:
    """Why a failed trial failed: the last line that names an exception, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - limit))
            lines = COLOURS.sub("", file.read().decode("utf-8", "replace")).splitlines()
    except OSError:
        return ""
    words = [line.rstrip() for line in lines if line.strip()]
    named = [line for line in words if EXCEPTION.match(line)]
    return (named or words or [""])[-1].strip()[:200]
