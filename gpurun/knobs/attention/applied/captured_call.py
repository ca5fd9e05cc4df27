"""The call of a captured module: its graph, or its own code if the graph does not run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Module

from gpurun.knobs.applied.autograd_state import is_traced
from gpurun.knobs.applied.later_hooks import LaterHooks
from gpurun.knobs.attention.applied.attention_sites import Unfit
from gpurun.knobs.compiling.applied.graph_rewrites import rewriting
from gpurun.records.frames import drop_frame

MOST_GRAPHS = 24
"""Graphs of one class of modules; one of which more are asked for changes its shapes for ever."""
RECOMPILATIONS = 2 * MOST_GRAPHS
"""The number of compilations after which dynamo gives a function up by itself, with a warning."""
END_OF_RECOMPUTATION = "_StopRecomputationError"
"""The exception that torch's checkpoint raises through a module once it has recomputed enough."""


@dataclass(eq=False)
class Captured:
    """The modules of one class that are captured, and what became of their graphs.

    `around`: for each module those that call it, the innermost first.
    """

    cls: type
    modules: list[weakref.ref[Module]] = field(default_factory=list)
    around: list[list[weakref.ref[Module]]] = field(default_factory=list)
    graphs: int = 0
    replaced: int = 0
    unfit: Unfit | None = None
    raised: str | None = None
    called: bool = False

    def note(self, replaced: int, unfit: list[Unfit]) -> None:
        """A graph was captured in which so many attentions were replaced."""
        self.graphs += 1
        self.replaced += replaced
        self.unfit = unfit[0] if unfit else self.unfit


running: list[Captured] = []
"""The captured modules that are being called, the innermost last."""


class CapturedCall:
    """Stands in `_compiled_call_impl` of a module: copies and pickles of it are without."""

    def __init__(
        self,
        captured: Captured,
        module: Module,
        capture: Callable[..., Any],
        failed: Callable[[Captured], None],
    ) -> None:
        self._captured = captured
        self._own: Callable[..., Any] = module._call_impl
        self._later_hooks = LaterHooks(module)
        self._run = capture(module._call_impl)
        self._failed = failed

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module as its class would; an error is raised by its own code alone."""
        captured = self._captured
        if not (is_traced() or self._later_hooks):
            running.append(captured)
            captured.called = True
            try:
                return self._run(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ == END_OF_RECOMPUTATION:
                    raise
                captured.raised = type(error).__name__
            finally:
                running.pop()
            self._failed(captured)
        try:
            return self._own(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise


def capturing() -> Callable[..., Any]:
    """A function that dynamo captures, and whose rewritten graphs run."""
    import torch._dynamo  # only where something is captured: it takes a second

    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, RECOMPILATIONS)
    if torch.__version__.startswith("2.4."):
        config.inline_inbuilt_nn_modules = True  # else each module has a graph of its own
    backend = rewriting(lambda graph, inputs: graph.forward)
    return lambda function: torch.compile(function, backend=backend)


def is_captured(module: Module) -> bool:
    """True if a module is called through its graph."""
    return isinstance(module._compiled_call_impl, CapturedCall)
