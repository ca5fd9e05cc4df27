"""Which GPUs multiply in float16, and which in bfloat16 and TF32, on tensor cores."""

from __future__ import annotations

VOLTA = (7, 0)
"""First compute capability with tensor cores, which take float16 alone."""
AMPERE = (8, 0)
"""First compute capability whose tensor cores take bfloat16 and TF32."""


def is_ampere(capability: tuple[int, int] | None) -> bool:
    """Whether a compute capability is at least so; one that is not known is not."""
    return capability is not None and capability >= AMPERE


def is_float16_only(capability: tuple[int, int] | None) -> bool:
    """Whether tensor cores of this compute capability take float16 and no wider range."""
    return capability is not None and VOLTA <= capability < AMPERE
