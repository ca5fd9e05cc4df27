"""Who follows a tuning as it goes; the terminal is one such view."""

from __future__ import annotations

from typing import Any

from gpurun.records.tuning import TrialPurpose, TrialRecord, TuningReport


class TuningView:
    """Hears of every event of a tuning, in order, and shows nothing (`--quiet`): others inherit.

    `close` is safe at any time and more than once.
    """

    def started(self, command: str, isolation: str, budget_seconds: float) -> None:
        """Tuning begins."""

    def trial_started(self, number: int, purpose: TrialPurpose, knobs: dict[str, Any]) -> None:
        """A trial is launched with these settings."""

    def trial_progress(self, steps: int, needed: int) -> None:
        """The running trial has done `steps` of about `needed` steps."""

    def trial_finished(self, record: TrialRecord) -> None:
        """The running trial ended, well or badly."""

    def note(self, line: str) -> None:
        """A remark for the user, in one line."""

    def decision(self, line: str) -> None:
        """A decision of the search or the proof, in one line; the document holds them all."""

    def proof_update(self, look_text: str) -> None:
        """The state of the paired test after a look."""

    def finished(self, report: TuningReport) -> None:
        """Tuning ended; the view stops drawing (`print_ladder` shows the outcome)."""

    def close(self) -> None:
        """Stop drawing and give the terminal back."""
