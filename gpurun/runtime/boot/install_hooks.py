"""Second stage, once torch is imported: install the hooks, turn the knobs, arm the trial.

While a compiled function runs, dynamo looks at every python frame below it, ours too. It would
compile the hooks as if they were the model, and drop branches that depend on `is_compiling`. So our
code is marked, and runs as it is; code that a knob compiles is not (`device_requirements.traced`).
(Functions that dynamo inlines into a graph, such as a root's `__call__`, ask `is_compiling` first
and are then plain calls.)
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

from gpurun.knobs.device_requirements import TRACED
from gpurun.records.events import TorchEvent
from gpurun.records.spec import Exchange, Parallel, ProfileSpec, RunSpec
from gpurun.records.switches import hurtful_switches
from gpurun.runtime.boot import rank_process
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.backward_passes import BACKWARD
from gpurun.runtime.observe.exit_metrics import SAVES, write_exit_metrics
from gpurun.runtime.observe.knob_hooks import apply_settings
from gpurun.runtime.observe.optimizers import OPTIMIZERS
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.watched_loaders import LOADERS


def install(spec: RunSpec, changed_variables: tuple[str, ...]) -> None:
    """Install everything in this process; each part that fails is recorded and left out.

    `changed_variables`: environment variables that changed since the process started.
    """
    RECORDER.event(
        TorchEvent(
            version=str(torch.__version__),
            threads=torch.get_num_threads(),
            cuda_devices=None,
            clock_ns=time.perf_counter_ns(),
            changed_variables=changed_variables,
            gpu_build=bool(torch.version.cuda or torch.version.hip),
            switches=hurtful_switches(os.environ),
        )
    )
    CLOCK.device.attach(torch)
    _install_ddp(spec)
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("exchange of gradients", lambda: _change_exchange(spec)),
        ("orphan workers", _guard_workers),
        ("traits", TRAITS.install),
        ("loaders", lambda: LOADERS.install(frozenset(spec.training_loaders))),
        ("optimizers", OPTIMIZERS.install),
        ("backward", BACKWARD.install),
        ("roots", ROOTS.install),
        ("bucket views", lambda: ROOTS.on_root.append(guarded("views", TRAITS.look_at_wrapper))),
        ("saves", SAVES.install),
        ("new roots", lambda: OPTIMIZERS.noticed.append(guarded("root search", ROOTS.search))),
        ("source", lambda: _read_source(spec)),
        ("knobs", lambda: apply_settings(spec.settings, spec.knob_paths)),
        ("rehearsal of loaders", lambda: _rehearse_loaders(spec)),
        ("FLOPs of a step", lambda: _count_flops(spec)),
        ("copies to the device", lambda: _time_copies(spec)),
        ("trial", lambda: _install_trial(spec)),
        ("safety", lambda: _install_safety(spec)),
        ("dynamo skip", keep_dynamo_off),
    )
    for name, part in parts:
        guarded(name, part)()
    _at_end(guarded("end", write_exit_metrics))
    rank_process.write_at_exit(spec)  # registered last, called first: before torch's own clean-up


def _at_end(close: Callable[[], Any]) -> None:
    """Call `close` when this process ends; children of multiprocessing skip python's own hooks."""
    from multiprocessing import process, util

    atexit.register(close)
    util.register_after_fork(RECORDER, lambda _: util.Finalize(None, close, exitpriority=0))
    if process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)


def _install_ddp(spec: RunSpec) -> None:
    """Install hidden data parallelism; a rank without it must not train."""
    trial = spec.trial
    by_sample = trial is not None and trial.by_sample
    if spec.parallel is None and not by_sample:
        return
    from gpurun.runtime.ddp.rank_info import or_stop_rank

    def hidden_ddp(parallel: Parallel) -> None:
        from gpurun.runtime.ddp import install_ddp

        in_child = not rank_process.is_rank()
        install_ddp.install(parallel, spec.exchange, in_child=in_child, draw_alike=by_sample)

    def each_by_itself() -> None:
        from gpurun.runtime.ddp.sample_by_sample import SampleBySample

        SampleBySample(0 if trial is None else trial.shares).install()

    if by_sample:
        or_stop_rank("comparison of ranks", each_by_itself)()
    if spec.parallel is not None:
        or_stop_rank("hidden data parallelism", hidden_ddp)(spec.parallel)


def _change_exchange(spec: RunSpec) -> None:
    if spec.exchange != Exchange():
        from gpurun.runtime.ddp import exchange_options

        exchange_options.install(spec.exchange)


