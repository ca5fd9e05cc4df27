"""Changes of knobs in graphs that are captured from a model, before these are compiled or run.

A rewrite takes the graph module, the inputs of its first call, and what makes a callable of a
graph; it returns the callable. So a knob that compiles need not know which others change graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.fx import GraphModule
from torch.nn import Module

from gpurun.knobs.compiling.applied.nested_blocks import NestedCall
from gpurun.knobs.compiling.applied.nested_graphs import check_nesting
from gpurun.knobs.compiling.applied.plain_calls import or_plain, trains_as_written

Finish = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
Rewrite = Callable[[GraphModule, Sequence[Any], Finish], Callable[..., Any]]

REWRITES: list[Rewrite] = []
"""The rewrites of this process, in the order of their knobs."""
LEANER: list[Rewrite] = []
"""Those of them by which a model takes much less memory."""


def compile_in_place(
    module: Module,
    mode: str,
    hooked: Callable[[], None],
    blocks: Sequence[Sequence[Module]] = (),
    gave_up: Callable[[str], None] = lambda reason: None,
) -> None:
    """`module.compile(mode=mode)`, of graphs that were rewritten first (see `_compiled_call`).

    Calls that compiled code cannot answer run the module's own code (`or_plain`, to which `hooked`
    goes). The groups of `blocks` have one inner graph each, until `gave_up` hears why not.
    """

    def compiled(nested: bool) -> Callable[..., Any]:
        return partial(_compiled_call(module, mode, nested), module)

    call = NestedCall(blocks, compiled, gave_up) if blocks else compiled(False)
    as_written = trains_as_written(module, bool(LEANER))
    module._compiled_call_impl = or_plain(module, call, hooked, as_written)


def _compiled_call(module: Module, mode: str, nested: bool) -> Callable[..., Any]:
    """The compiled call of modules like `module`, which is its first argument.

    Five things differ from `module.compile`. A container of torch's own, such as `nn.Sequential`,
    is compiled too: `Module.compile` skips all of torch's own frames there, and compiles nothing.
    Torch's limit of recompilations is that of this call, not of a class. No buffer that the graph
    saves is reused in its backward pass. Otherwise the second backward pass of a script that
    sometimes retains its graph would raise. A model without a dropout module draws the numbers that
    it draws without compiling, so that both can be compared; masks of dropout stay fused with what
    they mask, which is faster. The graphs are rewritten first.

    `nested`: as one graph with inner ones. Its backward pass is compiled with its forward pass, so
    that an error is raised before anything has run.
    """
    from torch._inductor import config

    _start_processes()
    if hasattr(torch._functorch.config, "donated_buffer"):
        torch._functorch.config.donated_buffer = False
    if not any(_drops(part) for part in module.modules()):
        config.fallback_random = True
    how: dict[str, Any] = {"mode": mode}
    if REWRITES or nested:
        inductor: Callable[..., Finish] = torch._TorchCompileInductorWrapper
        backend = rewriting(inductor(mode, None, None))
        how = {"backend": _nesting(backend) if nested else backend, "fullgraph": nested}
    code = _call.__code__.replace(co_name=type(module).__name__)
    return torch.compile(FunctionType(code, globals()), **how)


def _nesting(backend: Finish) -> Finish:
    """A backend for a graph with inner ones, which it looks at first."""

    def checked(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        check_nesting(module)
        early = "force_non_lazy_backward_lowering"  # no torch before 2.10 has it
        config = torch._functorch.config
        with config.patch({early: True} if hasattr(config, early) else {}):
            return backend(module, inputs)

    return checked


def _call(self: Module, *args: Any, **kwargs: Any) -> Any:
    """Its first argument has the name that guards show: that of the user's own code."""
    return self._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def _start_processes() -> None:
    """Start those of the inductor if it was imported without them, in a process that waited."""
    early = sys.modules.get("torch._inductor.async_compile")
    if early is not None and hasattr(early, "maybe_warm_pool"):
        early.maybe_warm_pool()


def _drops(module: Module) -> bool:
    return isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0


def rewriting(finish: Finish) -> Finish:
    """A backend for `torch.compile` that rewrites a graph and hands it to `finish`."""
    for rewrite in reversed(REWRITES):
        finish = _before(rewrite, finish)
    return finish


def _before(rewrite: Rewrite, finish: Finish) -> Finish:
    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return rewrite(module, inputs, finish)

    return backend
