"""The traits that `TraitEvent` tells of a script, and keys of loaders, which details name."""

from __future__ import annotations

from collections.abc import Collection, Iterable

DISTRIBUTED_TRAITS = ("ddp", "process_group")
"""Traits of a script that is distributed by itself."""
COPIES_GRADIENTS = "copies_gradients"
"""The trait of a script whose DDP copies each gradient into its bucket and back."""
STARTS_PROCESSES = "starts_processes"
"""The trait of a script that starts processes of Python in a trial of ranks, with the line."""
STARTS_PROGRAMS = "starts_programs"
"""The trait of a script that starts other programs in a trial of ranks, with the line."""
PARALLEL_REFUSED = "parallel_refused"
"""The trait of a rank that gave up: what, and in a second line what to do."""
DOUBLE_BACKWARD = "double_backward"
"""The trait of a script that differentiates gradients, or whose source does."""
RECOMPUTES = "recomputes"
"""The trait of a script that computes forward passes again (`torch.utils.checkpoint`)."""
KEEPS_TENSORS = "keeps_tensors"
"""The trait of a model whose forward pass leaves tensors in it, by the name of one."""
CHANGING_SHAPES = "changing_shapes"
"""The trait of a model whose inputs had many shapes in few calls."""
PADDING = "padding"
"""The trait of a model of tokens: the share of the first batch that is padding, and its size."""
OUT_OF_MEMORY = "out_of_memory"
"""The trait of a script whose model ran out of memory. It may catch that and train with less."""
CONNECTED = "connected"
"""The trait of a trial that connected to another machine, once for each connection."""


_BETWEEN = " / "  # no name of a file holds a slash


def joined(keys: Iterable[str]) -> str:
    """One detail that names them all."""
    return _BETWEEN.join(keys)


def keys_in(detail: str | None) -> tuple[str, ...]:
    """The keys that `joined` put into a detail; none if there is no detail."""
    return tuple(detail.split(_BETWEEN)) if detail else ()


def place(key: str) -> str:
    """File and line without the count: the same for a loader that is built anew each epoch."""
    return key.rpartition("#")[0]


def feeds_training(key: str, training_keys: Collection[str]) -> bool:
    """True for a loader that feeds training, by the keys of those that did in an earlier launch.

    A loop that builds its loader anew for each epoch may go on longer than that launch did: a later
    loader of a place trains if the first ones there, two or more, all did.
    """
    if key in training_keys:
        return True
    known = {_count(other) for other in training_keys if place(other) == place(key)}
    return len(known) > 1 and known == set(range(len(known))) and _count(key) >= len(known)


def _count(key: str) -> int:
    return int(key.rpartition("#")[2])
