"""Compile root modules, or their repeated blocks, and follow the outcome.

Results that CUDA graphs overwrite are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.api import COPIES_STAY_PLAIN, NO_DOUBLE_BACKWARD, SCRIPT_COMPILES, Hooks
from gpurun.knobs.applied.autograd_state import is_checkpointed, is_traced
from gpurun.knobs.applied.compiling.compilations import Compilations
from gpurun.knobs.applied.compiling.compiled_calls import (
    LEANER,
    compile_in_place,
    compiled_call,
    or_plain,
    seen_by_dynamo,
    trains_as_written,
)
from gpurun.knobs.applied.compiling.model_parts import KeptTensors, count_blocks, repeated_blocks
from gpurun.knobs.applied.padded_logits import copy_of
from gpurun.knobs.applied.root_calls import COPIED_LATER, leaves, map_tensors
from gpurun.knobs.device_requirements import GRAPH_MODES, REGIONAL, missing_on
from gpurun.records.frames import drop_frame
from gpurun.records.messages.traits import DOUBLE_BACKWARD

MOST_SHAPES = 10
"""A graph is recorded for each combination of input shapes: more than training, evaluation, and the
last batches of both take."""

NO_BLOCKS = "no block of layers repeats that holds most of the model"
GRAPHS = "{graphs}"
"""Stands in a detail for the number of graphs that were compiled in the first step."""
HOOKED = "not while hooks are there that the script registered later"


def compile_roots(mode: str, hooks: Hooks) -> None:
    """Compile each root in `mode` when it is found."""
    report = _CompileReport(hooks)
    graphs = _GraphSteps(report) if mode in GRAPH_MODES else None

    def compile_root(module: Module) -> None:
        device = next(module.parameters()).device
        reason = _unfit(module, device, hooks)
        if reason is not None:
            hooks.skipped(reason)
            return
        named = type(module).__name__
        if mode != REGIONAL:
            report.begin(f"{named}: {mode}")
            compile_in_place(module, mode, report.hooked)
        elif groups := repeated_blocks(module):
            report.begin(f"{named}: {mode}, {_text(groups)}, graphs: {GRAPHS}")
            compile_blocks(module, groups, report.hooked)
        else:
            hooks.skipped(f"{named}: {NO_BLOCKS}")
        if graphs is not None and device.type == "cuda":
            graphs.add(module)

    hooks.on_root(compile_root)
    if graphs is not None:
        hooks.on_step(graphs.step_done)
        hooks.around_root_call(lambda: graphs, graphs.output, graphs.inputs)
    hooks.on_step(report.step_done)


class _CompileReport:
    """Says what became of the compiling: it is applied once there are graphs to run."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._compilations = Compilations(hooks, self.give_up)
        self._waiting: list[str] = []
        self._begun = self._over = False

    def begin(self, root: str) -> None:
        """A root is about to be compiled, at its next call."""
        if not self._begun:
            self._begun = True
            self._compilations.install()
        if not self._over:
            self._waiting.append(root)

    def step_done(self, step: int) -> None:
        """Look whether there are graphs by now."""
        if not self._waiting:
            return
        if graphs := self._compilations.graphs:
            for root in self._waiting:
                self._hooks.applied(root.replace(GRAPHS, str(graphs)))
            self._waiting.clear()
        elif step == 1:
            nothing = "torch finds nothing in the model's forward that it can compile"
            self._hooks.skipped(_twice(self._hooks) or nothing)

    def without_graphs(self, modules: Sequence[Module], why: str) -> None:
        """These are compiled anew, by the default mode."""
        if not self._over:
            self._waiting = [f"{type(module).__name__}: default, for {why}" for module in modules]

    def give_up(self, reason: str) -> None:
        """A part of the model runs without being compiled: nothing counts as applied any more."""
        self._over = True
        self._waiting.clear()
        self._hooks.revoked(reason)

    def hooked(self) -> None:
        """A call ran the model's own code, which calls hooks that came after the compiling."""
        if not (self._waiting or self._over):
            self._hooks.applied(HOOKED)


