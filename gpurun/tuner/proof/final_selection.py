"""The end of a tuning: proves and judges the finalists, else falls back to pipeline changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.tuning import Rejection
from gpurun.tuner.proof.decision import BATCH, JudgedFinalist, decide, reasons_left_out
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.search.changes import strongest_effect
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.tuning_findings import TuningFindings

Prove = Callable[[list[Finalist]], Finalist]
"""Finalists → the baseline's side of their pairs."""


@dataclass
class FinalSelection:
    """Writes the outcome into `findings`. `judge`: knows how the script trains as it is."""

    findings: TuningFindings
    judge: TrainingJudge
    allowed: frozenset[Effect]
    effect_of: Callable[[str], Effect]
    prove: Prove
    note: Callable[[str], None]

    def settle(self, state: SearchState, batch: SearchState | None) -> None:
        """Prove the finalists, judge them, and decide."""
        found = self.findings
        chosen = Finalist("chosen", state.settings) if state.settings != found.base else None
        larger = Finalist("larger batch", batch.settings) if batch is not None else None
        found.chosen, found.larger = chosen, larger
        finalists = [finalist for finalist in (chosen, larger) if finalist is not None]
        if Effect.TRAINING in self.allowed:
            finalists.reverse()  # where time is short the first has it: what was consented to
        baseline = self.prove(finalists)
        objections: dict[str, str] = {}
        judged = None if chosen is None else self._judged(baseline, chosen)
        if judged is not None and not judged.accepted:
            judged = self._fallback(judged, objections)
        second = self._judged_batch(baseline, objections)
        decision = decide(judged, second, Effect.TRAINING in self.allowed)
        if second is not None and Effect.TRAINING in self.allowed and decision.winner != second:
            why = "no faster in the proof" if second.proven else second.objection
            objections.setdefault(BATCH, why)
        found.verdict = decision.verdict
        found.chosen = decision.shown.finalist if decision.shown is not None else None
        found.guard = decision.shown.guard if decision.shown is not None else None
        own = {k: v for k, v in state.settings.items() if k not in found.base}
        reasons = reasons_left_out(own, decision, objections)
        found.left_out = {knob: own[knob] for knob in reasons}
        found.objections = objections | reasons

    def settle_larger(self, batch: SearchState) -> None:
        """Prove a batch size that may not be applied, after all else was decided."""
        found = self.findings
        found.larger = larger = Finalist("larger batch", batch.settings)
        shown = found.baseline
        try:
            self._judged_batch(self.prove([larger]), found.objections)
        except BaseException:
            found.larger = None
            found.objections[BATCH] = "its proof was not complete"
            raise
        finally:
            if shown is not None and shown.results:
                found.baseline = shown

    def without(self, settings: Mapping[str, Any], why: str) -> bool:
        """Prove the chosen settings without some of them, which lose; true if it is no slower."""
        found, baseline = self.findings, self.findings.baseline
        old = found.chosen
        assert old is not None
        self.note(f"proven once more without {', '.join(settings)}: {why}")
        rest = {k: v for k, v in old.settings.items() if k not in settings}
        finalist, proven = Finalist("chosen", {**found.base, **rest}), False
        try:
            judged = self._judged(self.prove([finalist]), finalist)
            better = (finalist.look().speedup or 0.0) >= (old.look().speedup or 0.0) / LEAST_GAIN
            proven = judged.proven and better
        finally:
            if not proven:
                found.baseline = baseline
        if not proven:
            self.note("it was not: all stay" if finalist.pairs else "there was no time: all stay")
            return False
        if found.larger is old:
            found.larger, found.larger_guard = finalist, judged.guard
        found.chosen, found.guard, found.rungs = finalist, judged.guard, []
        found.left_out |= settings
        found.objections |= dict.fromkeys(settings, why)
        return True

    def _judged_batch(
        self, baseline: Finalist, objections: dict[str, str]
    ) -> JudgedFinalist | None:
        """The proven larger batch, None where it is dropped; with what speaks against it."""
        self._sift_batch(objections)
        found = self.findings
        if found.larger is None:
            return None
        judged = self._judged(baseline, found.larger)
        found.larger_guard = judged.guard
        if not judged.accepted:
            objections[BATCH] = judged.objection
        return judged

    def _judged(self, baseline: Finalist, finalist: Finalist) -> JudgedFinalist:
        effect = strongest_effect(map(self.effect_of, finalist.settings))
        guard = self.judge.judge(finalist.shown, effect, baseline.shown, finalist.settings)
        if not guard.accepted:
            self.findings.rejections.append(Rejection(dict(finalist.settings), guard))
        return JudgedFinalist(finalist, guard)

    def _fallback(self, judged: JudgedFinalist, objections: dict[str, str]) -> JudgedFinalist:
        """Where the finalist failed: what can be saved of it is its pipeline changes."""
        settings: Mapping[str, Any] = judged.finalist.settings
        self.note(f"the finalist is out: {judged.objection}")
        base = self.findings.base
        pipeline = {k: v for k, v in settings.items() if self.effect_of(k) is Effect.PIPELINE}
        safe = {**base, **pipeline}
        suspects = set(settings) - set(safe) or set(settings) - set(base)
        objections.update(dict.fromkeys(suspects, judged.objection))
        if safe == base or len(safe) == len(settings):
            return judged
        self.note("proving the pipeline changes alone")
        finalist = Finalist("pipeline only", safe)
        return self._judged(self.prove([finalist]), finalist)

    def _sift_batch(self, objections: dict[str, str]) -> None:
        """Drop a larger batch that failed, gains nothing, or rests on rejected changes."""
        larger = self.findings.larger
        if larger is None:
            return
        look = larger.look()
        resting = sorted(set(larger.settings) & set(objections))
        same = self.findings.chosen.look().speedup if self.findings.chosen is not None else None
        without = max(1.0, same or 1.0)
        if larger.failure is not None:
            why = larger.failure
        elif resting:
            why = f"tried with {resting[0]}, which is {objections[resting[0]]}"
        elif not larger.pairs or (look.speedup is not None and look.speedup <= without):
            why = "no faster in the proof" if larger.pairs else "the budget ended before its proof"
        else:
            return
        objections[BATCH] = why
        self.note(f"{BATCH} {larger.settings[BATCH]['batch_size']}: {why}")
        self.findings.larger = None