def _read_source(spec: RunSpec) -> None:
    """Only where a knob is to know of it: before each of them receives a root."""
    if spec.trial is not None or spec.settings:
        ROOTS.on_root.append(guarded("source", TRAITS.look_at_source))


def _rehearse_loaders(spec: RunSpec) -> None:
    """After the knobs, which wrap the opening of loaders themselves."""
    if spec.rehearse and any(x.knob == "loader_workers" for x in spec.settings):
        from gpurun.runtime.trial.loader_rehearsal import LoaderRehearsal

        LoaderRehearsal(spec).install()


def _count_flops(spec: RunSpec) -> None:
    from gpurun.runtime.observe.step_flops import StepFlops

    StepFlops(compiles=any(s.knob == "compile" for s in spec.settings)).install()


def _time_copies(spec: RunSpec) -> None:
    """Only of plain runs: a trial is measured undisturbed."""
    if spec.trial is None and spec.turns_after_steps is None:
        from gpurun.runtime.observe.copies_to_device import CopiesToDevice

        CopiesToDevice().install()


def _install_trial(spec: RunSpec) -> None:
    """A trial stops by its rule, a live pair takes turns, a profile has its window."""
    if spec.trial is not None:
        from gpurun.runtime.trial import trial_run

        trial_run.install(spec)
    elif spec.turns_after_steps is not None:
        _take_turns(Path(spec.run_dir) / "control", spec.turns_after_steps)
    elif spec.profile is not None:
        _profile(spec.profile, Path(spec.run_dir))


def _install_safety(spec: RunSpec) -> None:
    """Only of a full run."""
    if spec.safety is not None:
        from gpurun.runtime.safety import out_of_memory
        from gpurun.runtime.safety.nonfinite_losses import NonfiniteLosses

        out_of_memory.watch(Path(spec.run_dir))
        losses = NonfiniteLosses(spec.safety, Path(spec.run_dir))
        losses.install()
        if spec.safety.emergency_checkpoint:
            from gpurun.runtime.safety.emergency_checkpoint import EmergencyCheckpoint

            checkpoint = EmergencyCheckpoint(Path(spec.run_dir), spec.safety.quiet)
            checkpoint.install()
            losses.before_stop.append(checkpoint.save_now)


def _take_turns(control: Path, after_steps: int) -> None:
    from gpurun.runtime.observe.torch_loader_internals import WORKERS
    from gpurun.runtime.trial import trial_exit
    from gpurun.runtime.trial.live_pair_side import Turns

    turns = Turns(control, after_steps, WORKERS)

    def step(count: int) -> None:
        if turns.after_step(count):
            trial_exit.end_at_once(write_exit_metrics, control)

    CLOCK.listeners.append(guarded("turns", step))


def _profile(profile: ProfileSpec, run_dir: Path) -> None:
    from gpurun.runtime.profile import profile_window
    from gpurun.runtime.trial import trial_exit

    control = run_dir / "control"

    def write_exit() -> None:
        trial_exit.await_peers(control)
        write_exit_metrics()

    def stop() -> None:
        trial_exit.end_at_once(write_exit, control)

    profile_window.arm(profile, run_dir, torch, stop)


def _guard_workers() -> None:
    from gpurun.runtime.observe import orphan_workers

    orphan_workers.install(torch)


def keep_dynamo_off() -> None:
    """Mark our code as soon as dynamo is there: every optimizer brings it, `import torch` not."""
    when_imported("torch._dynamo.eval_frame", lambda dynamo: _mark(dynamo.skip_code))


def _mark(skip: Callable[[CodeType], None]) -> None:
    """Mark all our modules, and the function of torch that runs the optimizers' hooks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpurun."):
            for value in vars(module).values():
                for code in _codes(value, name):
                    skip(code)
    skip(torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__)


def _codes(value: object, module: str) -> Iterator[CodeType]:
    if getattr(value, "__module__", None) != module or getattr(value, TRACED, False):
        return
    if isinstance(value, FunctionType):
        yield from _with_inner(value.__code__)
    elif isinstance(value, type):
        for member in vars(value).values():
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)  # of a static or a class method
            if isinstance(function, FunctionType):
                yield from _with_inner(function.__code__)
                inner = inspect.unwrap(function)  # of a maker (`patching.stands_in`)
                if isinstance(inner, FunctionType) and inner.__module__ == module:
                    yield from _with_inner(inner.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
