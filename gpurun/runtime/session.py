"""Second stage, once torch is imported: install the hooks, turn the knobs, arm the trial."""

from __future__ import annotations

import atexit
import resource
import time
from typing import Any

from gpurun.records.events import EndEvent, TorchEvent
from gpurun.records.spec import RunSpec
from gpurun.runtime import backward
from gpurun.runtime.hooks import apply_settings
from gpurun.runtime.loaders import LOADERS
from gpurun.runtime.optimizers import OPTIMIZERS
from gpurun.runtime.patching import guarded
from gpurun.runtime.recorder import RECORDER
from gpurun.runtime.roots import ROOTS
from gpurun.runtime.steps import CLOCK
from gpurun.runtime.traits import TRAITS


def start(spec: RunSpec, torch: Any) -> None:
    """Arm everything in this process; each part that fails is recorded and left out."""
    RECORDER.event(
        TorchEvent(
            version=str(torch.__version__),
            threads=torch.get_num_threads(),
            cuda_devices=None,
            import_seconds=time.process_time(),
        )
    )
    CLOCK.device.attach(torch)
    parts = (
        ("worker guard", lambda: _guard_workers(torch)),
        ("traits", lambda: TRAITS.install(torch)),
        ("loaders", lambda: LOADERS.install(torch, frozenset(spec.training_loaders))),
        ("optimizers", lambda: OPTIMIZERS.install(torch)),
        ("backward", lambda: backward.install(torch)),
        ("roots", lambda: ROOTS.install(torch)),
        ("knobs", lambda: apply_settings(spec.settings, spec.knob_paths)),
    )
    for name, install in parts:
        guarded(name, install)()
    if spec.trial is not None:
        from gpurun.runtime import trial

        guarded("trial", lambda: trial.arm(spec, torch))()
    atexit.register(guarded("end", lambda: end(torch)))


def _guard_workers(torch: Any) -> None:
    from gpurun.runtime import worker_guard

    worker_guard.install(torch)


def end(torch: Any) -> None:
    """Write what is pending and the closing figures of this process."""
    CLOCK.drain()
    RECORDER.flush()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    allocated = reserved = retries = None
    if torch.cuda.is_initialized():
        allocated = torch.cuda.max_memory_allocated()
        reserved = torch.cuda.max_memory_reserved()
        retries = torch.cuda.memory_stats().get("num_alloc_retries")
    if RECORDER.recording:
        RECORDER.event(
            EndEvent(
                clock_ns=time.perf_counter_ns(),
                peak_rss_bytes=usage.ru_maxrss * 1024,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
                allocator_retries=retries,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
            )
        )
