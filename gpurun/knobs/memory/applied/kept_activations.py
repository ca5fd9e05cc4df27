"""Call what the script checkpoints, and keep its activations, while there is room."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.utils import checkpoint

from gpurun.knobs.api import Hooks
from gpurun.records.frames import drop_frame

WATCHED_STEPS = 2
"""So many steps show whether forward passes change buffers of the model."""
OPTIONS = frozenset(
    {"use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"}
)
"""Arguments that are torch's; others are the function's."""
ROOM = 0.5
"""At least this part of a GPU's memory must be free, or a call is computed again as before."""


class KeptActivations:
    """Stands in for `torch.utils.checkpoint.checkpoint`.

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
        """Replace the function before the script imports it."""
        checkpoint.checkpoint = self._stand_in(checkpoint.checkpoint)
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

    def _stand_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                if self._needless(kwargs):
                    self._hooks.applied("forward passes are not computed again")
                    own = {name: value for name, value in kwargs.items() if name not in OPTIONS}
                    return function(*args, **own)
                outer, self._inside = self._inside, True
                try:
                    return original(function, *args, **kwargs)
                finally:
                    self._inside = outer
            except BaseException as error:
                drop_frame(error)
                raise

        return call

    def _needless(self, kwargs: dict[str, Any]) -> bool:
        """True if a call gives the same numbers and gradients by itself, and memory has room.

        The reentrant kind gives other gradients: none to what the function leaves elsewhere.
        """
        return (
            self._on
            and not self._inside
            and torch._C._current_graph_task_id() == -1  # else a backward pass computes it again
            and not torch.compiler.is_compiling()
            and torch.is_grad_enabled()
            and kwargs.get("use_reentrant") is False
            and "context_fn" not in kwargs
            and kwargs.get("preserve_rng_state", True) is True
            and _has_room()
        )


def _has_room() -> bool:
    """True if enough of the current GPU's memory is free, whoever holds the rest."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True
    free, total = torch.cuda.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + cached > ROOM * total
