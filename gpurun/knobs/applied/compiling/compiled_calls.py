"""Compiled calls of modules, and the calls that a compiled module answers with its own code.

Torch.compile raises an error in some: compiled code cannot be traced, and its gradients cannot be
differentiated again. The last batch of an epoch is not worth a compilation. Hooks that came after
the compilation are not in its code.

Other knobs change graphs that are captured from a model before these are compiled or run. A rewrite
takes the graph module, the inputs of its first call, and what makes a callable of a graph; it
returns the callable. So a knob that compiles need not know which others change graphs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import Module, Parameter
from torch.nn.modules import module as of_all_modules

from gpurun.knobs.applied.autograd_state import is_checkpointed, is_traced
from gpurun.knobs.applied.root_calls import leaves
from gpurun.records.frames import drop_frame

PLACES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class LaterHooks:
    """True while a hook is where none was at the first call: on `module`, below it, on all modules.

    Where one was, dynamo guards it. To look takes 0.02 µs a module.
    """

    def __init__(self, module: Module) -> None:
        self._module = module

    def __bool__(self) -> bool:
        return any(self._empty)

    @cached_property
    def _empty(self) -> list[dict[int, Callable[..., object]]]:
        own = [getattr(part, place) for part in self._module.modules() for place in PLACES]
        shared = [getattr(of_all_modules, f"_global{place}") for place in PLACES]
        return [hooks for hooks in (*own, *shared) if not hooks]


FIRST_CALLS = 12
"""What comes among so many first calls is usual: the audited and warm-up steps of a trial."""
MOST_RARE = 0.1
"""Where more than this part of all calls have other shapes, sizes change all the time."""
PLAIN_MEMORY = 2
"""Uncompiled code may keep this many times the memory that the process has ever reserved."""

Shapes = tuple[torch.Size, ...]


class RareCalls:
    """Tells the last batches among the training calls of a module, by the shapes of its inputs.

    Such a call comes alone between usual ones, and its inputs are smaller.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._usual: set[Shapes] = set()
        self._largest = 0
        """Elements of the largest inputs that are usual."""
        self._calls = self._others = 0
        self._before: Shapes = ()
        self._over = False
        """True once torch is to decide: sizes change all the time, or the shapes are not known."""

    def is_rare(self, tensors: Sequence[Tensor]) -> bool:
        """True if the call that now comes, with these inputs, is rare."""
        if self._over or not torch.is_grad_enabled() or is_checkpointed():
            return False  # what a checkpoint computes again must run the same code
        try:
            return self._is_rare(tensors)
        except Exception:  # a tensor without sizes
            self._over = True
            return False

    def _is_rare(self, tensors: Sequence[Tensor]) -> bool:
        shapes = tuple(tensor.shape for tensor in tensors)
        before, self._before = self._before, shapes
        self._calls += 1
        if shapes in self._usual:
            return False
        elements = sum(tensor.numel() for tensor in tensors)
        if self._calls <= FIRST_CALLS or shapes == before:
            self._usual.add(shapes)
            self._largest = max(self._largest, elements)
            return False
        self._others += 1
        self._over = self._others > MOST_RARE * self._calls
        return not self._over and elements < self._largest and _has_room(self._module)


def _has_room(module: Module) -> bool:
    """True if what runs as written surely fits beside what CUDA graphs keep for themselves."""
    device = next(module.parameters()).device
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= PLAIN_MEMORY * torch.cuda.max_memory_reserved(device)


def trains_as_written(root: Module, leaner: bool) -> Callable[[object], bool]:
    """Tells from its arguments whether a training call of `root` runs the root's own code.

    `leaner`: what is compiled takes much less memory than that code, which then runs only where
    compiled code cannot.
    """
    rare = RareCalls(root)

    def tell(given: object) -> bool:
        tensors = leaves(given)
        return any(map(_is_differentiated, tensors)) or (not leaner and rare.is_rare(tensors))

    return tell


def or_plain(
    module: Module,
    compiled: Callable[..., Any],
    hooked: Callable[[], None],
    as_written: Callable[[object], bool],
) -> Callable[..., Any]:
    """`compiled`, the compiled call of `module`, except where the module's own code runs.

    That is in training calls of which `as_written(arguments)` says so, where the call is traced,
    and for the sake of later hooks: then `hooked` is called. Dynamo sees the module's own code.
    """
    plain: Callable[..., Any] = module._call_impl
    later_hooks = LaterHooks(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        run = compiled
        if is_traced() or (torch.is_grad_enabled() and as_written((args, kwargs))):
            run = plain
        if later_hooks:
            run = plain
            hooked()
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return seen_by_dynamo(call, plain)


def seen_by_dynamo(call: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, in place of which dynamo traces `plain`."""
    vars(call).update(_torchdynamo_inline=plain, _torchdynamo_orig_callable=plain)
    return call


def _is_differentiated(given: object) -> bool:
    """True if the script wants gradients of this input: a penalty on them differentiates twice."""
    if not isinstance(given, Tensor) or not given.requires_grad:
        return False
    base = given if given._base is None else given._base
    return base.is_leaf and not isinstance(base, Parameter)


Finish = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
Rewrite = Callable[[GraphModule, Sequence[Any], Finish], Callable[..., Any]]

REWRITES: list[Rewrite] = []
"""The rewrites of this process, in the order of their knobs."""
LEANER: list[Rewrite] = []
"""Those of them by which a model takes much less memory."""


def compile_in_place(module: Module, mode: str, hooked: Callable[[], None]) -> None:
    """`module.compile(mode=mode)`, of graphs that were rewritten first (see `compiled_call`).

    Calls that compiled code cannot answer run the module's own code (`or_plain`, to which `hooked`
    goes).
    """
    compiled = partial(compiled_call(module, mode, module), module)
    as_written = trains_as_written(module, bool(LEANER))
    module._compiled_call_impl = or_plain(module, compiled, hooked, as_written)


def compiled_call(module: Module, mode: str, root: Module) -> Callable[..., Any]:
    """The compiled call of `module`, a part of `root`, and of others that compute alike.

    Its first argument is the module.

    Five things differ from `module.compile`. A container of torch's own, such as `nn.Sequential`,
    is compiled too: `Module.compile` skips all of torch's own frames there, and compiles nothing.
    Torch's limit of recompilations is that of this call, not of a class. No buffer that the graph
    saves is reused in its backward pass. Otherwise the second backward pass of a script that
    sometimes retains its graph would raise. A model without a dropout module draws the numbers that
    it draws without compiling, so that both can be compared; masks of dropout stay fused with what
    they mask, which is faster. The graphs are rewritten first.
    """
    from torch._inductor import config

    _start_processes()
    if hasattr(torch._functorch.config, "donated_buffer"):
        torch._functorch.config.donated_buffer = False
    if not any(_drops(part) for part in root.modules()):
        config.fallback_random = True
    how: dict[str, Any] = {"mode": mode}
    if REWRITES:
        inductor: Callable[..., Finish] = torch._TorchCompileInductorWrapper
        how = {"backend": rewriting(inductor(mode, None, None))}
    code = _call.__code__.replace(co_name=type(module).__name__)
    return torch.compile(FunctionType(code, globals()), **how)


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
