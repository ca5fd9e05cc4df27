"""Let the C library keep freed memory instead of giving it back at every step."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from types import ModuleType

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.loading.loader_need import data_wait
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

KEPT = {
    # a freed block above the last one in use goes back to the kernel beyond this size
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    # blocks of this size and more are mapped and unmapped one by one; 32 MiB is glibc's maximum
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
"""Variables of glibc's malloc, read when a process starts (mallopt(3))."""
OWN = ("LD_PRELOAD", "GLIBC_TUNABLES", *KEPT)
"""Variables with which somebody has chosen an allocator or its settings already."""


class HostAllocator(Knob):
    """glibc's malloc keeps what a step frees for the next step ("keep").

    Helps on the CPU, and in loader workers. By default the blocks of a step go back to the kernel
    at its end, and are mapped, faulted in and zeroed again in the next step. On the CPU this takes
    5 to 45 % of a step. It depends on the block at the top of the heap, so the same script differs
    from launch to launch.

    Risks: memory once used stays with the process, loader workers included. Where another allocator
    is preloaded, or the variables are set, they are left alone; musl has none of this.
    """

    name = "host_allocator"
    answers = (FindingType.MEMORY_ALLOCATION,)
    effect = Effect.PIPELINE
    order = 19
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Keep, where the host computes the model or prepares the data it waits for."""
        refusal = _refusal()
        if refusal is not None:
            return Skip(refusal)
        if facts.device != "cpu":
            wait = data_wait(facts)
            if isinstance(wait, Skip) or not wait.noticeable:
                return Skip("training is on the GPU and does not wait for the host's data")
        return ["keep"]

    def environment(self, value: str) -> dict[str, str]:
        """The variables that malloc reads when the process starts."""
        return dict(KEPT) if value == "keep" and _refusal() is None else {}

    def apply(self, value: str, hooks: Hooks) -> None:
        """Nothing is left to do but to tell: the variables were there before python."""

        def torch_is_here(_: ModuleType) -> None:
            if value == "keep" and all(os.environ.get(name) == KEPT[name] for name in KEPT):
                hooks.applied("freed memory is kept")
            else:
                reason = _refusal() or f"the process was not started with {', '.join(KEPT)}"
                hooks.skipped(reason)

        hooks.on_import("torch", torch_is_here)


def _refusal() -> str | None:
    """Why malloc is not ours to set in this environment; None if it is."""
    if platform.libc_ver()[0] != "glibc":
        return "the C library is not glibc"
    chosen = next((name for name in OWN if os.environ.get(name)), None)
    return None if chosen is None else f"{chosen} is set already"
