"""One root module, and the wrapper that stands behind it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpurun.knobs.applied.backward_graph import graph_leaves
from gpurun.runtime.core.tensor_values import tensors

LOOK_STEPS = 2
"""After this many steps of a module the parameters that get gradients are known."""
LATER = 4
"""Each time a wrapper is undone, the next one waits this many times as many steps."""


class RemovedParameter:
    """A parameter whose module is gone on this rank, but perhaps not yet on others."""

    grad: Tensor | None = None

    def __init__(self, parameter: Tensor | RemovedParameter) -> None:
        self.shape: torch.Size = parameter.shape
        self.dtype: torch.dtype = parameter.dtype
        self.device: torch.device = parameter.device


class WrappedRoot:
    """One root module and, once the first steps are over, its wrapper.

    `reached`: the parameters that got gradients on every rank so far; `partly`: some got them on
    some ranks only. `moved`: trained since its buffers were last made alike. `waiting`: gradients
    that are accumulated here are not averaged yet. `called`: since the last backward pass.
    `wrapped`: the parameters that the wrapper was made for, by identity. `look_steps`: steps
    that are observed before it is made. `idle`: steps of optimizers since its last call. `stale`:
    modules or parameters were registered since it was looked at.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.wrapper: DistributedDataParallel | None = None
        self.reached: set[int] = set()
        self.partly = False
        self.moved = False
        self.waiting = False
        self.called = False
        self.wrapped: dict[int, Tensor] = {}
        self.steps = 0
        self.look_steps = LOOK_STEPS
        self.retired: DistributedDataParallel | None = None
        """The wrapper that was undone since the last backward pass: a graph may still need it."""
        self.idle = 0
        self.stale = False
        self._removed: list[RemovedParameter] = []
        self._marks: dict[int, tuple[int, int] | None] = {}
        self._has = [weakref.ref(p) for p in module.parameters()]
        self._trained: set[int] = set()
        self._by_call: set[int] = set()
        """Parameters that got gradients in passes after calls, and in others."""
        self._by_itself: set[int] = set()
        self._by_forward: set[int] = set()
        """Parameters on which its results depend."""
        self._outside: set[int] = set()
        """Parameters that got gradients though no result depends on them (a weight of the loss)."""
        self._one: Callable[[], Tensor | None] = lambda: None
        self.stand_ins()

    def parameters(self) -> list[Tensor]:
        """The parameters that are or were trained, in an order that all ranks have. One that was
        frozen in the middle of a step still takes part in it."""
        module = self.module()
        every = [] if module is None else list(module.parameters())
        self._trained.update(id(p) for p in every if p.requires_grad)
        return [p for p in every if id(p) in self._trained]

    def stand_ins(self) -> Sequence[Tensor | RemovedParameter]:
        """Its parameters, also where the module is gone: when that is differs between ranks."""
        parameters = self.parameters()
        if self.module() is None:
            return [RemovedParameter(removed) for removed in self._removed]
        if len(parameters) != len(self._removed):
            self._removed = [RemovedParameter(p) for p in parameters]
        return parameters

    def renewed(self) -> bool:
        """True if it has other parameters than when it was last looked at."""
        self.stale, module = False, self.module()
        has = [] if module is None else list(module.parameters())
        if len(has) == len(self._has) and all(
            r() is p for r, p in zip(self._has, has, strict=True)
        ):
            return False
        self._has, self._removed = [weakref.ref(p) for p in has], []
        return True

    def mark(self) -> None:
        """Remember what its gradients are before a backward pass."""
        self._marks = {id(p): _state(p.grad) for p in self.trainable()}

    def touched(self) -> set[bool]:
        """True or False if the pass since `mark` gave all or none of its parameters a gradient;
        both if it gave one to some. Parameters with a gradient are remembered for `apart`."""
        found = {id(p): _state(p.grad) != self._marks.get(id(p)) for p in self.trainable()}
        touched = {p for p in found if found[p]}
        (self._by_call if self.called else self._by_itself).update(touched)
        if self.called:
            self._outside |= touched - self._by_forward
        return set(found.values())

    def returned(self, result: object) -> None:
        """Remember which parameters it depends on."""
        self._by_forward.update(map(id, graph_leaves(tensors(result))))

    @property
    def apart(self) -> bool:
        """True if some parameter gets gradients only in passes that no call of the module began: no
        wrapper would wait for them. Nor does one that looks for unused parameters know of those
        that the script itself uses in the loss.
        """
        return bool(self._by_itself - self._by_call) or (self.unused and bool(self._outside))

    def trainable(self) -> list[Tensor]:
        """The parameters that are trained now."""
        return [p for p in self.parameters() if p.requires_grad]

    @property
    def one(self) -> Tensor | None:
        """One that gets gradients, None before any did; it is looked for once."""
        if self._one() is None:
            found = next((p for p in self.trainable() if id(p) in self.reached), None)
            if found is not None:
                self._one = weakref.ref(found)
        return self._one()

    def usable(self) -> DistributedDataParallel | None:
        """The wrapper, for a call that is about to be made; None where there is none for it.

        One that was made before parameters were frozen would wait for their gradients. Where all
        are (a discriminator, while the generator learns) it stands by; where some are it is undone.
        """
        frozen = sum(not parameter.requires_grad for parameter in self.wrapped.values())
        if frozen and frozen < len(self.wrapped):
            self.unwrap()
        return None if frozen else self.wrapper

    def unwrap(self) -> None:
        """Begin again, as if it had just been met: the next steps show what gets gradients."""
        self.retired, self.wrapper, self.wrapped, self.steps = self.wrapper, None, {}, 0
        self.reached, self.partly = set(), False
        self._one = lambda: None
        self.look_steps *= LATER

    @property
    def unused(self) -> bool:
        """True if some parameter got no gradient, or not on every rank."""
        return self.partly or any(id(p) not in self.reached for p in self.trainable())

    def frozen_without_gradient(self) -> list[Tensor]:
        """The parameters, frozen after the forward pass, that get zeros from the wrapper and would
        have no gradient."""
        return [p for p in self.wrapped.values() if not p.requires_grad and p.grad is None]


def _state(gradient: Tensor | None) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)


def is_constant(tensor: Tensor) -> bool:
    """True for a tensor that no script writes to, and no exchange can: expanded or sparse."""
    return tensor.layout is not torch.strided or any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def wrapped_weakly(module: nn.Module, unused: bool) -> DistributedDataParallel:
    """Return a wrapper that does not keep its module alive.

    `unused`: some parameters get no gradient. All ranks have the same weights already: writing
    them once more would break graphs that need them. `TypeError` for an option that torch does not
    know.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    # torch 2.4, which does not know the option, writes them all the same
    as_they_are: dict[str, Any] = {"init_sync": False} if "init_sync" in known else {}
    wrapper = DistributedDataParallel(module, find_unused_parameters=unused, **as_they_are)
    constant = (name for name, buffer in module.named_buffers() if is_constant(buffer))
    wrapper.parameters_to_ignore.update(constant)
    del wrapper._modules["module"]
    wrapper.__dict__["module"] = weakref.proxy(module)
    return wrapper
