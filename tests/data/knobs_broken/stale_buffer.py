"""A prefetcher hands out the inputs of the batch before: its buffer is overwritten late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """A prefetcher hands out the inputs of the batch before: its buffer is overwritten late."""

    name: ClassVar[str] = "stale_buffer"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.utils.data.DataLoader.__iter__

        def stale(loader: Any) -> Any:
            before: Any = None
            for batch in original(loader):
                keys = list(batch) if isinstance(batch, dict) else list(range(len(batch)))
                key, old = keys[0], before
                before = batch[key]
                if old is not None and len(old) == len(before):
                    batch[key] = old
                yield batch

        torch.utils.data.DataLoader.__iter__ = stale
        hooks.applied()
