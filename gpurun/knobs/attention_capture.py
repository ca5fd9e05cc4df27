"""Capture the modules of a model that hold attention, and run their rewritten graphs.

Where nothing else compiles the model: in the first step it is seen which modules hold attention;
from the next on dynamo captures them, and their graphs run as they are, operation by operation.
What is not expected sends the modules back to their own code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from gpurun.knobs.api import Hooks
from gpurun.knobs.attention_look import Look
from gpurun.knobs.attention_rewrite import rewrite
from gpurun.knobs.attention_sites import Unfit
from gpurun.knobs.graph_rewrites import Finish, rewriting
from gpurun.records.frames import drop_frame

MOST_GRAPHS = 24
"""Graphs of one class of modules; one of which more are asked for changes its shapes for ever."""
RECOMPILATIONS = 2 * MOST_GRAPHS
"""What dynamo is allowed before it gives a function up by itself, with a warning."""
MASKS = {"causal": "causal", "nothing": "no mask", "other": "masked"}
END_OF_RECOMPUTATION = "_StopRecomputationError"
"""What torch's checkpoint raises through a module once it has computed enough of it again."""
COMPILED = "the script compiles by itself"


class Capture:
    """The attention of this process. It is the context of each root call."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._roots: list[weakref.ref[Any]] = []
        self._look: Look | None = None
        self._mode: Any = None
        self._captured: dict[type, _Captured] = {}
        self._unsettled: list[_Captured] = []
        self._compile: Callable[..., Any] | None = None

    def root_found(self, module: Any) -> None:
        """Look at the calls of a new root until the end of the step."""
        compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if compiled or self._hooks.has_trait("compile") is not None:
            self._hooks.skipped(COMPILED)
        elif self._hooks.has_trait("data_parallel") is not None:
            self._hooks.skipped("DataParallel calls copies of the model")
        else:
            self._roots.append(weakref.ref(module))
            self._look = self._look or Look()

    def __enter__(self) -> None:
        if self._look is None:
            return
        if any(m._compiled_call_impl is not None for m in self._modules()):
            self._look = None  # another knob compiles it, and asks for the rewrite
            return
        self._mode = self._look.mode()
        self._mode.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mode is not None:
            self._mode.__exit__(kind, error, trace)
            self._mode = None

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

    def rewritten(self, graph: Any, inputs: Sequence[Any], finish: Finish) -> Callable[..., Any]:
        """A `graph_rewrites.Rewrite`: the attention is replaced where that is shown to be right."""
        kept = {id(tensor) for root in self._modules() for tensor in _tensors_of(root)}
        done = rewrite(graph, inputs, lambda tensor: id(tensor) in kept)
        captured = self._captured.get(running[-1]) if running else None
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

        def call(*args: Any) -> Any:
            try:
                return run(*args) if holds(args) else original(*args)
            except BaseException as error:
                drop_frame(error)
                raise

        return call

    def failed(self, captured: _Captured) -> None:
        """A captured module raised and runs its own code: at once, or once this step is over.

        What is called again by a checkpoint in the backward pass must do then what it did before.
        """
        if _is_checkpointed():
            if captured not in self._unsettled:
                self._unsettled.append(captured)
        else:
            self.give_up(captured, f"it raised {captured.raised}")

    def give_up(self, captured: _Captured, reason: str | None) -> None:
        """Let the modules of a class run their own code again."""
        for ref in captured.modules:
            module = ref()
            if module is not None and _is_captured(module):
                module._compiled_call_impl = None
        if reason is not None:
            self._hooks.skipped(f"{captured.cls.__name__}: {reason}")

    # -- choosing modules ----------------------------------------------------------------------

    def _capture(self, calling: list[weakref.ref[Any]]) -> None:
        """Capture the first of some modules, of which each is called by the next."""
        module = calling[0]() if calling else None
        if module is None or module._backward_hooks or any(map(_is_captured, module.modules())):
            return
        if self._compile is None:
            self._compile = _prepare(self._hooks)
        captured = self._captured.get(type(module))
        if captured is None:
            captured = self._captured[type(module)] = _Captured(type(module))
            self._unsettled.append(captured)
        captured.modules.append(calling[0])
        captured.around.append(calling[1:])
        module._compiled_call_impl = _Call(self, captured, module, self._compile)

    def _settle(self, captured: _Captured) -> bool:
        """Keep what is worth it, try what is around the rest; False while nothing is known yet."""
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
                    reason = str(unfit or "its attention is of a form that is not known")
                    self._hooks.skipped(f"{captured.cls.__name__}: {reason}")
        return True

    def _modules(self) -> list[Any]:
        return [m for m in (ref() for ref in self._roots) if m is not None]


@dataclass(eq=False)
class _Captured:
    """The modules of one class that are captured, and what became of their graphs."""

    cls: type
    modules: list[weakref.ref[Any]] = field(default_factory=list)
    around: list[list[weakref.ref[Any]]] = field(default_factory=list)
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


running: list[type] = []
"""The classes of the captured modules that are being called, the innermost last."""


class _Call:
    """What a captured module is called by. Copies and pickles of the module do not have it."""

    def __init__(
        self, capture: Capture, captured: _Captured, module: Any, compile: Callable[..., Any]
    ) -> None:
        self._capture = capture
        self._captured = captured
        self._module = weakref.ref(module)
        self._run = compile(module._call_impl)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        assert module is not None
        if not _is_traced():
            running.append(self._captured.cls)
            self._captured.called = True
            try:
                return self._run(*args, **kwargs)
            except Exception as error:
                if type(error).__name__ == END_OF_RECOMPUTATION:
                    raise
                self._captured.raised = type(error).__name__
            finally:
                running.pop()
            self._capture.failed(self._captured)
        try:
            return module._call_impl(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise


def _prepare(hooks: Hooks) -> Callable[..., Any]:
    """What captures a function with dynamo and runs its rewritten graphs."""
    import torch
    import torch._dynamo

    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, RECOMPILATIONS)
    if torch.__version__.startswith("2.4."):
        config.inline_inbuilt_nn_modules = True  # else each module has a graph of its own
    backend = rewriting(lambda graph, inputs: graph.forward)
    return lambda function: torch.compile(function, backend=backend)


def _is_checkpointed() -> bool:
    """Whether something stands in for the tensors that autograd saves; asked without being sure."""
    import torch

    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def _is_captured(module: Any) -> bool:
    return isinstance(module._compiled_call_impl, _Call)


def _is_traced() -> bool:
    """Whether the script traces its model, or differentiates it with `torch.func`."""
    import torch

    return torch._C._get_tracing_state() is not None or (
        torch._C._functorch.peek_interpreter_stack() is not None
    )


def _tensors_of(root: Any) -> Iterator[Any]:
    """What the modules of a root keep: parameters, buffers, tensors that are plain attributes."""
    for module in root.modules():
        for value in vars(module).values():
            if hasattr(value, "data_ptr"):
                yield value
        yield from module._buffers.values()
        yield from module._parameters.values()
