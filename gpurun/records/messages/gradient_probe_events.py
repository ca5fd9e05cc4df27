"""The events of the gradient probe among the events of a process."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class GradientEvent:
    """One backward pass of the gradient probe: what it added to each parameter's gradient.

    `own` of the `total` samples of the batch were computed. `weights`: a sum over all parameters,
    by which passes of different launches are known to start from the same ones. `precision`: the
    machine epsilon of the coarsest parameter. `sketches`: by "optimizer.group.index" a linear
    sketch of the gradient; gradients that are 0 or missing have none.
    """

    kind: ClassVar[str] = "gradient"
    number: int
    own: int
    total: int
    weights: float
    precision: float
    sketches: dict[str, tuple[float, ...]]


@record
class ProbeEvent:
    """A launch of the gradient probe is over.

    `reason`: "enough", "distributed" (the script joins a process group itself), "ended" (the script
    came to its end) or "failed" (by an exception: `error`, at line `where` of the user's code).
    `loaders`: keys of the loaders that feed the training.
    """

    kind: ClassVar[str] = "probe"
    reason: str
    loaders: tuple[str, ...] = ()
    error: str = ""
    where: str = ""
    missed: bool = False
    """True if one of them was not known to train when it was opened."""
    files: tuple[str, ...] | None = None
    """Files that the script has read, None if that is not known."""
    own_generator: str = ""
    """The user's line that draws from a generator of the script's own for a batch, "" for none."""
