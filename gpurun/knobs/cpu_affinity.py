"""The cores on which the training process and its loader workers run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.numa import SYSFS, near, nodes, one_thread_a_core
from gpurun.records.facts import Facts

if TYPE_CHECKING:
    import torch

PLACED = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
"""Variables with which somebody has placed the threads of OpenMP already."""
ONE_NODE = "the cores that it may use are all of one NUMA node"
OWN = "the process has chosen its cores itself"


class CpuAffinity(Knob):
    """The process runs on some of its cores only (`os.sched_setaffinity`), and so do its workers.

    "gpu_node" takes the cores of the GPU's NUMA node. "one_node" (models on the CPU) takes those of
    one node; ranks take nodes in turn. "physical_cores" takes one hardware thread of each core.
    Helps on hosts of several sockets, where launches, copies and pinned memory otherwise cross
    between them. Helps if two threads of a core compete for its vector units. Only ever narrows the
    mask it finds.

    Risks: fewer cores for the loader's workers. Operators get no more threads than cores, and sums
    over another number of threads round differently. A script, a launcher or an OpenMP variable
    that has chosen cores already wins. Helper programs that the script starts inherit the mask.
    """

    name = "cpu_affinity"
    effect = Effect.PIPELINE
    choices = ("gpu_node", "one_node", "physical_cores")
    order = 60

    def __init__(self, sysfs: Path = SYSFS) -> None:
        self._sysfs = sysfs

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """The GPU's node; on the CPU one node, and one thread a core."""
        reason = _refusal()
        if reason is not None:
            return Skip(reason)
        allowed = os.sched_getaffinity(0)
        several = len(nodes(allowed, self._sysfs)) > 1
        if facts.device == "cuda":
            return ["gpu_node"] if several else Skip(ONE_NODE)
        values = ["one_node"] if several else []
        if len(one_thread_a_core(allowed, self._sysfs)) < len(allowed):
            values.append("physical_cores")
        return values or Skip(f"{ONE_NODE}, with one thread a core")

    def apply(self, value: str, hooks: Hooks) -> None:
        """Narrow the mask when the model is seen, by its optimizer or its first call.

        Not before: a process that only starts ranks would hand its own cores to all of them.
        """
        reason = _refusal()
        if reason is not None:
            hooks.skipped(reason)
            return
        pin = _Pin(hooks)

        def seen(parameter: torch.Tensor | None) -> None:
            if not pin.settled and parameter is not None:
                self._place(value, parameter, pin)

        hooks.after_optimizer(lambda optimizer: seen(_first(optimizer)))
        hooks.on_root(lambda module: seen(next(module.parameters(), None)))

    def _place(self, value: str, parameter: torch.Tensor, pin: _Pin) -> None:
        if value == "physical_cores":
            pin.to(one_thread_a_core(pin.allowed, self._sysfs), "each core has one thread")
        elif value == "one_node":
            found = nodes(pin.allowed, self._sysfs) or [pin.allowed]
            pin.to(found[int(os.environ.get("LOCAL_RANK", "0")) % len(found)], ONE_NODE)
        elif parameter.is_cuda:
            self._to_gpu(parameter.device, pin)

    def _to_gpu(self, device: torch.device, pin: _Pin) -> None:
        bus_id = _bus_id(device)
        if bus_id is None:
            pin.leave("this torch does not report the GPU's bus address")
            return
        local = near(bus_id, self._sysfs)
        if not local:
            pin.leave(f"the system does not say which cores are near the GPU at {bus_id}")
        elif pin.allowed.isdisjoint(local):
            pin.leave(f"none of the cores that it may use is near the GPU at {bus_id}")
        else:
            pin.to(local, "every core that it may use is near the GPU")


class _Pin:
    """Narrows the mask of this process once. `allowed`: its mask when torch was imported."""

    def __init__(self, hooks: Hooks) -> None:
        self.allowed = os.sched_getaffinity(0)
        self.settled = False
        self._hooks = hooks
        self._own = self.allowed != _of_parent()

    def leave(self, reason: str) -> None:
        """Leave the mask as it is."""
        self.settled = True
        self._hooks.skipped(reason)

    def to(self, cores: set[int], nothing_to_do: str) -> None:
        """Keep to these of the allowed cores, with the threads and workers that there are."""
        cores = cores & self.allowed
        if self._own or os.sched_getaffinity(0) != self.allowed:
            self.leave(OWN)
        elif not cores or cores == self.allowed:
            self.leave(nothing_to_do)
        else:
            self.settled = True
            for thread in _threads():
                _move(thread, self.allowed, cores)
            _fit_threads(len(cores))
            self._hooks.applied(f"{len(cores)} of {len(self.allowed)} cores")


def _refusal() -> str | None:
    """Why the cores are not ours to choose in this environment; None if they are."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system does not let a process choose its cores"
    placed = next((name for name in PLACED if os.environ.get(name)), None)
    return None if placed is None else f"{placed} is set already"


def _of_parent() -> set[int]:
    """The mask of the process that started this one: its own choice, if it differs."""
    try:
        return os.sched_getaffinity(os.getppid())
    except OSError:
        return os.sched_getaffinity(0)


def _threads() -> Iterator[int]:
    """The threads of this process and of those that multiprocessing has started for it."""
    from multiprocessing import active_children

    for process in (os.getpid(), *(child.pid for child in active_children())):
        try:
            yield from [int(thread) for thread in os.listdir(f"/proc/{process}/task")]
        except OSError:
            continue  # it has ended


def _move(thread: int, allowed: set[int], cores: set[int]) -> None:
    """Move a thread that still has the mask it was born with."""
    try:
        if os.sched_getaffinity(thread) == allowed:
            os.sched_setaffinity(thread, cores)
    except OSError:
        pass  # it has ended


def _fit_threads(cores: int) -> None:
    """No more threads an operator than cores."""
    import torch

    if torch.get_num_threads() > cores:
        torch.set_num_threads(cores)


def _first(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    return next((p for group in optimizer.param_groups for p in group["params"]), None)


def _bus_id(device: torch.device) -> str | None:
    """The PCI address of a CUDA device; torch before 2.9 does not tell it."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    try:
        domain, bus = properties.pci_domain_id, properties.pci_bus_id
        return f"{domain:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"
    except AttributeError:
        return None
