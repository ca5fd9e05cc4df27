"""One tuning from the first trial to the report: probe, search, proof, guard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.measure.machine import machine
from gpurun.options import Options
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import GuardVerdict, LadderRow, TrialRecord
from gpurun.report.tuning import TuningView
from gpurun.tuner import facts as facts_of
from gpurun.tuner.evidence import Evidence
from gpurun.tuner.guard import judge
from gpurun.tuner.plan import NEEDED_STEPS, PROBE, plan, with_read_ahead
from gpurun.tuner.proof import Arm, prove
from gpurun.tuner.search import Limits, Search, State
from gpurun.tuner.trial import Laboratory, Request, Trial

MOST_TRIALS = 15
"""Before the proof, the probe and the baseline included."""
BATCH_TRIALS = 4
"""Of these, kept back for the batch size."""
PROOF_ROUNDS = 3
"""The search leaves time for so many rounds."""
LEAST_PROBE_SECONDS = 20.0
"""The first trial gets so long, however small the budget: importing torch can take half of it."""
BATCH = "batch_size"


class Ended(Exception):
    """The tuning cannot go on. `verdict` as in `TuningReport`; `why` in one line."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict
        self.why = why


@dataclass
class Findings:
    """Everything that the report is made of; filled as the tuning goes."""

    probe: Trial | None = None
    facts: Facts | None = None
    baseline: Arm | None = None
    chosen: Arm | None = None
    larger: Arm | None = None
    ladder: list[LadderRow] = field(default_factory=list)
    guard: GuardVerdict | None = None
    decisions: list[str] = field(default_factory=list)
    verdict: str = "interrupted"