class _GraphSteps:
    """Tells CUDA graphs where a step begins, and compiles anew without them where they would
    overwrite results: under gradient accumulation, and in models that keep a tensor of a step. So
    it does where the shapes of inputs keep changing, and each would take a graph of its own.

    It is the context of each root call.
    """

    def __init__(self, report: _CompileReport) -> None:
        self.modules: list[Module] = []
        self._kept: list[KeptTensors] = []
        self._report = report
        self._training_calls = 0
        self._shapes: set[tuple[torch.Size, ...]] = set()

    def add(self, module: Module) -> None:
        """Take care of a root that is about to be called for the first time."""
        self.modules.append(module)
        self._kept.append(KeptTensors(module))

    def __enter__(self) -> None:
        if not self.modules or is_traced():
            return
        if self._training_calls == 0:
            # also before evaluation calls, or their outputs pile up in one endless step
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        if torch.is_grad_enabled():
            self._training_calls += 1
            if self._training_calls > len(self.modules):
                self._give_up("graphs would overwrite the first of several forward passes a step")

    def __exit__(self, *_: object) -> None:
        """Look what the first forward pass of a root has left in it."""
        for kept in () if is_traced() else self._kept:
            name = kept.copy_new()
            if name is not None and self.modules:
                self._give_up(f"graphs would overwrite {name}, which the model keeps")

    def step_done(self, step: int) -> None:
        """The next root call begins a step."""
        self._training_calls = 0
        self._kept.clear()

    def inputs(self, given: object) -> object:
        """Note the shapes of what a root is given, which is returned as it is."""
        if self.modules and not is_traced():
            self._shapes.add(tuple(tensor.shape for tensor in leaves(given)))
            if len(self._shapes) > MOST_SHAPES:
                self._give_up(f"the input had {len(self._shapes)} shapes, each with its own graph")
        return given

    def output(self, value: object) -> object:
        """A copy of the root's output, which the next step does not overwrite."""
        graphs = self.modules or self._kept  # the latter: of a step that began with graphs
        return map_tensors(value, _clone) if graphs and not is_traced() else value

    def _give_up(self, why: str) -> None:
        modules, self.modules = self.modules, []
        for module in modules:
            compile_in_place(module, "default", self._report.hooked)
        self._report.without_graphs(modules, why)


def _unfit(module: Module, device: torch.device, hooks: Hooks) -> str | None:
    if hooks.has_trait("compile") is not None or hasattr(module, "_orig_mod"):
        return SCRIPT_COMPILES
    if getattr(module, "_compiled_call_impl", None) is not None:
        return SCRIPT_COMPILES
    if hooks.has_trait("data_parallel") is not None:
        return COPIES_STAY_PLAIN
    return _twice(hooks) or missing_on(device)


def _text(groups: Sequence[Sequence[Module]]) -> str:
    return ", ".join(f"{number} × {name}" for name, number in count_blocks(groups).items())


def _twice(hooks: Hooks) -> str | None:
    where = hooks.has_trait(DOUBLE_BACKWARD)
    return None if where is None else f"{where}: {NO_DOUBLE_BACKWARD}"


def _clone(tensor: Tensor) -> Tensor:
    kept = not tensor.is_cuda or any(copies(tensor) for copies in COPIED_LATER)
    return tensor if kept else copy_of(tensor)


def compile_blocks(
    root: Module, groups: Sequence[Sequence[Module]], hooked: Callable[[], None]
) -> None:
    """Give the blocks of each group one compiled code; `hooked` as for `compile_in_place`.

    An int of a module, such as the number of its layer, may differ among the blocks: code for any
    int is compiled with the second. Other attributes that differ and matter cost a compilation
    each, up to torch's limit.
    """
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    calls = _RootCalls()
    for blocks in groups:
        compiled = compiled_call(blocks[0], "default", root)
        for block in blocks:
            call = or_plain(block, partial(compiled, block), hooked, calls.runs_as_written)
            block._compiled_call_impl = call
    root._compiled_call_impl = calls.around(root)


class _RootCalls:
    """Tells the blocks of a root which of its training calls compiled code cannot answer.

    A block that is checkpointed is compiled in all calls: what runs it again in the backward pass
    is no call of the root, and has to run the same code.
    """

    def __init__(self) -> None:
        self._as_written = False

    def around(self, root: Module) -> Callable[..., Any]:
        """The call of the root's own code."""
        own: Callable[..., Any] = root._call_impl
        as_written = trains_as_written(root, bool(LEANER))

        def call(*args: Any, **kwargs: Any) -> Any:
            trains = torch.is_grad_enabled() and not is_traced()
            self._as_written = trains and as_written((args, kwargs))
            try:
                return own(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                self._as_written = False

        return seen_by_dynamo(call, own)

    def runs_as_written(self, given: object) -> bool:
        """True in such a call of the root."""
        return self._as_written and not is_checkpointed()
