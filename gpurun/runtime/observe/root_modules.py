"""Finding root modules (the outermost module called while training) and standing in their calls.

Until the roots are known `nn.Module.__call__` is watched; then only the class of each root is. The
patch sits on the class, so instances, copies, state dicts and pickles are as without us.
torch.compile traces a plain call first: no graph break, no guard on our state.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from gpurun.knobs.applied.compiling.model_parts import count_blocks, repeated_blocks
from gpurun.records.events import RootEvent, TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.core.call_contexts import CallContexts
from gpurun.runtime.core.patching import guarded, switched_off
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.tensor_values import first_tensor, samples_and_tokens
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK

GIVE_UP_STEPS = 3
"""After this many steps without a root the search ends: the model is not called as a module."""
INFERENCE_CALLS = 3
COVERAGE = 0.2
"""A root holds at least this part of some optimizer's parameters: less is a layer called alone."""

now = time.perf_counter_ns


class Observer(Protocol):
    """Looks at root calls without gradients; neither method may raise."""

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any | None:
        """Note the inputs of a call; None if its result is of no interest."""

    def after(self, seen: object, result: object) -> None:
        """Note the result of the call; `seen` is the return value of `before`."""


class RootModules:
    """The root modules of this process, and the contexts of knobs around their calls."""

    def __init__(self) -> None:
        self.known: dict[int, weakref.ref[nn.Module]] = {}
        self.on_root: list[Callable[[nn.Module], None]] = []
        self.around = CallContexts()
        self.route: Callable[[Callable[..., Any], nn.Module], Callable[..., Any]] | None = None
        """`route(original, module)` returns the function to call in place of torch's `original`."""
        self.on_inputs: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None] | None = None
        self.observer: Observer | None = None
        """Sees the inputs and results of calls without gradients."""
        self._original: Callable[..., Any] = nn.Module.__call__
        self._searching = False
        self._steps_searched = 0
        self._found = 0
        self._outermost: set[int] = set()
        """Threads that are inside an outermost call while the search is on."""
        self._inside: set[int] = set()
        """Threads that are inside a root's call."""
        self._inference: Counter[int] = Counter()
        self._patched: set[type] = set()
        self._in_training_mode = False

    def install(self) -> None:
        """Start the search."""
        self._original = nn.Module.__call__
        self._grad_enabled = torch.is_grad_enabled
        self._in_backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._watch = self._caller(self._original)
        self._report: Callable[..., None] = self._report_forward
        self._listener = guarded("root search", self._stepped)
        self._note_error = guarded("out of memory", TRAITS.note_error)
        self.search()

    def modules(self) -> list[nn.Module]:
        """The roots that are still alive."""
        return [m for m in (ref() for ref in list(self.known.values())) if m is not None]

    def evaluating(self) -> bool:
        """True if no root is in training mode, although one has trained in it."""
        if not self._in_training_mode:
            return False
        for ref in list(self.known.values()):  # asked for every batch: no list of modules is made
            module = ref()
            if module is not None and module.training:
                return False
        return True

    # -- the search ----------------------------------------------------------------------------

    def search(self, optimizer: Optimizer | None = None) -> None:
        """Look for roots; called again for each new optimizer of parameters that no root holds."""
        if optimizer is not None and _parameters(optimizer) <= self._covered():
            return
        self._steps_searched = 0
        if not self._searching and nn.Module.__call__ is self._original:
            self._searching = True
            nn.Module.__call__ = self._watch  # type: ignore[method-assign]
            CLOCK.listeners.insert(0, self._listener)

    def _consider(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if this outermost call is a root's; if so it is one from now on."""
        try:
            if id(module) in self.known:
                return True
            if torch._C._is_tracing() or not self._is_root(module):
                return False
            self._promote(module, args, kwargs)
        except Exception as error:
            RECORDER.hook_failed("root search", error)
            self._end_search()
            return False
        return True

    def _is_root(self, module: nn.Module) -> bool:
        parameters = list(module.parameters())
        if not parameters or any(map(nn.parameter.is_lazy, parameters)):
            return False
        stepped = [_parameters(o) for o in CLOCK.optimizers]
        if not torch.is_grad_enabled() or not (module.training or stepped):
            if stepped or CLOCK.backwards:
                return False
            self._inference[id(module)] += 1
            return self._inference[id(module)] > INFERENCE_CALLS
        mine = {id(p) for p in parameters if p.requires_grad}
        if not mine:
            return False
        return not stepped or any(len(mine & s) >= COVERAGE * len(s) for s in stepped if s)

    def _promote(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for callback in self.on_root:
            callback(module)
        known, key = self.known, id(module)
        known[key] = weakref.ref(module, lambda _: known.pop(key, None))
        describe = guarded("root event", _root_event)
        event = describe(self._found, module, first_tensor(args, kwargs))
        self._found += 1
        if event is not None:
            RECORDER.event(event)
        self._patch_class(type(module))
        covered = self._covered()
        if len(CLOCK.optimizers) and all(_parameters(o) <= covered for o in CLOCK.optimizers):
            self._end_search()

    def _covered(self) -> set[int]:
        return {id(p) for m in self.modules() for p in m.parameters()}

    def _stepped(self, count: int) -> None:
        if not self._searching:
            return
        self._steps_searched += 1
        if self._steps_searched >= GIVE_UP_STEPS and (self._found or not CLOCK.untrained):
            if not self._found:
                RECORDER.event(
                    TraitEvent(
                        trait="no_root",
                        detail="the model is never called as a module, so its forward "
                        "cannot be timed, cast or compiled",
                    )
                )
            self._end_search()

    def _end_search(self) -> None:
        if self._searching:
            self._searching = False
            CLOCK.listeners = [x for x in CLOCK.listeners if x is not self._listener]
            if nn.Module.__call__ is self._watch:
                nn.Module.__call__ = self._original  # type: ignore[method-assign]

    # -- a root's own call ---------------------------------------------------------------------

    def _patch_class(self, cls: type) -> None:
        if any(c in self._patched for c in cls.__mro__):
            return
        original: Any = cls.__call__
        if original is self._watch:
            original = self._original
        cls.__call__ = self._caller(original)  # type: ignore[method-assign]
        self._patched.add(cls)

    def _caller(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `__call__`: of all modules while searching, then of roots' classes."""
        roots, known, inside, outermost = self, self.known, self._inside, self._outermost
        is_compiling, call_root = torch.compiler.is_compiling, self._call_root
        unsure = guarded("inference", self._report_unsure)

        def __call__(module: nn.Module, *args: object, **kwargs: object) -> Any:
            if is_compiling():
                return original(module, *args, **kwargs)
            thread = get_ident()
            try:
                if thread in inside:
                    return original(module, *args, **kwargs)
                if id(module) in known:
                    return call_root(original, module, args, kwargs, thread)
                if not roots._searching or thread in outermost:
                    return original(module, *args, **kwargs)
                outermost.add(thread)
                try:
                    if roots._consider(module, args, kwargs):
                        return call_root(original, module, args, kwargs, thread)
                    began = now()
                    result = original(module, *args, **kwargs)
                    unsure(now() - began, module, args, kwargs)
                    return result
                finally:
                    outermost.discard(thread)
            except BaseException as error:
                drop_frame(error)
                raise

        return functools.update_wrapper(__call__, original)

    def _call_root(
        self,
        original: Callable[..., Any],
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        thread: int,
    ) -> Any:
        self._inside.add(thread)
        try:
            if self.on_inputs is not None:
                self.on_inputs(module, args, kwargs)
            observer = None if self.observer is None or self._trains(module) else self.observer
            seen = None if observer is None else observer.before(module, args, kwargs)
            if self.route is not None:
                original = self.route(original, module)
            began = now()
            if not self.around.entries:
                result = original(module, *args, **kwargs)
            else:
                result = self.around.call(original, module, args, kwargs)
        except BaseException as error:
            self._note_error(error, sys._getframe(1))
            drop_frame(error)
            raise
        finally:
            self._inside.discard(thread)
        elapsed_ns = now() - began
        if observer is not None and seen is not None:
            observer.after(seen, result)
        try:
            self._report(elapsed_ns, module, args, kwargs)
        except Exception as error:
            self._report = switched_off("forward", error)
        return result

    def _trains(self, module: nn.Module) -> bool:
        """True if a call is a part of training: an evaluation may leave gradients enabled."""
        return self._grad_enabled() and (module.training or not self._in_training_mode)

    def _report_forward(
        self, elapsed_ns: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        training = self._trains(module)
        if module.training and training:
            self._in_training_mode = True
        if self._in_backward() != -1:
            return  # computed again by a checkpoint: a part of the backward pass
        samples, tokens = samples_and_tokens(first_tensor(args, kwargs), module)
        CLOCK.forward(elapsed_ns, id(module), samples, tokens, training)

    def _report_unsure(
        self, elapsed_ns: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A module returned. Its calls count if it becomes the root of a script that infers."""
        if id(module) in self._inference and CLOCK.untrained and not self._grad_enabled():
            samples, tokens = samples_and_tokens(first_tensor(args, kwargs), module)
            CLOCK.unsure_forward(elapsed_ns, id(module), samples, tokens)


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _root_event(number: int, module: nn.Module, first: torch.Tensor | None) -> RootEvent:
    parameters = list(module.parameters())
    gpu = _gpu_of(parameters[0].device)
    return RootEvent(
        root=number,
        class_name=type(module).__name__,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        device=str(parameters[0].device),
        module_types=dict(Counter(type(m).__name__ for m in module.modules())),
        input_shape=None if first is None else tuple(int(n) for n in first.shape),
        input_dtype=None if first is None else str(first.dtype).removeprefix("torch."),
        compiled=type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None,
        compute_capability=None if gpu is None else (gpu.major, gpu.minor),
        device_memory_bytes=None if gpu is None else gpu.total_memory,
        device_name=None if gpu is None else gpu.name,
        blocks=count_blocks(repeated_blocks(module)),
    )


def _gpu_of(device: torch.device) -> Any:
    """The GPU as torch sees it, for machines where NVML does not answer; None without one."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.get_device_properties(device)
    except Exception:
        return None  # a stand-in for a GPU


ROOTS = RootModules()
"""The roots of this process."""
