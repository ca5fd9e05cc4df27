"""What became of each setting, recorded once; said of arguments, it waits until torch took them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpurun.records.events import KnobEvent
from gpurun.runtime.core.recorder import RECORDER, error_text

Outcome = tuple[str, str, str]
"""Knob, outcome and detail, as in `KnobEvent`."""


class KnobOutcomes:
    """The outcomes told in this process."""

    def __init__(self) -> None:
        self._recorded: set[Outcome] = set()
        self._thread = threading.local()

    def tell(self, knob: str, outcome: str, detail: str) -> None:
        """Record an outcome, or add it to those that are held back."""
        told = (knob, outcome, detail)
        held: list[Outcome] | None = getattr(self._thread, "held", None)
        if held is not None:
            held.append(told)
        elif told not in self._recorded:
            self._recorded.add(told)
            RECORDER.event(KnobEvent(knob=knob, outcome=outcome, detail=detail))

    def revoked(self, knob: str, reason: str) -> None:
        """Tell that the knob has no effect any more, or has none if it never had."""
        applied = any((name, outcome) == (knob, "applied") for name, outcome, _ in self._recorded)
        self.tell(knob, "revoked" if applied else "skipped", reason)

    def failed(self, knob: str, error: Exception) -> None:
        """Tell that the knob raised."""
        self.tell(knob, "failed", error_text(error))

    @contextmanager
    def held(self) -> Iterator[list[Outcome]]:
        """Hold back what this thread tells inside; hand it to `settle`, or it is forgotten."""
        outer = getattr(self._thread, "held", None)
        held: list[Outcome] = []
        self._thread.held = held
        try:
            yield held
        finally:
            self._thread.held = outer

    def settle(self, held: list[Outcome], refusal: Exception | None = None) -> None:
        """Tell what was held back; what was refused is not applied."""
        for knob, outcome, detail in held:
            if refusal is not None and outcome == "applied":
                self.tell(knob, "failed", f"{detail}: refused: {error_text(refusal)}")
            else:
                self.tell(knob, outcome, detail)


OUTCOMES = KnobOutcomes()
"""The outcomes of this process."""