class Tuning:
    """Carries one tuning through; what it found stands in `findings` at any moment."""

    def __init__(
        self, options: Options, laboratory: Laboratory, view: TuningView, deadline: float
    ) -> None:
        self.options = options
        self.findings = Findings()
        self._lab = laboratory
        self._view = view
        self._deadline = deadline
        self._allowed = frozenset(Effect(e) for e in options.allow or ("pipeline", "numerics"))
        self._rule = PROBE
        self._prefetch = 2
        self._evidence: list[Evidence] = []

    def run(self) -> None:
        """The whole tuning; `Ended` and KeyboardInterrupt leave `findings` as far as they are."""
        probe = self._probe()
        state = self._baseline(probe)
        self._search(state)
        batch = self._larger_batch(state)
        self._proof(state, batch)

    # -- first trials --------------------------------------------------------------------------

    def _probe(self) -> Trial:
        left = max(LEAST_PROBE_SECONDS, self._deadline - time.monotonic())
        trial = self._launch(Request("probe", {}, PROBE, hold=True, limit_seconds=left))
        self.findings.probe = trial
        if trial.throughput is None:
            raise Ended(*_unusable(trial))
        steps = trial.result.steps if trial.result else 0
        if trial.result is None or trial.result.clock is None or trial.log is None:
            raise Ended("no_training", "no training step was seen in it")
        if steps < NEEDED_STEPS:
            raise Ended(
                "too_few_steps",
                f"it ended after {steps} steps; {NEEDED_STEPS} are needed to measure it",
            )
        for error in trial.result.hook_errors:
            self._decide(f"a hook failed and was left out: {error}")
        return trial

    def _baseline(self, probe: Trial) -> State:
        """Learn the facts, plan the trials, and measure the script as it is once more."""
        assert probe.result is not None
        assert probe.log is not None
        facts = facts_of.gather(self.options, machine(), probe.result, probe.log)
        self.findings.facts = facts
        self._lab.training_loaders = facts.training_loaders
        self._prefetch = max((x.prefetch_factor or 2 for x in facts.loaders), default=2)
        workers = max((x.workers for x in facts.loaders_of_training()), default=0)
        self._rule = plan(probe.result, facts_of.steps_per_epoch(probe.log))
        self._rule = with_read_ahead(self._rule, {"loader_workers": workers}, self._prefetch)
        self._decide(
            f"trials measure {self._rule.min_steps - self._rule.audit_steps} steps "
            f"after {self._rule.audit_steps} audited ones"
        )
        trial = self._launch(Request("screen", {}, self._rule))
        if trial.throughput is None and self._lab.layers:
            self._decide(
                "the script does not run on top of what its first trial wrote: "
                "every trial starts from the untouched folder"
            )
            self._lab.drop_layers()
            trial = self._launch(Request("screen", {}, self._rule))
        if trial.throughput is None or trial.result is None:
            raise Ended(*_unusable(trial))
        self._evidence = [t.evidence for t in (probe, trial) if t.evidence is not None]
        return State(
            settings={},
            best=trial,
            facts=replace(facts, result=trial.result),
            baselines=self._evidence,
            ladder=self.findings.ladder,
        )

    # -- search --------------------------------------------------------------------------------

    def _search(self, state: State) -> None:
        knobs = [k for k in all_knobs(self.options.knob_paths) if k.name != BATCH]
        trials = (self.options.max_trials or MOST_TRIALS) - 2
        kept_back = BATCH_TRIALS if trials > 2 * BATCH_TRIALS else 0
        self._searcher(trials - kept_back).run(knobs, state)

    def _larger_batch(self, state: State) -> State | None:
        """Tune the batch size on top of the kept settings; None if no other batch is faster."""
        knob = find(BATCH, self.options.knob_paths)
        proposals = knob.candidates(state.facts)
        if isinstance(proposals, Skip):
            self._decide(f"batch size: not tried: {proposals.reason}")
            return None
        trial = replace_state(state)
        self._searcher(BATCH_TRIALS, training=True).climb(knob, list(proposals), trial)
        if Effect.TRAINING not in self._allowed:
            self._mark_training()
        return trial if BATCH in trial.settings else None

    def _mark_training(self) -> None:
        reason = "changes training: apply with --allow training"
        for number, row in enumerate(self.findings.ladder):
            if row.knob == BATCH and row.kept:
                self.findings.ladder[number] = replace(row, kept=False, reason=reason)

    def _searcher(self, trials: int, training: bool = False) -> Search:
        allowed = self._allowed | {Effect.TRAINING} if training else self._allowed
        limits = Limits(max(0, trials), self._no_room_to_search, allowed)
        return Search(self._launch, self._decide, self._rule, limits)

    def _no_room_to_search(self, seconds: float) -> bool:
        """A launch more, and the proof after it, would not fit the budget."""
        return self._left() < seconds + PROOF_ROUNDS * 2 * seconds

    # -- proof ---------------------------------------------------------------------------------

    def _proof(self, state: State, batch: State | None) -> None:
        baseline = Arm("baseline", {})
        chosen = Arm("chosen", state.settings) if state.settings else None
        larger = Arm("larger batch", batch.settings) if batch is not None else None
        self.findings.baseline, self.findings.larger = baseline, larger
        self.findings.chosen = chosen
        arms = [arm for arm in (chosen, larger) if arm is not None]
        if not arms:
            self.findings.verdict = "no_gain"
            return
        settled = prove(baseline, arms, self._launch_arm, self._no_room, self._view.proof_update)
        if baseline.failure is not None:
            raise Ended("script_failed", f"the script as it is failed: {baseline.failure}")
        self._drop_slow_batch()
        if chosen is not None:
            self._guard(baseline, chosen)
            if not self._accepted(chosen) and self._fallback(baseline, chosen):
                return
        self._conclude(baseline, settled)

    def _drop_slow_batch(self) -> None:
        """A larger batch that the proof finds no faster is no finding."""
        larger = self.findings.larger
        if larger is None or (larger.failure is None and (larger.look().speedup or 0.0) > 1.0):
            return
        why = larger.failure or "no faster in the proof"
        self._decide(f"{BATCH} {larger.settings[BATCH]['batch_size']}: {why}")
        self.findings.larger = None

    def _guard(self, baseline: Arm, arm: Arm) -> None:
        self.findings.guard = judge(
            [*self._evidence, *baseline.shown], arm.shown, self._effect(arm.settings)
        )

    def _accepted(self, arm: Arm) -> bool:
        guard = self.findings.guard
        return arm.failure is None and guard is not None and guard.accepted

    def _fallback(self, baseline: Arm, chosen: Arm) -> bool:
        """Without the numerics knobs, where the finalist failed: prove that; False if not."""
        why = chosen.failure or "; ".join(
            self.findings.guard.reasons if self.findings.guard else ()
        )
        self._decide(f"the finalist is rejected: {why}")
        safe = {k: v for k, v in chosen.settings.items() if self._knob(k).effect is Effect.PIPELINE}
        if not safe or safe == dict(chosen.settings):
            return False
        self._decide("proving the pipeline changes alone")
        self._reject(set(chosen.settings) - set(safe), why)
        arm = Arm("pipeline only", safe)
        fresh = Arm("baseline", {})
        settled = prove(fresh, [arm], self._launch_arm, self._no_room, self._view.proof_update)
        baseline.shown += fresh.shown
        self.findings.baseline, self.findings.chosen = fresh, arm
        self._guard(baseline, arm)
        self._conclude(fresh, settled)
        return True

    def _reject(self, knobs: set[str], why: str) -> None:
        for number, row in enumerate(self.findings.ladder):
            if row.kept and row.knob in knobs:
                self.findings.ladder[number] = replace(row, kept=False, reason=f"rejected: {why}")

    def _conclude(self, baseline: Arm, settled: bool) -> None:
        chosen, larger = self.findings.chosen, self.findings.larger
        if Effect.TRAINING in self._allowed and larger is not None and self._better(larger, chosen):
            guard = judge([*self._evidence, *baseline.shown], larger.shown, Effect.TRAINING)
            if guard.accepted:
                self.findings.chosen, self.findings.guard = larger, guard
                chosen = larger
        if chosen is None:
            self.findings.verdict = "no_gain"
            return
        look = chosen.look()
        faster = look.significant and (look.speedup or 0) > 1 and self._accepted(chosen)
        if faster:
            self.findings.verdict = "faster"
        else:
            self.findings.verdict = "no_gain" if settled else "inconclusive"
            if settled:
                why = "the proof does not confirm it" if chosen.failure is None else chosen.failure
                self._reject(set(chosen.settings), why)

    def _better(self, larger: Arm, chosen: Arm | None) -> bool:
        look = larger.look()
        if larger.failure is not None or not look.significant or (look.speedup or 0) <= 1:
            return False
        best = chosen.look().speedup if chosen is not None and self._accepted(chosen) else None
        return (look.speedup or 0) > (best or 1.0)

    def trial_folder(self, record: TrialRecord) -> Path:
        """Where a trial's records and output are."""
        return self._lab.folder / record.run_dir

    # -- small things --------------------------------------------------------------------------

    def _launch(self, request: Request) -> Trial:
        number = len(self._lab.trials) + 1
        self._view.trial_started(number, request.purpose, dict(request.settings))
        trial = self._lab.run(request)
        self._view.trial_finished(trial.record)
        return trial

    def _launch_arm(self, purpose: str, settings: Mapping[str, Any], number: int) -> Trial:
        rule: StopRule = with_read_ahead(self._rule, settings, self._prefetch)
        return self._launch(Request(purpose, settings, rule, seed_offset=number))

    def _no_room(self, seconds: float) -> bool:
        return self._left() < seconds

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self._view.note(line)

    def _knob(self, name: str) -> Knob:
        return find(name, self.options.knob_paths)

    def _effect(self, settings: Mapping[str, Any]) -> Effect:
        """The strongest effect among the settings."""
        effects = {self._knob(name).effect for name in settings}
        for effect in (Effect.TRAINING, Effect.NUMERICS):
            if effect in effects:
                return effect
        return Effect.PIPELINE


def replace_state(state: State) -> State:
    """The same state for a side branch: settings of its own, the ladder shared."""
    return State(dict(state.settings), state.best, state.facts, state.baselines, state.ladder)


def _unusable(trial: Trial) -> tuple[str, str]:
    record = trial.record
    steps = trial.result.steps if trial.result else 0
    if record.status == "timeout":
        seen = f"{steps} steps" if steps else "no training step"
        return (
            "inconclusive" if steps else "no_training",
            f"{seen} of the {NEEDED_STEPS} needed in {record.seconds:.0f} s: {record.reason}; "
            "a longer --budget gives it more time",
        )
    if record.status in ("stopped", "completed"):
        if not steps:
            return "no_training", "no training step was seen in it"
        return (
            "too_few_steps",
            f"it ended after {steps} steps; {NEEDED_STEPS} are needed to measure it",
        )
    return "script_failed", f"the script fails by itself ({record.status}): {record.reason}"
