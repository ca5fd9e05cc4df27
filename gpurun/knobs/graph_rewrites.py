"""What knobs change in graphs that are captured from a model, before they are compiled or run.

A rewrite takes the graph module, the inputs of its first call, and what makes a callable of a
graph; it returns the callable. So a knob that compiles need not know which others change graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Finish = Callable[[Any, Sequence[Any]], Callable[..., Any]]
Rewrite = Callable[[Any, Sequence[Any], Finish], Callable[..., Any]]

REWRITES: list[Rewrite] = []
"""The rewrites of this process, in the order of their knobs."""


def compile_in_place(module: Any, mode: str) -> None:
    """`module.compile(mode=mode)`, of graphs that were rewritten first."""
    import torch

    inductor = getattr(torch, "_TorchCompileInductorWrapper", None)
    if not REWRITES or inductor is None:
        module.compile(mode=mode)
    else:
        module.compile(backend=rewriting(inductor(mode, None, None)))


def rewriting(finish: Finish) -> Finish:
    """A backend for `torch.compile` that rewrites a graph and hands it to `finish`."""
    for rewrite in reversed(REWRITES):
        finish = _before(rewrite, finish)
    return finish


def _before(rewrite: Rewrite, finish: Finish) -> Finish:
    def backend(module: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
        return rewrite(module, inputs, finish)

    return backend
