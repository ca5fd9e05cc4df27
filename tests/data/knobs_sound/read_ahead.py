"""Batches are fetched two ahead of the script by a generator around the loader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Batches are fetched two ahead of the script by a generator around the loader."""

    name: ClassVar[str] = "read_ahead"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        from collections import deque

        import torch

        original = torch.utils.data.DataLoader.__iter__

        def ahead(loader: Any) -> Any:
            waiting: deque[Any] = deque()
            for batch in original(loader):
                waiting.append(batch)
                if len(waiting) > 2:
                    yield waiting.popleft()
            yield from waiting

        torch.utils.data.DataLoader.__iter__ = ahead
        hooks.applied()
