"""Capture the modules of a model that hold attention, and run their rewritten graphs.

This serves models that nothing else compiles. The first step shows which modules hold attention.
From the next step on dynamo captures them, and their graphs run as they are, operation by
operation. After anything unexpected the modules return to their own code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module

from gpurun.knobs.api import COPIES_MODEL, SCRIPT_COMPILES, Hooks
from gpurun.knobs.applied.attention.attention_modules import AttentionCalls
from gpurun.knobs.applied.attention.attention_rewrite import rewrite
from gpurun.knobs.applied.attention.attention_sites import Unfit
from gpurun.knobs.applied.autograd_state import is_checkpointed, is_traced
from gpurun.knobs.applied.compiling.compiled_calls import Finish, LaterHooks, rewriting
from gpurun.knobs.applied.root_calls import RootContext
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


MASKS = {"causal": "causal", "nothing": "no mask", "other": "masked"}


class Capture(RootContext):
    """The attention of this process. It is the context of each root call."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._roots: list[weakref.ref[Module]] = []
        self._look: AttentionCalls | None = None
        self._captured: dict[type, Captured] = {}
        self._unsettled: list[Captured] = []
        self._compile: Callable[..., Any] | None = None

    def root_found(self, module: Module) -> None:
        """Look at the calls of a new root until the end of the step."""
        compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if compiled or self._hooks.has_trait("compile") is not None:
            self._hooks.skipped(SCRIPT_COMPILES)
        elif self._hooks.has_trait("data_parallel") is not None:
            self._hooks.skipped(COPIES_MODEL)
        else:
            self._roots.append(weakref.ref(module))
            self._look = self._look or AttentionCalls()

    def __enter__(self) -> None:
        self.inner = None
        if self._look is None:
            return
        if any(m._compiled_call_impl is not None for m in self._modules()):
            self._look = None  # another knob compiles it, and asks for the rewrite
            return
        self.open_inside(self._look.mode())

    def step_done(self, step: int) -> None:
        """Change what modules run: now no backward pass is under way that would call them again."""
        if self._look is not None:
            found, self._look = self._look.found(), None
            for calling in found:
                self._capture(calling)
            if not found:
                self._hooks.skipped("no attention written by hand was seen")
        if self._unsettled:
            unsettled, self._unsettled = self._unsettled, []
            self._unsettled += [captured for captured in unsettled if not self._settle(captured)]

    def rewritten(
        self, graph: GraphModule, inputs: Sequence[Any], finish: Finish
    ) -> Callable[..., Any]:
        """A `compiled_calls.Rewrite`: the attention is replaced where that is shown to be right."""
        kept = {id(tensor) for root in self._modules() for tensor in _tensors_of(root)}
        done = rewrite(graph, inputs, lambda tensor: id(tensor) in kept)
        captured = running[-1] if running else None
        if captured is not None:
            where = captured.cls.__name__
            captured.note(len(done.masks), done.unfit)
            if captured.graphs > MOST_GRAPHS and captured not in self._unsettled:
                self._unsettled.append(captured)
        else:
            where = ", ".join(dict.fromkeys(type(root).__name__ for root in self._modules()))
            for reason in dict.fromkeys(map(str, done.unfit)):
                self._hooks.skipped(f"{where}: {reason}")
        for mask in dict.fromkeys(done.masks):
            self._hooks.applied(f"{where}: {MASKS[mask]}")
        run, original, holds = finish(graph, inputs), done.original, done.holds
        if holds is None:
            return run

        def call(*args: Any) -> object:
            try:
                return run(*args) if holds(args) else original(*args)
            except BaseException as error:
                drop_frame(error)
                raise

        return call

    def _failed(self, captured: Captured) -> None:
        """A captured module raised and runs its own code: at once, or once this step is over.

        A call that a checkpoint repeats in the backward pass must do the same as before.
        """
        if is_checkpointed():
            if captured not in self._unsettled:
                self._unsettled.append(captured)
        else:
            self.give_up(captured, f"it raised {captured.raised}")

    def give_up(self, captured: Captured, reason: str | None) -> None:
        """Let the modules of a class run their own code again."""
        for ref in captured.modules:
            module = ref()
            if module is not None and is_captured(module):
                module._compiled_call_impl = None
        if reason is not None:
            self._hooks.skipped(f"{captured.cls.__name__}: {reason}")

    # -- choosing modules ----------------------------------------------------------------------

    def _capture(self, calling: list[weakref.ref[Module]]) -> None:
        """Capture the first of some modules, of which each is called by the next."""
        module = calling[0]() if calling else None
        if module is None or module._backward_hooks or any(map(is_captured, module.modules())):
            return
        if self._compile is None:
            self._compile = capturing()
        captured = self._captured.get(type(module))
        if captured is None:
            captured = self._captured[type(module)] = Captured(type(module))
            self._unsettled.append(captured)
        try:
            call = CapturedCall(captured, module, self._compile, self._failed)
        except RuntimeError as error:
            self._hooks.skipped(f"dynamo does not run here: {error}")
            return
        captured.modules.append(calling[0])
        captured.around.append(calling[1:])
        module._compiled_call_impl = call

    def _settle(self, captured: Captured) -> bool:
        """Keep a rewritten module, else try those around it; False while nothing is known yet."""
        if captured.raised is not None:
            self.give_up(captured, f"it raised {captured.raised}")
        elif captured.graphs > MOST_GRAPHS:
            self.give_up(captured, "its shapes keep changing")
        elif captured.replaced or not captured.called:
            return captured.called
        elif not captured.graphs:
            self.give_up(captured, "dynamo captures nothing of it")
        else:
            unfit = captured.unfit
            self.give_up(captured, None if unfit is None or unfit.outside else str(unfit))
            if unfit is None or unfit.outside:
                before = len(self._unsettled)
                for calling in captured.around:
                    self._capture(calling)
                if len(self._unsettled) == before:
                    reason = str(unfit or "gpurun does not know this form of attention")
                    self._hooks.skipped(f"{captured.cls.__name__}: {reason}")
        return True

    def _modules(self) -> list[Module]:
        return [m for m in (ref() for ref in self._roots) if m is not None]


def _tensors_of(root: Module) -> Iterator[Tensor]:
    """The tensors that the modules of a root keep: parameters, buffers, plain attributes."""
    for module in root.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                yield value
        for tensor in (*module._buffers.values(), *module._parameters.values()):
            if tensor is not None:
                yield tensor
