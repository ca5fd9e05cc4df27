"""Records the outcome of each setting once; for edited arguments, after torch has taken them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpurun.records.events import KnobEvent
from gpurun.runtime.core.recorder import RECORDER, error_text

KnobOutcome = tuple[str, str, str]
"""Knob, outcome and detail, as in `KnobEvent`."""


class KnobOutcomes:
    """The outcomes recorded in this process."""

    def __init__(self) -> None:
        self._recorded: set[KnobOutcome] = set()
        self._thread = threading.local()

    def record(self, knob: str, outcome: str, detail: str) -> None:
        """Record an outcome, or hold it back inside `held`."""
        entry = (knob, outcome, detail)
        held: list[KnobOutcome] | None = getattr(self._thread, "held", None)
        if held is not None:
            held.append(entry)
        elif entry not in self._recorded:
            self._recorded.add(entry)
            RECORDER.event(KnobEvent(knob=knob, outcome=outcome, detail=detail))

    def revoked(self, knob: str, reason: str) -> None:
        """Record that the knob has lost its effect, or never had one."""
        applied = any((name, outcome) == (knob, "applied") for name, outcome, _ in self._recorded)
        self.record(knob, "revoked" if applied else "skipped", reason)

    def failed(self, knob: str, error: Exception) -> None:
        """Record that the knob raised."""
        self.record(knob, "failed", error_text(error))

    @contextmanager
    def held(self) -> Iterator[list[KnobOutcome]]:
        """Hold back the outcomes of this thread; pass them to `settle`, or they are dropped."""
        outer = getattr(self._thread, "held", None)
        held: list[KnobOutcome] = []
        self._thread.held = held
        try:
            yield held
        finally:
            self._thread.held = outer

    def settle(self, held: list[KnobOutcome], refusal: Exception | None = None) -> None:
        """Record outcomes that were held back; after a refusal none of them is applied."""
        for knob, outcome, detail in held:
            if refusal is not None and outcome == "applied":
                self.record(knob, "failed", f"{detail}: refused: {error_text(refusal)}")
            else:
                self.record(knob, outcome, detail)


OUTCOMES = KnobOutcomes()
"""The outcomes of this process."""
