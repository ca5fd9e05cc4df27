"""Flags and environment of the ranks of a script that is written for one device (`--ddp`)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpurun.arguments.torchrun_flags import is_given, torchrun_variable
from gpurun.errors import GpurunError
from gpurun.launch.rank_resources import threads_for

THREADS = "OMP_NUM_THREADS"
RANKS = "--nproc-per-node"
RENDEZVOUS_FLAGS = (
    "nnodes", "node-rank", "standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf",
    "master-addr", "master-port",
)  # fmt: skip
"""Flags that choose the rendezvous of the ranks."""


def hidden_flags(
    torchrun: Sequence[str], log_dir: Path | None, environment: Mapping[str, str] = os.environ
) -> tuple[tuple[str, ...], int]:
    """The flags for torch's agent, and how many ranks this host has.

    Rank 0 prints to the terminal and the others into files below `log_dir`. Their rendezvous has
    its own port. The user's flags win over both. Without a number there, and in torchrun's own
    variable, there are as many ranks as GPUs; `GpurunError` where there is none.
    """
    flags = list(torchrun)
    ranks = _ranks(flags)
    if ranks is None:
        ranks = _number(environment.get(torchrun_variable(RANKS[2:])) or "gpu")
        flags += [RANKS, str(ranks)]
    if not any(is_given(name, flags, environment) for name in RENDEZVOUS_FLAGS):
        flags.append("--standalone")
    if not any(word.startswith(("--redirects", "--tee", "-r", "-t")) for word in flags):
        elsewhere = ",".join(f"{rank}:3" for rank in range(1, ranks))
        if elsewhere and log_dir is not None:
            flags += ["--redirects", elsewhere]
            if not any(word.startswith("--log-dir") for word in flags):
                flags += ["--log-dir", str(log_dir)]
    return tuple(flags), ranks


def rank_environment(environment: Mapping[str, str], ranks: int) -> dict[str, str]:
    """The environment of a rank: its share of the cores, and one hash of strings on all ranks,
    because the order of a set may number the words of a vocabulary. The user's own values stay."""
    return {THREADS: str(threads_for(ranks)), "PYTHONHASHSEED": "0", **environment}


def _ranks(flags: Sequence[str]) -> int | None:
    """The number of ranks in the flags; None where they have none."""
    for position, word in enumerate(flags):
        name, equals, value = word.replace("_", "-").partition("=")
        if name == RANKS:
            return _number(value if equals else flags[position + 1])
    return None


def _number(word: str) -> int:
    if word.isdigit():
        return int(word)
    from gpurun.launch.elastic_agent import local_ranks

    try:
        return local_ranks(word)
    except ValueError as error:
        raise GpurunError(
            "the number of ranks is unknown without a GPU", f"set it: {RANKS} 2"
        ) from error
