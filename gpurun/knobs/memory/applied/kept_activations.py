"""Call what the script checkpoints, and keep its activations, while there is room."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.utils import checkpoint

from gpurun.knobs.api import Hooks

WATCHED_STEPS = 2
"""So many steps show whether forward passes change buffers of the model."""
AROUND = "_checkpoint_without_reentrant_generator"
"""Torch's generator (since 2.1): it runs to its `yield` before the function, and on after it."""
ROOM = 0.5
"""At least this part of a GPU's memory must be free, or a call is computed again as before."""


class KeptActivations:
    """Keeps `torch.utils.checkpoint` from dropping activations.

    In the first steps everything is computed again as before. A model whose buffers change
    meanwhile stays so: computed once, its statistics would be updated once and not twice.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._on = False
        self._roots: list[Module] = []
        self._first: list[tuple[int, int]] = []
        self._inside = False
        """True in a forward pass that will be computed again, with all that is called in it."""

    def install(self) -> None:
        """Replace what `checkpoint` calls before and after its function.

        A library may have imported `checkpoint` itself before. It calls this for the kind that is
        not reentrant; the other one gives no gradients to what its function leaves elsewhere.
        """
        original = getattr(checkpoint, AROUND, None)
        if original is None:
            self._hooks.skipped("this version of torch checkpoints in another way")
            return
        setattr(checkpoint, AROUND, self._stand_in(original))
        self._hooks.on_root(self._root_found)
        self._hooks.on_step(self._stepped)

    def _root_found(self, root: Module) -> None:
        self._roots.append(root)
        self._on = False

    def _stepped(self, step: int) -> None:
        if step == 1:
            self._first = list(self._buffers())
        elif step == 1 + WATCHED_STEPS:
            if self._first == list(self._buffers()):
                self._on = True
            else:
                self._hooks.skipped("the model changes its buffers (a normalisation's statistics)")

    def _buffers(self) -> Iterator[tuple[int, int]]:
        for root in self._roots:
            for buffer in root.buffers():
                yield id(buffer), buffer._version

    def _stand_in(self, original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
        @functools.wraps(original)
        def around(
            function: Callable[..., Any],
            restores_draws: bool,
            contexts: Callable[..., Any],
            *rest: Any,
            **kwargs: Any,
        ) -> Iterator[None]:
            own_contexts = contexts is not checkpoint.noop_context_fn
            if restores_draws and not own_contexts and self._needless():
                self._hooks.applied("forward passes are not computed again")
                yield
                return
            outer, self._inside = self._inside, True
            try:
                yield from original(function, restores_draws, contexts, *rest, **kwargs)
            finally:
                self._inside = outer

        return around

    def _needless(self) -> bool:
        """True if a call gives the same numbers and gradients by itself, and memory has room."""
        return (
            self._on
            and not self._inside
            and torch._C._current_graph_task_id() == -1  # else a backward pass computes it again
            and not torch.compiler.is_compiling()
            and torch.is_grad_enabled()
            and _has_room()
        )


def _has_room() -> bool:
    """True if enough of the current GPU's memory is free, whoever holds the rest."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    free, total = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + cached > ROOM * total
