"""Second stage, once torch is imported: install the hooks, turn the knobs, arm the trial."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpurun.records.events import TorchEvent
from gpurun.records.spec import Exchange, RunSpec
from gpurun.records.switches import hurtful_switches
from gpurun.runtime.boot import dynamo_skip, exit_record, orphan_ranks
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.backward_passes import BACKWARD
from gpurun.runtime.observe.exit_metrics import write_exit_metrics
from gpurun.runtime.observe.knob_hooks import apply_settings
from gpurun.runtime.observe.loaders import LOADERS
from gpurun.runtime.observe.optimizers import OPTIMIZERS
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK


def start(spec: RunSpec, torch: Any, changed_variables: tuple[str, ...]) -> None:
    """Arm everything in this process; each part that fails is recorded and left out.

    `changed_variables`: of the environment, since the process started.
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
    _arm_ddp(spec, torch)
    parts = (
        ("exchange of gradients", lambda: _arm_exchange(spec, torch)),
        ("orphan workers", lambda: _guard_workers(torch)),
        ("traits", lambda: TRAITS.install(torch)),
        ("loaders", lambda: LOADERS.install(torch, frozenset(spec.training_loaders))),
        ("optimizers", lambda: OPTIMIZERS.install(torch)),
        ("backward", lambda: BACKWARD.install(torch)),
        ("roots", lambda: ROOTS.install(torch)),
        ("new roots", lambda: OPTIMIZERS.noticed.append(guarded("root search", ROOTS.search))),
        ("knobs", lambda: apply_settings(spec.settings, spec.knob_paths)),
    )
    for name, install in parts:
        guarded(name, install)()
    if spec.trial is not None:
        from gpurun.runtime.trial import trial_run

        guarded("trial", lambda: trial_run.arm(spec, torch))()
    elif spec.turns_after_steps is not None:
        guarded("turns", lambda: _arm_turns(spec, torch))()
    elif spec.profile is not None:
        guarded("profile", lambda: _arm_profile(spec, torch))()
    guarded("dynamo skip", dynamo_skip.install)(torch)
    _at_end(guarded("end", lambda: write_exit_metrics(torch)))
    if orphan_ranks.is_rank():
        exit_record.write_at_exit()  # registered last, called first: before torch's own clean-up


def _at_end(close: Callable[[], Any]) -> None:
    """Call `close` when this process ends; children of multiprocessing skip python's own hooks."""
    from multiprocessing import process, util

    atexit.register(close)
    util.register_after_fork(RECORDER, lambda _: util.Finalize(None, close, exitpriority=0))
    if process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)


def _arm_ddp(spec: RunSpec, torch: Any) -> None:
    if spec.parallel is not None:
        from gpurun.runtime.ddp import install_ddp
        from gpurun.runtime.ddp.rank_info import or_stop_rank

        arm = or_stop_rank("hidden data parallelism", install_ddp.arm)
        arm(spec.parallel, spec.exchange, torch)
    if spec.probe is not None:
        from gpurun.runtime.ddp.rank_info import or_stop_rank
        from gpurun.runtime.probe import install_probe

        or_stop_rank("gradient probe", install_probe.arm)(spec, torch)


def _arm_exchange(spec: RunSpec, torch: Any) -> None:
    if spec.exchange != Exchange():
        from gpurun.runtime.ddp import gradient_exchange

        gradient_exchange.install(spec.exchange, torch)


def _arm_turns(spec: RunSpec, torch: Any) -> None:
    from gpurun.runtime.observe.prefetched_batches import PREFETCHED
    from gpurun.runtime.trial import trial_exit
    from gpurun.runtime.trial.live_pair_turns import Turns

    control = Path(spec.run_dir) / "control"
    turns = Turns(control, torch, spec.turns_after_steps or 0, PREFETCHED)

    def step(count: int) -> None:
        if turns.after_step(count):
            trial_exit.end_at_once(lambda: write_exit_metrics(torch), control)

    CLOCK.listeners.append(guarded("turns", step))


def _arm_profile(spec: RunSpec, torch: Any) -> None:
    from gpurun.runtime.profile import profile_window
    from gpurun.runtime.trial import trial_exit

    assert spec.profile is not None
    run_dir = Path(spec.run_dir)
    profile_window.arm(
        spec.profile,
        run_dir,
        torch,
        lambda: trial_exit.end_at_once(lambda: write_exit_metrics(torch), run_dir / "control"),
    )


def _guard_workers(torch: Any) -> None:
    from gpurun.runtime.observe import orphan_workers

    orphan_workers.install(torch)
