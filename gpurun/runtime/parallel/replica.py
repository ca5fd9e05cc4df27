"""One root module, and the wrapper that stands behind it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

LOOK_STEPS = 2
"""After so many steps of a module the parameters that get gradients are known."""
LATER = 4
"""Each time a wrapper is undone the next one is made after so many times as many steps."""


class Replica:
    """One root module and, once the first steps are over, its wrapper.

    `reached`: the parameters that got gradients on every rank so far; `partly`: some got them on
    some ranks only. `moved`: trained since its buffers were last made alike. `waiting`: gradients
    that are accumulated here are not averaged yet. `called`: since the last backward pass.
    `wrapped`: the parameters that the wrapper was made for, by identity. `look_steps`: so many
    steps are looked at before it is made.
    """

    def __init__(self, module: Any) -> None:
        self.module = weakref.ref(module)
        self.wrapper: Any = None
        self.reached: set[int] = set()
        self.partly = False
        self.moved = False
        self.waiting = False
        self.called = False
        self.wrapped: dict[int, Any] = {}
        self.steps = 0
        self.look_steps = LOOK_STEPS
        self.retired: Any = None
        """The wrapper that was undone since the last backward pass: a graph may still need it."""
        self._trained: set[int] = set()
        self._one: Callable[[], Any] = lambda: None

    def parameters(self) -> list[Any]:
        """Those that are or were trained, in an order that all ranks have: one that was frozen in
        the middle of a step is still stepped with.
        """
        module = self.module()
        every = [] if module is None else list(module.parameters())
        self._trained.update(id(p) for p in every if p.requires_grad)
        return [p for p in every if id(p) in self._trained]

    def trainable(self) -> list[Any]:
        """Those that are trained now."""
        return [p for p in self.parameters() if p.requires_grad]

    @property
    def one(self) -> Any:
        """One that gets gradients, None before any did; it is looked for once."""
        if self._one() is None:
            found = next((p for p in self.trainable() if id(p) in self.reached), None)
            if found is not None:
                self._one = weakref.ref(found)
        return self._one()

    def usable(self) -> Any:
        """The wrapper, for a call that is about to be made; None where there is none for it.

        One that was made before parameters were frozen would wait for their gradients. Where all
        are (a discriminator, while the generator learns) it stands by; where some are it is undone.
        """
        frozen = sum(not parameter.requires_grad for parameter in self.wrapped.values())
        if frozen and frozen < len(self.wrapped):
            self._unwrap()
        return None if frozen else self.wrapper

    def _unwrap(self) -> None:
        """Begin again, as if it had just been met: the next steps show what gets gradients."""
        self.retired, self.wrapper, self.wrapped, self.steps = self.wrapper, None, {}, 0
        self.reached, self.partly = set(), False
        self._one = lambda: None
        self.look_steps *= LATER

    @property
    def unused(self) -> bool:
        """Whether some parameter got no gradient, or not on every rank."""
        return self.partly or any(id(p) not in self.reached for p in self.trainable())

    def frozen_without_gradient(self) -> list[Any]:
        """Those that the wrapper gives zeros for, where there would be nothing: frozen after the
        forward pass.
        """
        return [p for p in self.wrapped.values() if not p.requires_grad and p.grad is None]
