"""Launches scripts for measuring: the one place that makes their specs, sandboxes and supervision.

`run` launches one request and gives its outcome; what launches two beside each other
(`pairs/live_launches.py`) uses the parts of it. A request with `ranks` runs on torch's elastic
agent: the caller says its flags, number of nodes, rendezvous and log folder included, and divides
the cores in `environment`. The launcher stacks the layers of hidden ranks, and ends ranks that
outlive the first one's end by `GRACE_SECONDS`. With `to_finish` they have as long as the first one
took, and the launch fails with `RANK_LEFT_BEHIND`.

Launches that share a name share caches and, once one of them kept it, a layer: the files that the
script wrote before its first step. `prestarted` holds processes of requests that are to follow.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gpurun.errors import say
from gpurun.isolation.folder_removal import discard, discard_abandoned, hold, mark, remove_drafts
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.quiet_services import quiet_services
from gpurun.isolation.rank_command import layered_target
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.knobs.api import Skip
from gpurun.launch.compile_caches import kernels_in, shared_cache_environment
from gpurun.launch.launch_command import (
    agent_command_line,
    child_environment,
    command_line,
    write_spec,
)
from gpurun.measure.run_events import read_run
from gpurun.measure.sampler import RunSampler
from gpurun.records.codec import to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.messages.traits import CONNECTED
from gpurun.records.spec import RUN_SPEC, RunSpec
from gpurun.rundir import other_runs, write_json
from gpurun.trials.launch_request import ALL_LAUNCHES, LaunchRequest
from gpurun.trials.outcome import Outcome, conclude, connections
from gpurun.trials.prestart import Prestarted, has_several_slots, prestart_slots, what_to_import
from gpurun.trials.progress import Progress
from gpurun.trials.supervision import Look, Supervision, supervise
from gpurun.trials.turn_fifos import make_fifos

LEAST_PATIENCE = 120.0
"""A launch may be silent for so many seconds at least; longer where earlier ones took long."""
FIRST_PATIENCE = 1800.0
"""One that keeps its layer may be silent for so long: it may download its data or compile."""
GRACE_SECONDS = 10.0
"""Once a process has seen enough and left, the others have so long: they may wait for it forever.
"""
Tell = Callable[[str], None]
OnSteps = Callable[[int, int], None]
"""Hears (steps so far, steps at least) while a launch runs."""
SHARED = "shared"
"""Folder of what launches share: caches, and the files that a first launch wrote at its start."""
KEPT = "kernels"
"""Folder of what they compiled, while a run that follows starts from it."""


class Waiting(Protocol):
    """A launch that stays alive beside others."""

    sampler: RunSampler

    @property
    def pid(self) -> int:
        """The first process of its sandbox."""


class TakesTurns(Protocol):
    """Has a launch take turns with another one. `seconds`: what the turns took, no part of it."""

    seconds: float

    def begin(self, sandbox: Sandbox, sampler: RunSampler) -> None:
        """It was started."""

    def look(self) -> Failure | None:
        """Called a few times a second; why it must be given up, None if it need not."""

    def close(self) -> None:
        """It has ended, or is being ended."""


class TrialLauncher:
    """Launches requests below one folder. `close` removes what launches shared. What launches of
    a killed launcher shared, in a run folder beside this one, is removed at the start; so are the
    files that it was writing.

    `longest`: seconds of the longest launch so far; `launched`: how many there were. `waiting`: a
    launch that is kept alive, frozen, beside the others.
    """

    def __init__(
        self, folder: Path, mode: Mode, on_steps: OnSteps = lambda *_: None, tell: Tell = say
    ) -> None:
        self.folder, self.mode = folder, mode
        self.longest = 0.0
        self.prestarted = Prestarted()
        self.launched = 0
        self.waiting: Waiting | None = None
        self._on_steps, self._tell = on_steps, tell
        self._connected: Counter[str] = Counter()
        self._layers: dict[str, Path] = {}
        (folder / SHARED).mkdir(parents=True, exist_ok=True)
        mark(folder / SHARED)
        self._held: int | None = hold(folder)
        for other in other_runs(folder):
            left = [folder for folder in (other / SHARED, other / KEPT) if folder.is_dir()]
            if left:
                discard_abandoned(other, left)
            remove_drafts([other, *other.glob("*/*"), *other.glob("*/*/control")])

    def run(
        self,
        request: LaunchRequest,
        ended_elsewhere: Callable[[], bool] = lambda: False,
        turns: TakesTurns | None = None,
    ) -> Outcome:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `ended_elsewhere`: whether ranks of it on other nodes have ended; what it raises kills ours.
        `turns`: has it take turns with another launch. `GpurunError` if it cannot be started.
        """
        started = time.monotonic()
        with ExitStack() as stack:
            sampler = stack.enter_context(closing(RunSampler(request.run_dir)))
            sampler.look_around(None if self.waiting is None else self.waiting.sampler)
            stack.callback(self.prestarted.go_on)
            holds = self._holds(request)
            sandbox = stack.enter_context(self.start(request, holds, live=turns is not None))
            if turns is not None:
                stack.enter_context(closing(turns))
                turns.begin(sandbox, sampler)
            self.start_following(request)
            waiting = () if self.waiting is None else (self.waiting.pid,)
            sampler.beside = (*self.prestarted.pids, *waiting)
            supervision = self._supervision(request, ended_elsewhere, turns)
            given_up = supervise(sandbox, request.run_dir, sampler, supervision)
            if given_up is not None:
                sandbox.kill()
            exit_code = None if given_up else sandbox.poll()
        return self.conclude(request, exit_code, time.monotonic() - started, given_up)

    def has_layer(self, shared: str) -> bool:
        """True if launches of this name start on top of what one of them wrote."""
        return shared in self._layers

    def drop_layer(self, shared: str) -> None:
        """Later launches of this name start from the untouched folder."""
        self._layers.pop(shared, None)

    def forget(self, shared: str) -> None:
        """Remove what launches of this name shared: none will follow."""
        self.drop_layer(shared)
        discard(self._shared(shared))

    def keep_kernels(self) -> None:
        """Leave what launches compiled for a run that follows, in the folder `KEPT`."""
        made, kept = kernels_in(self._shared(ALL_LAUNCHES) / "cache"), self.folder / KEPT
        with suppress(OSError):  # nothing was compiled
            made.rename(kept)
            mark(kept)

    def close(self) -> None:
        """End waiting processes, remove what only launches needed, and tell of connections."""
        if self._connected:
            self._tell(connections(self._connected))
            self._connected.clear()
        self.prestarted.close()
        self._layers.clear()
        discard(self.folder / SHARED)
        held, self._held = self._held, None  # a signal's exception may come in between
        if held is not None:
            os.close(held)

    # -- before --------------------------------------------------------------------------------

    def _shared(self, name: str) -> Path:
        return self.folder / SHARED / name

    def start(self, request: LaunchRequest, hold: bool, *, live: bool) -> Sandbox:
        """Start it, or give the prestarted process its spec.

        `live`: it takes turns. `hold`: it waits at its first step.
        """
        spec, control = self._launch_spec(request), request.run_dir / "control"
        waiting = self.prestarted.take(spec, request.run_dir)
        control.mkdir(parents=True, exist_ok=True)
        if live:
            make_fifos(control)
        run_spec = _run_spec(request, hold=hold, live=live)
        write_spec(run_spec)
        if waiting is not None:
            write_json(control / RUN_SPEC, to_json(run_spec))
        return waiting or Sandbox(spec)

    def start_following(self, request: LaunchRequest) -> None:
        """Have the processes of the next launches import what they need meanwhile."""
        if self.prestarted.modules:
            for later in request.following[: prestart_slots()]:
                self.prestarted.start(self._launch_spec(later), later.run_dir)

    def _holds(self, request: LaunchRequest) -> bool:
        """True if it waits at its first step, until those beside it are stopped."""
        return request.keep_layer or bool(self.prestarted.modules)

    def _launch_spec(self, request: LaunchRequest) -> LaunchSpec:
        cache = self._shared(request.shared) / "cache"
        cache.mkdir(parents=True, exist_ok=True)
        environment = child_environment(request.run_dir / "spec.json", request.environment)
        environment = {**quiet_services(environment), **request.settings_environment}
        argv = self._argv(request, cache)
        layer = self._layers.get(request.shared)
        return LaunchSpec(
            argv=argv,
            env=shared_cache_environment(
                environment, cache, argv[0], isolated=self.mode is not Mode.IN_PLACE
            ),
            cwd=request.cwd,
            writable=(request.run_dir, cache),
            layers=() if layer is None else (layer,),
            mode=self.mode,
            log=request.run_dir / "output.log",
        )

    def _argv(self, request: LaunchRequest, cache: Path) -> tuple[str, ...]:
        ranks, target = request.ranks, request.target
        if ranks is None:
            return command_line(target, request.python)
        if ranks.parallel is not None and self.mode is Mode.OVERLAY:
            target = layered_target(target, request.run_dir, (cache,))
        return agent_command_line(ranks.torchrun, target)

    # -- while it runs -------------------------------------------------------------------------

    def patience(self, request: LaunchRequest) -> float:
        """Seconds of silence after which a launch is given up."""
        if request.patience_seconds is not None:
            return request.patience_seconds
        return FIRST_PATIENCE if request.keep_layer else max(LEAST_PATIENCE, 4 * self.longest)

    def _supervision(
        self,
        request: LaunchRequest,
        ended_elsewhere: Callable[[], bool],
        turns: TakesTurns | None,
    ) -> Supervision:
        def at_first_step(sandbox: Sandbox, go: Callable[[], None]) -> None:
            if request.keep_layer:
                self._keep_layer(request, sandbox)
            self.prestarted.stop()
            go()
            if request.keep_layer and request.following and has_several_slots():
                self._start_second(request)

        patience = self.patience(request)
        look = _look(request, self._on_steps, ended_elsewhere)
        if turns is not None:
            look = _with_turns(look, turns)
        return Supervision(patience, at_first_step if self._holds(request) else None, look)

    def _keep_layer(self, request: LaunchRequest, sandbox: Sandbox) -> None:
        layer = self._shared(request.shared) / "layer"
        if sandbox.capture_layer(layer):
            self._layers[request.shared] = layer

    def _start_second(self, first: LaunchRequest) -> None:
        """Start the second launch's process while the first is measured: only the first one is
        disturbed, and nothing is claimed of it.
        """
        logs = read_run(first.run_dir).processes
        log = next((x for x in logs if x.imports is not None), None)
        if log is not None:
            modules = what_to_import(first.target, log, ranks=first.ranks is not None)
            if not isinstance(modules, Skip):
                self.prestarted.modules = modules
                self.start_following(first)

    # -- afterwards ----------------------------------------------------------------------------

    def conclude(
        self,
        request: LaunchRequest,
        exit_code: int | None,
        seconds: float,
        given_up: Failure | None,
    ) -> Outcome:
        """The outcome of a launch that is over; `given_up`: why it was ended from outside."""
        self.launched += 1
        self.longest = max(self.longest, seconds)
        outcome = conclude(request, exit_code, seconds, given_up)
        traits = [trait for log in outcome.logs for trait in log.traits]
        self._connected.update(trait.detail for trait in traits if trait.trait == CONNECTED)
        return outcome


