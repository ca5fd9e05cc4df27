"""Hardware that computes in float16, bfloat16 and TF32 rather than emulating them."""

from __future__ import annotations

from pathlib import Path

VOLTA = (7, 0)
"""First compute capability with tensor cores, which take float16 alone."""
AMPERE = (8, 0)
"""First compute capability whose tensor cores take bfloat16 and TF32."""
NATIVE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of /proc/cpuinfo (the last is Arm's) of processors that compute in bfloat16."""


def is_ampere(capability: tuple[int, int] | None) -> bool:
    """True for compute capability 8.0 or later; False if it is unknown."""
    return capability is not None and capability >= AMPERE


def is_float16_only(capability: tuple[int, int] | None) -> bool:
    """True if tensor cores of this compute capability take float16 and no wider range."""
    return capability is not None and VOLTA <= capability < AMPERE


def native_on_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True if this machine's processor computes in bfloat16."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((x for x in lines if x.lower().startswith(("flags", "features"))), "")
    return not NATIVE_FLAGS.isdisjoint(flags.split())
