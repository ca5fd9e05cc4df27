"""Settings of torch's CUDA allocator: how it asks the driver for memory and splits it."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Sequence
from types import ModuleType

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.device_requirements import GRAPH_MODES
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

SETTINGS = {
    "expandable_segments": "expandable_segments:True",
    "max_split_512": "max_split_size_mb:512",
}
"""Text of each value in the allocator's variable ("Optimizing memory usage" in torch's notes)."""
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
NEW_SINCE = (2, 11)
"""First torch under whose new name expandable segments are sure to work: 2.9 knew the name and
ignored this setting (pytorch#183387)."""
CHOSEN = (OLD, NEW, "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")
"""Variables with which somebody has chosen already."""
FRAGMENTED = 0.1
"""This part of the reserved memory not allocated even at the peak is fragmentation."""
MATTERS = 0.01
"""Less than this part of the GPU's memory is only how the allocator rounds."""


class AllocatorSettings(Knob):
    """Settings of torch's caching allocator for CUDA, by its environment variable.

    "expandable_segments" lets a segment of device memory grow instead of adding another,
    "max_split_512" does not cut up blocks above 512 MiB. Helps if sizes change from step to step.
    Then free memory lies in pieces that are too small, and the allocator gives memory back and asks
    again while the GPU waits. A batch that would fit runs out of memory.

    Risks: not every torch can share tensors in expandable segments with other processes, and a
    driver without virtual memory ignores the setting. Not splitting can reserve more. Where the
    variable is set, it is left alone. Torch 2.8 to 2.10 prints that the name under which it heeds
    the setting is deprecated.
    """

    name = "allocator"
    answers = (FindingType.MEMORY_ALLOCATION,)
    effect = Effect.PIPELINE
    order = 62

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Both, where the allocator had to retry or holds much that nothing was put into."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        refusal = _refusal()
        if refusal is not None:
            return Skip(refusal)
        result = facts.result
        if result.allocator_retries:
            return list(SETTINGS)
        if facts.current.get("compile") in GRAPH_MODES:
            return Skip("it did not retry, and CUDA graphs need the rest of its memory")
        allocated, reserved = result.peak_memory_bytes, result.peak_reserved_bytes
        if allocated is None or reserved is None:
            return Skip("the memory was not measured")
        least = max(FRAGMENTED * reserved, MATTERS * (facts.machine.gpu_memory_bytes or 0))
        if reserved - allocated <= least:
            return Skip("the allocator did not retry and its memory is not fragmented")
        return ["expandable_segments"]

    def environment(self, value: str) -> dict[str, str]:
        """The variable that torch reads at the first allocation."""
        text = SETTINGS.get(value)
        return {} if text is None or _refusal() is not None else {_variable(): text}

    def apply(self, value: str, hooks: Hooks) -> None:
        """Nothing is left to do but to tell: the variable was there before python."""

        def torch_is_here(_: ModuleType) -> None:
            chosen = {name: os.environ[name] for name in CHOSEN if os.environ.get(name)}
            if value not in SETTINGS:
                hooks.skipped(f"unknown value {value!r}")
            elif chosen == {_variable(): SETTINGS[value]}:
                hooks.applied(SETTINGS[value])
            elif chosen:
                hooks.skipped(f"{', '.join(chosen)} is set already")
            else:
                hooks.skipped(f"the process was not started with {_variable()}")

        hooks.on_import("torch", torch_is_here)


def _refusal() -> str | None:
    """Why the allocator is not ours to set in this environment; None if it is."""
    chosen = next((name for name in CHOSEN if os.environ.get(name)), None)
    return None if chosen is None else f"{chosen} is set already"


def _variable() -> str:
    """The variable that the installed torch heeds; the launcher does not import torch for it."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return OLD
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return NEW if numbers and (int(numbers[1]), int(numbers[2])) >= NEW_SINCE else OLD
