"""One root module, and the wrapper that stands behind it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpurun.knobs.applied.autograd_state import graph_leaves
from gpurun.runtime.core.tensor_values import tensors
from gpurun.runtime.ddp.exchanged_by_hand import is_constant

LOOK_STEPS = 2
"""After this many steps of a module the parameters that get gradients are known."""
MOST_WRAPPERS = 16
"""A root that freezes and thaws more often than this has its gradients averaged by hand."""


class WrappedRoot:
    """One root module and, once the first steps are over, its wrapper.

    A wrapper is made between two steps, for the parameters that are trained then. Calls with other
    trained parameters do without it, until the next step has a fresh one.

    `unused`: a backward pass reached some of its parameters only, or on some ranks only. `moved`:
    trained since its buffers were last made alike. `waiting`: gradients that are accumulated here
    are not averaged yet. `called`: since the last backward pass; `through`: through the wrapper.
    `wrapped`: the parameters that the wrapper was made for, by identity. `steps`: without counting
    those before other parameters were registered. `idle`: steps of optimizers since its last call.
    `stale`: modules or parameters were registered since it was looked at. `held`: its parameters
    while it is at work; they are kept, because ranks would free them at different times.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = weakref.ref(module)
        self.wrapper: DistributedDataParallel | None = None
        self.wrapped: dict[int, Tensor] = {}
        self.wrappers = 0
        self.unused = False
        self.moved = False
        self.waiting = False
        self.called = False
        self.through = False
        self.steps = 0
        self.idle = 0
        self.stale = False
        self.held: list[Tensor] = []
        self._has = [weakref.ref(p) for p in module.parameters()]
        self._marks: dict[int, tuple[int, int] | None] = {}
        self._by_call: set[int] = set()
        """Parameters that got gradients in passes after calls, and in others."""
        self._by_itself: set[int] = set()
        self._by_forward: set[int] = set()
        """Parameters on which its results depend."""
        self._outside: set[int] = set()
        """Parameters that got gradients though no result depends on them (a weight of the loss)."""

    def hold(self, module: nn.Module) -> None:
        """It is at work, with the parameters that it has now."""
        self.held = list(module.parameters())

    def renewed(self, module: nn.Module) -> bool:
        """True if it has other parameters than when it was last looked at. Then it is looked at as
        if it had just been met."""
        self.stale, has = False, list(module.parameters())
        if len(has) == len(self._has) and all(
            r() is p for r, p in zip(self._has, has, strict=True)
        ):
            return False
        self._has, self.steps, self.unused = [weakref.ref(p) for p in has], 0, False
        return True

    def trainable(self) -> list[Tensor]:
        """The parameters that are trained now."""
        return [p for p in self.held if p.requires_grad]

    def fits(self) -> bool:
        """True if the wrapper was made for just the parameters that are trained now.

        It would wait for the gradients of others, and average none that it does not know.
        """
        trained = [id(p) for p in self.held if p.requires_grad]
        return self.wrapper is not None and trained == list(self.wrapped)

    def was_left_waiting(self, stepping: Iterable[Tensor]) -> bool:
        """True if the wrapper waits for a gradient that did not come. Until it does, the wrapper
        averages none of the same bucket.
        """
        if self.wrapper is None or self.wrapper.find_unused_parameters:
            return False
        return any(p.grad is None for p in stepping if id(p) in self.wrapped)

    def wrap(self, module: nn.Module) -> None:
        """Make a fresh wrapper."""
        self.wrapper = None  # whose hooks go first
        self.wrapper = wrapped_weakly(module, self.unused)
        self.wrapped = {id(p): p for p in self.trainable()}
        self.wrappers += 1

    @property
    def by_hand(self) -> bool:
        """True if no wrapper suits it.

        A wrapper would not wait for a parameter that gets gradients only in passes that no call of
        the module began. Nor does one that looks for unused parameters know of those that the
        script itself uses in the loss.
        """
        apart = self._by_itself - self._by_call or (self.unused and self._outside)
        return bool(apart) or self.wrappers >= MOST_WRAPPERS

    def mark(self) -> None:
        """Remember what its gradients are before a backward pass."""
        self._marks = {id(p): _state(p.grad) for p in self.trainable()}

    def look(self) -> bool:
        """True if the pass since `mark` gave it gradients; remembers which parameters got them."""
        trainable = self.trainable()
        touched = {id(p) for p in trainable if _state(p.grad) != self._marks.get(id(p))}
        (self._by_call if self.called else self._by_itself).update(touched)
        if self.called:
            self._outside |= touched - self._by_forward
        if self.called or self.wrapper is None:
            self.unused = self.unused or 0 < len(touched) < len(trainable)
        return bool(touched)

    def returned(self, result: object) -> None:
        """Remember which parameters a result depends on."""
        self._by_forward.update(map(id, graph_leaves(tensors(result))))

    @property
    def one(self) -> Tensor | None:
        """A parameter that gets gradients, None before any did."""
        return next((p for p in self.held if p.requires_grad and id(p) in self._by_call), None)

    def frozen_without_gradient(self) -> list[Tensor]:
        """The parameters, frozen after the forward pass, that get zeros from the wrapper and would
        have no gradient."""
        return [p for p in self.wrapped.values() if not p.requires_grad and p.grad is None]


def _state(gradient: Tensor | None) -> tuple[int, int] | None:
    return None if gradient is None else (id(gradient), gradient._version)


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
