"""The bar of the guard: changes that falsify a script and must be rejected, and sound ones.

One half of either is on scripts that only infer, the other on trainings. None of the falsifying
ones is among the plants by which the guard was written (`guard_cases.BROKEN`).
"""

from __future__ import annotations

from gpurun.knobs.device_requirements import native_on_cpu
from scripts.guard_cases import Case, broken, sound

FALSIFYING_INFERENCE = (
    broken("classified", "wrong_outputs", "zeros"),
    broken("embedded", "wrong_outputs", "before"),
    broken("forecast", "wrong_outputs", "before, later"),
    broken("classified", "wrong_outputs", "permuted rows"),
    broken("embedded", "wrong_outputs", "last row"),
    broken("scored", "wrong_outputs", "padding"),
    broken("detected", "wrong_outputs", "half computed"),
    broken("scored", "wrong_outputs", "scaled"),
    broken("forecast", "wrong_outputs", "half precision"),
    broken("forecast", "wrong_outputs", "one buffer"),
    broken("detected", "wrong_outputs", "not a number"),
    broken("classified", "wrong_outputs", "flipped"),
    broken("detected", "wrong_outputs", "other integers"),
    broken("scored", "wrong_batches", "inputs before"),
    broken("detected", "wrong_batches", "stale every seventh"),
    broken("classified", "wrong_forward", "layer skipped"),
    broken("embedded", "wrong_forward", "dropout on"),
    broken("embedded", "wrong_forward", "four bits"),
    broken("classified", "wrong_forward", "batch statistics"),
    broken("scored", "wrong_forward", "not causal"),
    broken("forecast", "wrong_forward", "other activation"),
)

FALSIFYING_TRAINING = (
    broken("evaluated", "wrong_outputs", "zeros in evaluation"),
    broken("evaluated", "wrong_outputs", "before in evaluation"),
    broken("device_images", "wrong_outputs", "before in training"),
    broken("evaluated", "wrong_forward", "layer skipped"),
    broken("evaluated", "wrong_forward", "eval ignored"),
    broken("images", "wrong_batches", "stale every seventh"),
    broken("averaged", "wrong_batches", "twice"),
    broken("evaluated", "wrong_batches", "no flips"),
    broken("averaged", "wrong_updates", "no gradients of vectors"),
    broken("device_letters", "wrong_updates", "gradients before"),
    broken("accumulated", "wrong_updates", "averaged gradients"),
    broken("evaluated", "wrong_updates", "frozen after warm-up"),
    broken("evaluated", "wrong_updates", "one decay"),
    broken("averaged", "wrong_updates", "average of start"),
    broken("evaluated", "wrong_updates", "rounded weights"),
    broken("averaged", "wrong_updates", "no bias correction"),
    broken("device_images", "wrong_forward", "smoothed labels"),
    broken("accumulated", "wrong_forward", "loss of half"),
    broken("device_images", "wrong_forward", "clipped activation"),
    broken("images", "wrong_forward", "slow statistics"),
    broken("device_letters", "wrong_forward", "not causal"),
)

COMPILED = (
    sound("forecast", "compile", "default"),
    sound("classified", "compile", "default"),
    sound("embedded", "attention", "sdpa"),
    sound("device_letters", "compile", "default"),
)
"""Seconds to compile, each, so that they begin first."""

SOUND_INFERENCE = (
    sound("classified", "autocast", "bf16"),
    sound("embedded", "autocast", "bf16"),
    sound("detected", "autocast", "bf16"),
    sound("forecast", "autocast", "bf16"),
    sound("scored", "autocast", "bf16"),
    sound("scored", "low_precision_forward"),
    sound("classified", "channels_last"),
    sound("detected", "channels_last", autocast="bf16"),
    sound("classified", "evaluation_fusion"),
    sound("detected", "evaluation_fusion"),
    sound("classified", "loader_workers", 2),
    sound("embedded", "loader_workers", 4, loader_prefetch=4),
    sound("forecast", "loader_workers", 2, loader_persistent=True),
    sound("scored", "cpu_threads", 2),
    sound("forecast", "matmul_precision", "medium"),
    sound("detected", "same_outputs", "float64"),
    sound("classified", "same_outputs", "inference mode"),
    sound("forecast", "same_outputs", "cloned"),
    sound("embedded", "same_outputs", "halves"),
    sound("detected", "same_outputs", "halves"),
    sound("embedded", "same_outputs", "one projection"),
    sound("classified", "same_outputs", "channels last inputs"),
    sound("embedded", "read_ahead"),
    sound("classified", "deterministic"),
)

SOUND_TRAINING = (
    sound("evaluated", "autocast", "bf16"),
    sound("evaluated", "evaluation_fusion"),
    sound("evaluated", "loader_workers", 2),
    sound("evaluated", "same_outputs", "halves"),
    sound("evaluated", "same_outputs", "float64"),
    sound("evaluated", "channels_last"),
    sound("device_letters", "same_outputs", "cloned"),
    sound("device_letters", "low_precision_forward"),
    sound("device_images", "low_precision_forward"),
    sound("averaged", "autocast", "bf16"),
    sound("averaged", "fused_optimizer", "fused"),
    sound("images", "other_dropout"),
    sound("images", "loader_workers", 4, loader_prefetch=4),
    sound("letters", "double_loss"),
    sound("accumulated", "recomputed"),
    sound("accumulated", "low_precision_forward"),
    sound("averaged", "reordered_groups"),
    sound("letters", "cpu_threads", 1),
)

GPU = (
    sound("embedded", "tf32"),
    sound("forecast", "compile", "reduce-overhead"),
    sound("detected", "cudnn_benchmark"),
    sound("evaluated", "tf32"),
    sound("evaluated", "compile", "reduce-overhead"),
)
"""What needs a GPU to take effect."""


def bar(gpu: bool) -> tuple[Case, ...]:
    """All cases; the slowest come first."""
    sound_ones = (*COMPILED, *(GPU if gpu else ()), *SOUND_INFERENCE, *SOUND_TRAINING)
    if not gpu and not native_on_cpu():
        sound_ones = tuple(dict.fromkeys(map(_emulated, sound_ones)))
    return (*sound_ones, *FALSIFYING_INFERENCE, *FALSIFYING_TRAINING)


def _emulated(case: Case) -> Case:
    """On a processor that emulates bfloat16 `autocast` stands aside: the same by other means."""
    kept = [(knob, value) for knob, value in case.settings if knob != "autocast"]
    if len(kept) < len(case.settings):
        kept.append(("low_precision_forward", True))
    return Case(case.script, tuple(kept), case.broken)
