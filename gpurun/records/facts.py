"""Facts about a script after its first trial: knobs propose values from them."""

from __future__ import annotations

from typing import Any

from gpurun.records.events import LoaderEvent, OptimizerEvent, RootEvent
from gpurun.records.record import record
from gpurun.records.result import RunResult


@record
class Machine:
    """The hardware that the script runs on. `cores`: from cgroup quota and affinity mask."""

    cores: float
    memory_bytes: int
    gpus: tuple[str, ...]
    gpu_memory_bytes: int | None
    compute_capability: tuple[int, int] | None


@record
class BatchFlag:
    """The script's own command-line option that sets the batch size."""

    flag: str
    value: int


@record
class WorkerRate:
    """Samples a second with so many loader workers; `error`: of that, relative, None: not known."""

    workers: int
    samples_per_second: float
    error: float | None


@record
class Facts:
    """Everything a knob may ask. `device`: "cpu" or "cuda", where the root module lives, or what
    the optimizer steps if no module is called.

    `traits` maps trait names of `TraitEvent` to their details. `result` is the baseline's.
    `batch_uses` lists other places in the script that read the batch size (source lines), None if
    the source could not be read.
    """

    device: str
    machine: Machine
    result: RunResult
    loaders: tuple[LoaderEvent, ...]
    training_loaders: tuple[str, ...]
    optimizers: tuple[OptimizerEvent, ...]
    roots: tuple[RootEvent, ...]
    traits: dict[str, str]
    batch_flag: BatchFlag | None
    batch_uses: tuple[str, ...] | None
    threads: int | None
    argv: tuple[str, ...]
    current: dict[str, Any]
    """Settings already chosen when the knob is asked: knob name to value."""
    objective: str = "throughput"
    """The aim of the tuning: "throughput" or "memory" (the least peak memory)."""
    out_of_memory: bool = False
    """True if the script as it is ran out of memory: nothing else can be tried until it fits."""
    planned_steps: int | None = None
    """Optimizer steps of the whole training, by its loader and its argument of epochs; None if not
    known."""
    worker_rates: tuple[WorkerRate, ...] | None = None
    """Of several numbers of loader workers, fewest first, measured in turns of one launch; none
    where that showed nothing, None before."""

    def loaders_of_training(self) -> tuple[LoaderEvent, ...]:
        """The loaders that feed training steps."""
        return tuple(x for x in self.loaders if x.key in self.training_loaders)

    def script_compiles(self) -> bool:
        """True if the script itself compiles its model."""
        return "compile" in self.traits or any(root.compiled for root in self.roots)
