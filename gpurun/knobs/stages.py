"""The stages of the ladder, in its order, and the stage of each knob."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpurun.knobs.api import Effect, Knob

AS_IT_IS = "as it is"
"""The stage of the first row."""
COMPILE, BATCH_STAGE, DATA, MEMORY = "compile", "batch", "data", "memory"

STAGES: Mapping[str, tuple[str, ...]] = {
    MEMORY: ("checkpointing", "activation_offload"),
    DATA: (
        "loader_workers",
        "cpu_threads",
        "loader_prefetch",
        "loader_persistent",
        "loader_pin_memory",
        "loader_buffers",
    ),
    "transfer": (
        "device_prefetch",
        "async_copies",
        "needless_sync",
        "needless_recompute",
        "host_allocator",
        "allocator",
        "cpu_affinity",
    ),
    "precision": ("tf32", "autocast"),
    "kernels": (
        "attention",
        "channels_last",
        "fused_optimizer",
        "fused_loss",
        "cudnn_benchmark",
        "evaluation_fusion",
    ),
    COMPILE: ("compile",),
    "ranks": (),
    BATCH_STAGE: ("batch_size", "accumulation"),
}
"""Stage → its knobs. The rows of a ladder follow one another in this order."""

OF_EFFECT = {
    Effect.PIPELINE: "transfer",
    Effect.NUMERICS: "kernels",
    Effect.TRAINING: BATCH_STAGE,
}
"""The stage of a knob that is not in the table and names none: a user's own, or an argument."""


def stage_of(knob: Knob) -> str:
    """The stage of a knob: by the table, else the one that it names, else by its effect."""
    known = next((stage for stage, names in STAGES.items() if knob.name in names), None)
    return known or knob.stage or OF_EFFECT[knob.effect]


def in_order(stages: Iterable[str]) -> list[str]:
    """Each of these stages once, in the order of the ladder."""
    found = set(stages)
    return [stage for stage in STAGES if stage in found]
