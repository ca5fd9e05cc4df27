"""What is planted for the loss guard: broken trainings, and sound changes.

A case turns one knob file of `tests/data/knobs_broken`, `knobs_sound` or `knobs_device` (or knobs
of ours) in a script of `tests/data/guard_scripts`. Each file of `knobs_device` has a sound value
beside the broken ones, so that only the mistake can be what the guard rejects.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun.knobs import find
from gpurun.knobs.api import Effect

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
KNOBS = tuple(str(DATA / f"knobs_{kind}") for kind in ("broken", "sound", "device"))


@dataclass(frozen=True)
class Case:
    """One change of one script. `settings`: knob to value."""

    script: str
    settings: tuple[tuple[str, Any], ...]
    broken: bool

    @property
    def name(self) -> str:
        """What a table calls it."""
        changes = [k if v is True else f"{k}={v}" for k, v in self.settings]
        return f"{self.script}: {', '.join(changes)}"

    @property
    def effect(self) -> Effect:
        """The strongest effect that its knobs claim to have."""
        effects = {find(knob, KNOBS).effect for knob, _ in self.settings}
        return Effect.NUMERICS if Effect.NUMERICS in effects else Effect.PIPELINE


def broken(script: str, knob: str, value: Any = True, **more: Any) -> Case:
    return Case(script, ((knob, value), *more.items()), broken=True)


def sound(script: str, knob: str, value: Any = True, **more: Any) -> Case:
    return Case(script, ((knob, value), *more.items()), broken=False)


BROKEN = (
    broken("images", "half_precision_overflow"),
    broken("averaged", "half_precision_overflow"),
    broken("images", "stale_buffer"),
    broken("averaged", "stale_buffer"),
    broken("records", "stale_buffer"),
    broken("images", "shuffled_labels"),
    broken("averaged", "shuffled_labels"),
    broken("images", "shuffled_images"),
    broken("averaged", "doubled_rate"),
    broken("images", "doubled_rate"),
    broken("letters", "doubled_rate"),
    broken("adversaries", "doubled_updates"),
    broken("letters", "doubled_updates"),
    broken("accumulated", "dropped_gradient"),
    broken("letters", "dropped_gradient"),
    broken("averaged", "frozen_average"),
    broken("accumulated", "wrong_reduction"),
    broken("averaged", "wrong_reduction"),
    broken("images", "skipped_step"),
    broken("letters", "skipped_step"),
    broken("adversaries", "skipped_step"),
    broken("accumulated", "skipped_step"),
    broken("records", "half_data"),
    broken("images", "half_data"),
    broken("averaged", "half_sampler"),
    broken("images", "half_sampler"),
    broken("letters", "sometimes_nan"),
    broken("images", "sometimes_nan"),
    broken("averaged", "sorted_later"),
    broken("images", "sorted_later"),
    broken("images", "no_transforms"),
    broken("averaged", "no_clipping"),
    broken("averaged", "no_decay"),
    broken("images", "frozen_statistics"),
    broken("images", "no_dropout"),
    broken("letters", "no_dropout"),
    broken("accumulated", "no_dropout"),
    broken("averaged", "dropped_batches"),
    broken("images", "rolled_labels"),
    broken("averaged", "rolled_labels"),
    broken("letters", "rolled_labels"),
    broken("records", "shared_handle", 4),
    broken("adversaries", "one_learns"),
    broken("averaged", "other_optimizer"),
    broken("accumulated", "no_zeroing"),
    broken("images", "flat_schedule"),
    # workers draw the random parts of the samples anew
    broken("images", "doubled_updates", loader_workers=2),
    broken("images", "wrong_reduction", loader_workers=2),
    broken("images", "shuffled_labels", loader_workers=2),
    broken("images", "shuffled_images", loader_workers=2),
)

SOUND = (
    sound("images", "loader_workers", 2),
    sound("images", "loader_workers", 4, loader_prefetch=4),
    sound("averaged", "loader_workers", 2, loader_persistent=True),
    sound("accumulated", "loader_workers", 2),
    sound("adversaries", "loader_workers", 2),
    sound("images", "read_ahead"),
    sound("averaged", "read_ahead"),
    sound("records", "read_ahead"),
    sound("averaged", "cpu_threads", 1),
    sound("letters", "cpu_threads", 1),
    sound("adversaries", "fused_optimizer", "fused"),
    sound("averaged", "fused_optimizer", "fused"),
    sound("letters", "fused_optimizer", "foreach"),
    sound("images", "channels_last"),
    sound("images", "low_precision_forward"),
    sound("averaged", "low_precision_forward"),
    sound("accumulated", "low_precision_forward"),
    sound("letters", "low_precision_forward"),
    sound("adversaries", "low_precision_forward"),
    sound("records", "low_precision_forward"),
    sound("images", "other_dropout"),
    sound("letters", "other_dropout"),
    sound("accumulated", "other_dropout"),
    sound("averaged", "matmul_precision", "medium"),
    sound("accumulated", "matmul_precision", "medium"),
    sound("images", "double_loss"),
    sound("letters", "double_loss"),
    sound("averaged", "zeros_kept"),
    sound("letters", "zeros_kept"),
    sound("averaged", "reordered_groups"),
    sound("images", "deterministic"),
    sound("accumulated", "recomputed"),
    sound("images", "loader_workers", 2, low_precision_forward=True),
)

COMPILED = (sound("letters", "compile", "default"), sound("images", "compile", "default"))
"""Seconds to compile, each."""


# -- on the device that is there: the scripts use a GPU if they find one ---------------------------

DEVICE = (
    broken("device_letters", "half_precision", "overflows"),
    broken("device_letters", "half_precision", "zeroed"),
    broken("device_letters", "half_precision", "underflows"),
    broken("device_images", "device_buffers", "one"),
    broken("device_images", "device_buffers", "one later"),
    broken("device_images", "device_buffers", "late"),
    broken("device_images", "memory_order", "images"),
    broken("device_images", "memory_order", "weights"),
    broken("device_images", "memory_order", "activations"),
    broken("device_images", "captured_graph", "stale"),
    broken("device_images", "captured_graph", "stale later"),
    broken("device_letters", "captured_graph", "stale"),
    broken("device_letters", "captured_graph", "stale later"),
    sound("device_letters", "half_precision", "fits"),
    sound("device_images", "device_buffers", "two"),
    sound("device_images", "memory_order", "right"),
    sound("device_images", "captured_graph", "copied"),
    sound("device_letters", "captured_graph", "copied"),
    sound("device_images", "channels_last"),
)
GPU = (
    sound("device_images", "compile", "reduce-overhead"),
    sound("device_letters", "compile", "reduce-overhead"),
    broken("device_images", "half_precision", "overflows"),
    broken("device_images", "half_precision", "zeroed"),
    broken("device_images", "half_precision", "underflows"),
    sound("device_images", "half_precision", "fits"),
    sound("device_images", "device_prefetch", "ahead", loader_pin_memory=True),
    sound("device_images", "device_prefetch", "ahead", loader_pin_memory=True, loader_workers=2),
    sound("device_images", "autocast", "fp16"),
    sound("device_letters", "autocast", "fp16"),
    sound("device_images", "autocast", "bf16"),
    sound("device_letters", "autocast", "bf16"),
    sound("device_images", "channels_last", autocast="bf16"),
)
"""What works on a GPU alone, or takes long without one; what compiles stands first, as slowest."""
