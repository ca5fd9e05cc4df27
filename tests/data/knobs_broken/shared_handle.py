"""Forked workers read through the handle that the parent opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Forked workers read through the handle that the parent opened."""

    name: ClassVar[str] = "shared_handle"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def edit(call: Any) -> None:
            call.arguments["num_workers"] = value
            hooks.applied()

        hooks.before_loader(edit)
