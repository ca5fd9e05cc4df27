"""The losses of a run that were not finite, of all its ranks."""

from __future__ import annotations

from collections.abc import Iterable

from gpurun.formatting.number_text import count
from gpurun.measure.run_events import ProcessLog
from gpurun.records.result import NonfiniteLoss


def nonfinite_loss(logs: Iterable[ProcessLog]) -> NonfiniteLoss | None:
    """The first step of any rank with such a loss; counts are those of its process."""
    events = [log.nonfinite for log in logs if log.nonfinite is not None]
    if not events:
        return None
    first = min(events, key=lambda event: event.step)
    return NonfiniteLoss(
        step=first.step,
        loss=first.loss,
        last_finite_step=first.last_finite_step,
        steps=first.seen,
        skipped_steps=first.skipped,
        action=first.action,
        origin=first.origin,
    )


def nonfinite_note(seen: NonfiniteLoss) -> str:
    """One line about them."""
    note = f"the loss was {seen.loss} at step {seen.step}"
    if seen.steps > 1:
        note += f", and at {count(seen.steps - 1, 'later step')}"
    if seen.skipped_steps:
        left_out = count(seen.skipped_steps, "optimizer step")
        note += f"; {left_out} left out, which changes the training (--on-nonfinite skip)"
    return note if seen.origin is None else f"{note}; {seen.origin}"
