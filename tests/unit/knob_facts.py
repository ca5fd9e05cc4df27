"""Facts for the tests of knobs: a small script as a probe would describe it, changed by keyword."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from gpurun.records.events import LoaderEvent, OptimizerEvent, RootEvent
from gpurun.records.facts import Facts, Machine
from gpurun.records.result import HostUse, RunResult, StepSplit, StepTime

GIB = 1 << 30

LOADER = LoaderEvent(
    loader=0, key="train.py:8#0", class_name="DataLoader", subclass=False,
    dataset_class="Images", dataset_length=10_000, length=313, batch_size=32, workers=0,
    prefetch_factor=None, persistent_workers=False, pin_memory=False, drop_last=False,
    iterable=False, custom_batch_sampler=False, start_method=None, batch_size_argument="32",
)  # fmt: skip
OPTIMIZER = OptimizerEvent(
    optimizer=0, class_name="SGD", module="torch.optim.sgd", parameters=8, groups=1,
    hyperparameters={"lr": 0.1, "fused": None, "foreach": None},
)  # fmt: skip
ROOT = RootEvent(
    root=0, class_name="Net", parameters=1_000_000, parameter_bytes=4_000_000, dtypes=("float32",),
    device="cpu", module_types={"Linear": 2}, input_shape=(32, 16), input_dtype="float32",
    compiled=False,
)  # fmt: skip
MACHINE = Machine(
    cores=8.0, memory_bytes=64 * GIB, gpus=(), gpu_memory_bytes=None, compute_capability=None
)
H200 = Machine(
    cores=16.0, memory_bytes=128 * GIB, gpus=("NVIDIA H200",), gpu_memory_bytes=139 * GIB,
    compute_capability=(9, 0),
)  # fmt: skip


def result(wait_ms: float | None = 30.0, step_ms: float = 40.0, **changes: Any) -> RunResult:
    """A completed run whose mean step waits `wait_ms` of its `step_ms` for data."""
    unmeasured: dict[str, Any] = {f.name: None for f in fields(RunResult)[:27]}
    base = RunResult(
        **{
            **unmeasured,
            "status": "completed",
            "steps": 100,
            "warmup_steps": 5,
            "measured_steps": 95,
            "batch_size": 32.0,
            "step_time_ms": StepTime(step_ms, step_ms, step_ms, step_ms),
            "split": StepSplit(wait_ms, None, 1.0, 1.0, 1.0, None),
            "host": HostUse(100.0, 8.0, GIB, 1),
            "devices": (),
            "wall_seconds": 10.0,
        }
    )
    return replace(base, **changes)


def facts(**changes: Any) -> Facts:
    """Facts of a CPU training with one plain loader and SGD."""
    base = Facts(
        device="cpu", machine=MACHINE, result=result(), loaders=(LOADER,),
        training_loaders=(LOADER.key,), optimizers=(OPTIMIZER,), roots=(ROOT,), traits={},
        batch_flag=None, batch_uses=(), threads=8, argv=(), current={},
    )  # fmt: skip
    return replace(base, **changes)


def gpu_facts(**changes: Any) -> Facts:
    """The same on an H200."""
    return facts(**{"device": "cuda", "machine": H200, **changes})


def loader(**changes: Any) -> dict[str, Any]:
    """Changes for `facts` that replace its loader by one that differs in these fields."""
    return {"loaders": (replace(LOADER, **changes),)}