def _run_spec(request: LaunchRequest, *, hold: bool, live: bool) -> RunSpec:
    return RunSpec(
        run_dir=str(request.run_dir),
        launcher_pid=os.getpid(),
        settings=request.settings,
        training_loaders=request.training_loaders,
        knob_paths=request.knob_paths,
        trees=request.trees,
        parallel=None if request.ranks is None else request.ranks.parallel,
        exchange=request.exchange,
        trial=replace(request.trial, hold_at_first_step=hold),
        turns_after_steps=0 if live else None,
    )


def _look(request: LaunchRequest, on_steps: OnSteps, ended_elsewhere: Callable[[], bool]) -> Look:
    """Tells of steps; gives up a launch after its limit, and ends processes that outlive others."""
    told, left = -1, math.inf
    all_finish = request.ranks is not None and request.ranks.to_finish is not None

    def look(sandbox: Sandbox, progress: Progress, seconds: float) -> Failure | None:
        nonlocal told, left
        if progress.steps != told:
            told = progress.steps
            on_steps(told, request.trial.stop.min_steps)
        if ended_elsewhere() or progress.stopped:
            left = min(left, seconds)
        if seconds - left > max(GRACE_SECONDS, left if all_finish else 0.0):
            if all_finish:
                text = "some of its ranks did not end with the others"
                return Failure(FailureKind.RANK_LEFT_BEHIND, text)
            sandbox.kill()
            return None
        if seconds > request.limit_seconds or time.monotonic() > request.deadline:
            text = f"not done after {seconds:.3g} s"
            return Failure(FailureKind.OUT_OF_TIME, text)
        return None

    return look


def _with_turns(look: Look, turns: TakesTurns) -> Look:
    """The same, and turns as soon as the launch is ready for them; they count for no limit."""

    def both(sandbox: Sandbox, progress: Progress, seconds: float) -> Failure | None:
        return turns.look() or look(sandbox, progress, seconds - turns.seconds)

    return both
