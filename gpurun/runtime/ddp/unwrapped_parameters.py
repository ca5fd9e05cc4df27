"""Parameters that an optimizer updates and no wrapped root module holds."""

from __future__ import annotations

from collections.abc import Container, Iterable

from torch import Tensor

FORGOTTEN = 512
"""After this many steps without it, a parameter is not averaged any more."""


class UnwrappedParameters:
    """Parameters outside any root: of layers that are called beside the model, or of a model that
    is not called itself.

    Parameters of a training that is over are dropped after some steps of other trainings, on all
    ranks at the same step, because their memory is freed at different times.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int]] = {}
        self._steps = 0

    def parameters(self) -> list[Tensor]:
        """The parameters that are or were trained, in the order in which they were found."""
        return [p for p, _ in self._known.values()]

    def collect(self, parameters: Iterable[Tensor], covered: Container[int]) -> list[Tensor]:
        """Remember new parameters that are not `covered`, and return them. A frozen one still takes
        part in a step if it has a gradient."""
        new = []
        for parameter in parameters:
            key = id(parameter)
            if key in covered:
                self._known.pop(key, None)
            elif parameter.is_leaf and (parameter.requires_grad or parameter.grad is not None):
                if key not in self._known:
                    new.append(parameter)
                self._known[key] = parameter, self._steps
        return new

    def stepped(self) -> None:
        """Another step is about to be made."""
        self._steps += 1
        old = [key for key, (_, step) in self._known.items() if self._steps - step > FORGOTTEN]
        for key in old:
            del self._known[key]
