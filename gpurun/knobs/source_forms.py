"""How a setting reads in a user's own source: what `gpurun eject` writes into the script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderArgument:
    """A keyword argument of `DataLoader`, for the loaders on which the knob applied."""

    name: str
    value: str


@dataclass(frozen=True)
class OptimizerArgument:
    """A keyword argument of the optimizers of the classes on which the knob applied."""

    name: str
    value: str


@dataclass(frozen=True)
class AfterImport:
    """A statement once torch is imported."""

    statement: str


@dataclass(frozen=True)
class AfterOptimizer:
    """A statement about the model once its optimizer is built; `{model}` stands for the model."""

    statement: str


@dataclass(frozen=True)
class AroundCalls:
    """`function(model, ...)` in place of each call `model(...)`, with the source of the function.

    `imports`: the statements that it needs.
    """

    function: str
    source: str
    imports: tuple[str, ...]


@dataclass(frozen=True)
class AroundLoaders:
    """`function(loader)` in place of a loader on which the knob applied; else as `AroundCalls`.

    `outcome`: how the knob's words about such a loader end.
    """

    function: str
    source: str
    imports: tuple[str, ...]
    outcome: str = ""


@dataclass(frozen=True)
class NoSynchronisation:
    """The script's own calls of `torch.cuda.synchronize` go."""


SourceForm = (
    LoaderArgument
    | OptimizerArgument
    | AfterImport
    | AfterOptimizer
    | AroundCalls
    | AroundLoaders
    | NoSynchronisation
)
"""One change of the source."""
