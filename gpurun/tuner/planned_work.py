"""The length of a whole training, from its loader and from the script's own argument of epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import StepClock, training_loaders
from gpurun.records.events import ArgumentsEvent

EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "nepochs", "num_train_epochs")
"""Names of arguments that hold the number of epochs."""


@dataclass(frozen=True)
class PlannedWork:
    """`epochs` passes over `samples_per_epoch` samples in `batches_per_epoch` batches; `source`:
    the argument that says so.
    """

    epochs: int
    samples_per_epoch: int
    source: str
    batches_per_epoch: int

    @property
    def samples(self) -> int:
        """Samples of the whole training."""
        return self.epochs * self.samples_per_epoch

    @property
    def batches(self) -> int:
        """Batches of the whole training."""
        return self.epochs * self.batches_per_epoch


def planned_work(log: ProcessLog, clock: StepClock, ranks: int) -> PlannedWork | None:
    """The work of a process that trains alone; None where the records do not show it."""
    epochs = _epochs(log.arguments)
    loader = next(iter(training_loaders(log, clock)), None)
    if epochs is None or loader is None or ranks != 1:
        return None
    if not loader.length or not loader.batch_size:
        return None
    samples = loader.length * loader.batch_size
    if loader.dataset_length:
        samples = min(samples, loader.dataset_length)
    count, source = epochs
    return PlannedWork(count, samples, source, loader.length)


def _epochs(events: Sequence[ArgumentsEvent]) -> tuple[int, str] | None:
    for event in events:
        for option in event.options:
            value = option.get("value")
            if option.get("dest") in EPOCHS and type(value) is int and value > 0:
                flags = option.get("flags") or [option["dest"]]
                return value, str(flags[-1])
    return None
