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
from gpurun.runtime.boot import last_words, lifeline, untraced
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.backward import BACKWARD
from gpurun.runtime.observe.closing import end
from gpurun.runtime.observe.hooks import apply_settings
from gpurun.runtime.observe.loaders import LOADERS
from gpurun.runtime.observe.optimizers import OPTIMIZERS
from gpurun.runtime.observe.roots import ROOTS
from gpurun.runtime.observe.steps import CLOCK
from gpurun.runtime.observe.traits import TRAITS


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
    _arm_parallel(spec, torch)
    parts = (
        ("exchange of gradients", lambda: _arm_exchange(spec, torch)),
        ("worker guard", lambda: _guard_workers(torch)),
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
        from gpurun.runtime.trial import trial

        guarded("trial", lambda: trial.arm(spec, torch))()
    elif spec.turns_after_steps is not None:
        guarded("turns", lambda: _arm_turns(spec, torch))()
    guarded("untraced", untraced.install)(torch)
    _at_end(guarded("end", lambda: end(torch)))
    if lifeline.is_rank():
        last_words.expect()  # what is registered last is called first: before torch's own farewells


def _at_end(close: Callable[[], Any]) -> None:
    """Call `close` when this process ends; children of multiprocessing skip python's own hooks."""
    from multiprocessing import process, util

    atexit.register(close)
    util.register_after_fork(RECORDER, lambda _: util.Finalize(None, close, exitpriority=0))
    if process.parent_process() is not None:
        util.Finalize(None, close, exitpriority=0)


def _arm_parallel(spec: RunSpec, torch: Any) -> None:
    if spec.parallel is not None:
        from gpurun.runtime.parallel import install
        from gpurun.runtime.parallel.place import or_give_up

        arm = or_give_up("hidden data parallelism", install.arm)
        arm(spec.parallel, spec.exchange, torch)
    if spec.probe is not None:
        from gpurun.runtime.parallel.place import or_give_up
        from gpurun.runtime.probe import install as probe

        or_give_up("gradient probe", probe.arm)(spec, torch)


def _arm_exchange(spec: RunSpec, torch: Any) -> None:
    if spec.exchange != Exchange():
        from gpurun.runtime.parallel import exchange

        exchange.install(spec.exchange, torch)


def _arm_turns(spec: RunSpec, torch: Any) -> None:
    from gpurun.runtime.trial import ending
    from gpurun.runtime.trial.stock import STOCK
    from gpurun.runtime.trial.turns import Turns

    control = Path(spec.run_dir) / "control"
    turns = Turns(control, torch, spec.turns_after_steps or 0, STOCK)

    def step(count: int) -> None:
        if turns.after_step(count):
            ending.end_at_once(lambda: end(torch), control)

    CLOCK.listeners.append(guarded("turns", step))


def _guard_workers(torch: Any) -> None:
    from gpurun.runtime.observe import worker_guard

    worker_guard.install(torch)
