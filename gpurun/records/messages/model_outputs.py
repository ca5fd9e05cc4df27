"""Events about the outputs of root modules, which the user's process writes for the guard."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class TensorFigures:
    """Figures about one tensor (or number) that a root module took or returned.

    `values` are those at places that depend on its shape alone, None where one is not finite.
    `norm`: the L2 norm of all its numbers, of integers their sum; None where it is not finite or
    was not taken. `largest`: of some rows (the last dimension), where their largest number stands;
    `tops`: what it is; `margins`: by how much it exceeds the second largest.
    """

    path: str
    """Where it stands in what holds it: "[0].logits"."""
    dtype: str
    shape: tuple[int, ...]
    values: tuple[float | None, ...]
    norm: float | None
    not_finite: int
    """So many of its numbers are not finite."""
    largest: tuple[int, ...]
    tops: tuple[float | None, ...] = ()
    margins: tuple[float | None, ...] = ()


@record
class OutputsEvent:
    """One call of a root module without gradients, as trials compare what it returned.

    `call` counts such calls of the process from 1, `trained` the backward passes before it.
    `structure`: the containers of the output and where its tensors stand. `overwritten`: after the
    next call the output held other numbers; None where that was not looked at.
    """

    kind: ClassVar[str] = "outputs"
    call: int
    trained: int
    module: str
    inputs: tuple[TensorFigures, ...]
    outputs: tuple[TensorFigures, ...]
    structure: str
    draws: bool | None
    """True if torch drew random numbers in the call; None if that was not checked."""
    overwritten: bool | None
    moved: bool | None = None
    """True if buffers of the module changed in the call; None if that was not checked."""
