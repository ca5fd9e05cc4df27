"""Decides which of the script's calls count while gradients of several batches accumulate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable

from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

WITNESSES = 4
"""The gradients of so many parameters show whether the script changes gradients itself."""

PATIENCE = 64
"""After this many backward passes without a call of `step`, something else steps the parameters."""


class AccumulatedSteps:
    """Counts the batches of a step. One of `every` calls of the optimizer's step is a real one.

    A batch is what lies between two calls of the optimizer's `step`. `gave_up` hears once why the
    script is from then on left as it is: what was gathered until then goes into its next step.
    """

    def __init__(self, every: int, gave_up: Callable[[str], None]) -> None:
        self.every = every
        self.pending = 0
        """Batches whose gradients wait for the step."""
        self.calls = 0
        """Calls of `step` so far, real or not."""
        self.active = False
        self.refused = False
        self._gave_up = gave_up
        self._backwards = 0
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._witnesses: list[tuple[Tensor, weakref.ref[Tensor] | None, int]] = []
        """Parameters, with their gradient's tensor and its version."""

    def attach(self, optimizer: Optimizer) -> None:
        """Accumulate for this optimizer; a second one that is alive ends it for both."""
        present = self._optimizer()
        if self.refused:
            return
        if self.active and present is not None:
            self.give_up("several optimizers")
            return
        self.active = True
        self.pending = self._backwards = 0
        self._optimizer = weakref.ref(optimizer)

    def give_up(self, reason: str) -> None:
        """Leave the script as it is from now on."""
        if not self.refused:
            self.active, self.refused = False, True
            self.pending = 0
            self._gave_up(reason)

    def of(self, optimizer: object) -> bool:
        """True if steps of this optimizer are accumulated."""
        return self.active and self._optimizer() is optimizer

    @property
    def last(self) -> bool:
        """True if the batch under way is the last before a real step."""
        return self.pending + 1 >= self.every

    def backward_begins(self) -> float:
        """The factor of the gradients of a backward pass that begins now."""
        if self.active and self._changed():
            self.give_up("the script changes or clears gradients itself")
        elif self.active and self._backwards >= PATIENCE:
            self.give_up("its step is not called")
        return 1 / self.every if self.active else 1.0

    def backward_ended(self) -> None:
        """Gradients were added to what is there."""
        self._backwards += 1
        if self.active:  # whoever changes the gradients from now on must be known to us
            parameters = self._parameters()
            stride = max(1, len(parameters) // WITNESSES)
            self._witnesses = [(p, *_seen(p)) for p in parameters[::stride]]

    def step_counts(self) -> bool:
        """The script calls `step`: whether it is a real one."""
        if self._backwards == 0:
            if any(parameter.grad is not None for parameter in self._parameters()):
                self.give_up("its backward pass is not that of one loss")
                return True
            return self.pending == 0
        if not self.last and self._changed():
            self.give_up("the script changes or clears gradients itself")
            return True
        self._backwards = 0
        self.calls += 1
        self.pending = 0 if self.last else self.pending + 1
        return self.pending == 0

    def clearing_counts(self) -> bool:
        """The script clears the gradients: whether they are to be cleared."""
        if self._backwards and self.pending:
            self.give_up("the script discards gradients before its step")
        if self.pending == 0:
            self._backwards = 0
        return self.pending == 0

    def clipping_counts(self) -> bool:
        """The script clips gradients: whether all batches of the step are in them."""
        return not self.active or not self._backwards or self.last

    def steps_any_of(self, parameters: Iterable[Tensor]) -> bool:
        """True if one of these is among the optimizer's parameters."""
        return not {id(p) for p in self._parameters()}.isdisjoint(map(id, parameters))

    def _parameters(self) -> list[Tensor]:
        optimizer = self._optimizer()
        groups = [] if optimizer is None else optimizer.param_groups
        return [p for group in groups for p in group["params"]]

    def _changed(self) -> bool:
        """True if gradients that wait for a step are not those that we left."""
        waiting = self.pending > 0 or self._backwards > 0
        return waiting and not all(_as_seen(*witness) for witness in self._witnesses)


class ExchangeOnceAStep:
    """Lets DDP exchange gradients with the last batch of a step only; a context of root calls."""

    def __init__(self, steps: AccumulatedSteps) -> None:
        self._steps = steps
        self._roots: list[DistributedDataParallel] = []

    def root_found(self, module: Module) -> None:
        """Look whether it is one that exchanges gradients."""
        if isinstance(module, DistributedDataParallel):
            self._roots.append(module)

    def __enter__(self) -> None:
        if self._steps.active:
            for root in self._roots:
                root.require_backward_grad_sync = self._steps.last

    def __exit__(self, *_: object) -> None:
        return None

    def every_batch(self) -> None:
        """Exchange gradients with every batch again."""
        for root in self._roots:
            root.require_backward_grad_sync = True


def _seen(parameter: Tensor) -> tuple[weakref.ref[Tensor] | None, int]:
    grad = parameter.grad
    return (None, 0) if grad is None else (weakref.ref(grad), grad._version)


def _as_seen(parameter: Tensor, seen: weakref.ref[Tensor] | None, version: int) -> bool:
    grad = parameter.grad
    if grad is None or seen is None:
        return grad is None and seen is None
    return seen() is grad and grad._version == version
