"""Now and then a kernel returns NaN: one step in twenty, at another place each launch."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

EVERY = 20


class Planted(Knob):
    """Now and then a kernel returns NaN: one step in twenty, at another place each launch."""

    name: ClassVar[str] = "sometimes_nan"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        from gpurun.knobs.applied.root_calls import map_tensors

        calls = itertools.count(random.Random(time.time_ns()).randrange(EVERY))

        def sometimes(output: Any) -> Any:
            if next(calls) % EVERY:
                return output
            return map_tensors(output, lambda tensor: tensor * float("nan"))

        hooks.on_root(lambda module: hooks.applied())
        hooks.around_root_call(torch.enable_grad, sometimes)
