"""Which GPUs multiply in bfloat16 and TF32 on tensor cores."""

from __future__ import annotations

AMPERE = (8, 0)
"""First compute capability whose tensor cores take either."""


def is_ampere(capability: tuple[int, int] | None) -> bool:
    """Whether a compute capability is at least so; one that is not known is not."""
    return capability is not None and capability >= AMPERE
