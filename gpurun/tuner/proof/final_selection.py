"""The end of a tuning: proves and judges what the search found, falls back to less, and decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.tuning import Rejection
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.search.changes import BATCH, strongest_effect
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.tuning_findings import TuningFindings

Prove = Callable[[Finalist, bool], Finalist]
"""A finalist, and whether its rungs are to follow → the baseline's side of its pairs."""
FALLBACKS = ((Effect.PIPELINE, Effect.NUMERICS), (Effect.PIPELINE,))
"""Where the settings fail or train otherwise: the effects of what is proven in their place."""


@dataclass
class FinalSelection:
    """Writes the outcome into `findings`. `judge`: knows how the script trains as it is."""

    findings: TuningFindings
    judge: TrainingJudge
    effect_of: Callable[[str], Effect]
    prove: Prove
    note: Callable[[str], None]

    def settle(self, state: SearchState) -> None:
        """Prove what the search kept, judge it, and decide."""
        found, settings, base = self.findings, state.settings, self.findings.base
        if settings == base:
            found.verdict = "no_gain"
            return
        found.chosen = Finalist("chosen", settings)
        self._proven(found.chosen)
        objections = self._fall_back(settings)
        self._decide(found.chosen, settings, objections)
        if found.verdict == "faster" and BATCH in found.chosen.settings:
            found.larger = found.chosen

    def _fall_back(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Where the chosen settings fail or train otherwise, prove what is safer, and choose that.

        What speaks against the changes that are lost, by name.
        """
        found, base = self.findings, self.findings.base
        chosen = found.chosen
        assert chosen is not None
        objections: dict[str, str] = {}
        for effects in FALLBACKS:
            own = {k: v for k, v in settings.items() if self.effect_of(k) in effects}
            safe = {**base, **own}
            if chosen.accepted or safe == base or len(safe) == len(chosen.settings):
                continue
            dropped = set(chosen.settings) - set(safe)
            objections |= dict.fromkeys(dropped, chosen.objection)
            self.note(f"the finalist is out: {chosen.objection}")
            self.note(f"proving the {' and '.join(e.value for e in effects)} changes alone")
            found.chosen = chosen = Finalist(f"without {', '.join(sorted(dropped))}", safe)
            self._proven(chosen)
        return objections

    def narrow(self) -> None:
        """Take further pairs of what was proven, in the time that nothing else needs, and decide
        again by all of them."""
        found, chosen = self.findings, self.findings.chosen
        if chosen is None or chosen.done or found.verdict != "faster":
            return
        settings, is_larger = chosen.settings, found.larger is chosen
        self._proven(chosen, rungs=False)
        objections = {**found.objections, **self._fall_back(settings)}
        self._decide(found.chosen or chosen, {**settings, **found.left_out}, objections)
        if is_larger and (found.chosen is not chosen or found.verdict != "faster"):
            found.larger = None

    def _decide(
        self, chosen: Finalist, settings: Mapping[str, Any], objections: Mapping[str, str]
    ) -> None:
        """Write down the verdict, and what speaks against each of these settings that is lost."""
        found, base = self.findings, self.findings.base
        found.verdict = chosen.verdict
        won = chosen.settings if chosen.verdict == "faster" else base
        found.left_out = {k: v for k, v in settings.items() if k not in base and won.get(k) != v}
        found.objections = {k: objections.get(k, chosen.objection) for k in found.left_out}

    def settle_larger(self, batch: SearchState) -> None:
        """Prove a batch size that may not be applied, after all else was decided."""
        found, larger = self.findings, Finalist("larger batch", batch.settings)
        self._proven(larger, rungs=False)
        seen = larger.look().speedup
        same = found.chosen.look().speedup if found.chosen is not None else None
        if larger.failure is not None or not larger.pairs:
            why = larger.failure or "the budget ended before its proof"
        elif seen is not None and seen <= max(1.0, same or 1.0):
            why = "no faster in the proof"
        else:
            found.larger = larger
            if not larger.accepted:
                found.objections[BATCH] = larger.objection
            return
        self.note(f"{BATCH} {larger.settings[BATCH]['batch_size']}: {why}")

    def without(self, settings: Mapping[str, Any], why: str) -> bool:
        """Prove the chosen settings without some of them, which lose; true if it is no slower."""
        found, old = self.findings, self.findings.chosen
        assert old is not None
        self.note(f"proven once more without {', '.join(settings)}: {why}")
        rest = {k: v for k, v in old.settings.items() if k not in settings}
        finalist = Finalist("chosen", {**found.base, **rest})
        self._proven(finalist)
        better = (finalist.look().speedup or 0.0) >= (old.look().speedup or 0.0) / LEAST_GAIN
        if finalist.verdict != "faster" or not better:
            self.note("it was not: all stay" if finalist.pairs else "there was no time: all stay")
            return False
        if found.larger is old:
            found.larger = finalist
        found.chosen = finalist
        found.left_out |= settings
        found.objections |= dict.fromkeys(settings, why)
        return True

    def _proven(self, finalist: Finalist, *, rungs: bool = True) -> None:
        """Take the pairs of a finalist, and have it judged. `rungs`: they are to follow."""
        taken = len(finalist.pairs)
        baseline = self.prove(finalist, rungs)
        if finalist.guard is not None and len(finalist.pairs) == taken:
            return
        effect = strongest_effect(map(self.effect_of, finalist.settings))
        finalist.guard = self.judge.judge(finalist.shown, effect, baseline.shown, finalist.settings)
        if not finalist.guard.accepted:
            self.findings.rejections.append(Rejection(dict(finalist.settings), finalist.guard))
