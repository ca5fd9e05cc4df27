"""The number of threads that one operator uses on the CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.loading.loader_need import workers_now
from gpurun.records.facts import Facts

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
BUSY = 0.9
"""A host whose cores are in use to this part, by whatever program, is crowded: the threads of an
operator wait for the one that has no core. Steps of four jobs on one host of 64 cores, each with 64
threads, took a hundred times as long as on 16 cores each."""


class CpuThreads(Knob):
    """`torch.set_num_threads(n)` and the OpenMP and MKL variables behind it.

    Helps on the CPU if torch counts cores that are not ours (a container with a quota, several
    ranks on one host), if loader workers compete with the model, or if hyper-threads hurt. Helps on
    crowded GPU hosts, too. Values come from the cores that the process may use.

    Risks: too few threads slow the model, too many slow everybody; sums over another number of
    threads round differently. A script that sets its own threads has the last word.
    """

    name = "cpu_threads"
    effect = Effect.PIPELINE
    order = 20

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """One a core, one a core that no worker needs, one a physical core."""
        cores = max(1, int(facts.machine.cores / max(1, facts.result.ranks)))
        if facts.device != "cpu":
            return _for_a_crowded_host(facts, cores)
        values = (cores, cores - workers_now(facts), cores // 2)
        present = facts.current.get(self.name, facts.threads)
        fit = [value for value in dict.fromkeys(values) if value >= 1 and value != present]
        return fit or Skip(f"{present} threads fit the {cores} cores")

    def environment(self, value: int) -> dict[str, str]:
        """The variables that OpenMP and MKL read when they are loaded."""
        return {variable: str(value) for variable in VARIABLES}

    def apply(self, value: int, hooks: Hooks) -> None:
        """Set the threads once torch is there."""

        def torch_is_here(torch: ModuleType) -> None:
            own = os.environ.get(VARIABLES[0], str(value))
            if own != str(value):
                hooks.skipped(f"the script sets {VARIABLES[0]}={own} itself")
                return
            torch.set_num_threads(value)
            hooks.applied(f"threads: {value}")

        hooks.on_import("torch", torch_is_here)


def _for_a_crowded_host(facts: Facts, cores: int) -> Sequence[int] | Skip:
    host = facts.result.host
    if host is None or host.cpu_percent is None:
        return Skip("training is on the GPU")
    if host.cpu_percent + (host.others_cpu_percent or 0.0) < 100 * BUSY * facts.machine.cores:
        return Skip("training is on the GPU and the host has cores to spare")
    fewer = max(2, cores // 4)
    if facts.threads is not None and fewer >= facts.threads:
        return Skip(f"{facts.threads} threads are few already")
    return [fewer]
