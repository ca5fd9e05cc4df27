"""One tuning from the first trial to the report: probe, search, proof, guard."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.formatting.ceilings_text import ceilings_sentence
from gpurun.formatting.finding_sentence import finding_sentence
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.measure.gpu_notes import is_about_gpus
from gpurun.measure.machine import machine
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.same.launch_audit import LaunchAudit
from gpurun.stats.descriptive import geometric_mean
from gpurun.trials.prestart import MOST, has_several_slots, what_to_import
from gpurun.tuner import knob_calls
from gpurun.tuner.ceiling_trial import ceilings_of
from gpurun.tuner.ladder.rung_launches import RungLaunches
from gpurun.tuner.phases import Phases
from gpurun.tuner.proof.decision import BATCH
from gpurun.tuner.proof.final_selection import FinalSelection
from gpurun.tuner.proof.proof_launches import LATE_SHARE, ProofLaunches
from gpurun.tuner.script_facts import gather_facts, steps_per_epoch
from gpurun.tuner.search.batch_sizes import largest_that_fits, other_batches
from gpurun.tuner.search.changes import likely_changes, settings_of
from gpurun.tuner.search.live_reference import LiveReference
from gpurun.tuner.search.memory_fit import make_it_fit
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.search.search_trials import SearchTrials
from gpurun.tuner.search.stage_search import StageSearch
from gpurun.tuner.second_epoch import TrialPlan
from gpurun.tuner.training_judge import (
    TrainingJudge,
    launch_repeat,
    launch_reseeded,
    launch_rounded,
    launch_still,
)
from gpurun.tuner.trial_diagnosis import TrialDiagnoses, answered_by, by_findings, serious
from gpurun.tuner.trial_length import PROBE, needed_steps, patience, with_read_ahead
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_preview import PreviewInputs, preview_lines
from gpurun.tuner.tuning_trial import Trial, TrialRequest, disturbed
from gpurun.tuner.tuning_view import TuningView
from gpurun.tuner.unusable_baseline import too_few, unusable

MOST_TRIALS = 20
"""Before the proof, the probe and the baseline included. Each value of an argument that the user
lists adds one."""
AMPLE = 4
"""With room for so many launches a disturbed first one is repeated."""
LEAST_PROBE_SECONDS = 20.0
"""The first trial gets so long, however small the budget: importing torch can take half of it."""
LEAST_TRIAL_SECONDS = 30.0
"""A launch of the proof may run this long whatever is left of the budget."""


class TuningRun:
    """Carries one tuning through; what it found stands in `findings` at any moment."""

    def __init__(
        self,
        options: Options,
        trials: TrialSeries,
        view: TuningView,
        deadline: float,
        thresholds: Thresholds | None = None,
        budget: float | None = None,
    ) -> None:
        """`budget`: of the whole tuning, in seconds; None: all that is left until `deadline`."""
        self._diagnoses = TrialDiagnoses(trials, thresholds or Thresholds())
        self.options = options
        self.findings = TuningFindings()
        self._trials = trials
        self._view = view
        self._time = Phases(deadline, budget)
        self._objective = options.aim
        self._allowed = frozenset(map(Effect, options.allowed))
        asked = [a for a in options.tuned_arguments if Effect(a.effect) in self._allowed]
        more = sum(len(argument.values) - 1 for argument in asked)
        self._most_trials = options.max_trials or MOST_TRIALS + more
        self._rule = PROBE
        self._proofs = ProofLaunches(
            self.findings, trials, view, self._time, self._objective, self._launch, self._rule_for
        )
        self._reference = LiveReference(trials, self._launch, self._decide)
        self._rungs = RungLaunches(
            self.findings,
            self._time,
            self._objective,
            self._reference,
            self._proofs.obstacle,
            self._rule_for,
            lambda name: self._knob(name),
        )
        self._unfit: Trial | None = None
        """The first trial of a script that runs out of memory as it is."""

    def run(self) -> None:
        """Run the whole tuning. `TuningEnded` and KeyboardInterrupt leave `findings` incomplete."""
        probe = self._probe()
        state = self._baseline(probe)
        self.findings.seen = self._diagnoses.of(state.best.record)
        for finding in serious(self.findings.seen):
            self._decide(finding_sentence(finding))
        facts = state.facts
        self._settle(state)
        if self._objective is Objective.THROUGHPUT:
            launch = self._launch if self._time.left > 2 * self._time.usual else None
            chosen = self.findings.chosen if self.findings.verdict == "faster" else None
            proven = geometric_mean(chosen.rates) if chosen is not None and chosen.rates else None
            found = self.findings.ceilings = ceilings_of(facts, self._rule, launch, proven)
            self._decide(ceilings_sentence(found) or f"ceilings: none: {found.reason}")
        if self.findings.verdict == "faster" and self.findings.chosen is not None:
            self.findings.left = self._diagnoses.under(self.findings.chosen.settings)

    def _settle(self, state: SearchState) -> None:
        """Search from the script as it is, and prove what was found."""
        untouched = state.branch()
        search = self._search(state)
        training = Effect.TRAINING in self._allowed
        larger = self._larger_batch(state, search) if training else None
        self._reference.end()
        self._time.search_ends()
        selection = self._selection(state.judge)
        selection.settle(state, larger)
        self._rungs.measure(untouched, self._rule, selection)
        if not training:
            self._batch_with_the_rest(untouched, state, search, selection)

    def preview(self) -> None:
        """The first trial alone, and what the rest would be; `TuningEnded` in any case."""
        probe = self._probe()
        assert probe.result is not None
        assert probe.log is not None
        facts = gather_facts(self.options, machine(), probe.result, probe.log)
        base = self.findings.base
        facts = replace(facts, current=dict(base), objective=self._objective.value)
        self.findings.facts = facts
        state = SearchState(dict(base), probe, facts, self._judge([], base))
        self._time.baseline(probe)
        in_turn = self._proofs.obstacle(state.settings, facts, [])
        batches = other_batches(state.facts, self.options)
        ground = PreviewInputs(self._knobs(), self._allowed, state, batches, in_turn)
        for line in preview_lines(ground, self._time):
            self._decide(line)
        raise TuningEnded("dry_run", "nothing was tuned: --dry-run launches the first trial alone")

    # -- first trials --------------------------------------------------------------------------

    def _probe(self) -> Trial:
        left = max(LEAST_PROBE_SECONDS, self._time.left)
        trial = self._first_trial({}, left)
        if trial.record.status == "oom":
            trial = self._fitting_trial(trial)
        if trial.throughput is None:
            raise TuningEnded(*unusable(trial))
        steps = trial.result.steps if trial.result else 0
        if trial.result is None or trial.result.clock is None or trial.log is None:
            raise TuningEnded("no_training", "no training step was seen in it")
        if steps < needed_steps(trial.result):
            raise TuningEnded(*too_few(trial, steps))
        for error in trial.result.hook_errors:
            self._decide(f"a hook failed and was left out: {error}")
        for note in filter(is_about_gpus, trial.result.notes):
            self._decide(note)
        modules = what_to_import(self.options.target, trial.log, ranks=self.options.elastic)
        if isinstance(modules, Skip):
            self._decide(f"trials do not start while another one runs: {modules.reason}")
        else:
            self._trials.prestart_modules = modules
        return trial

    def _first_trial(self, settings: Mapping[str, Any], seconds: float) -> Trial:
        request = TrialRequest(
            TrialPurpose.PROBE, settings, PROBE, hold=True, limit_seconds=seconds
        )
        trial = self.findings.probe = self._launch(request)
        return trial

    def _fitting_trial(self, failed: Trial, beyond: Mapping[str, Any] | None = None) -> Trial:
        """A first trial of the script made to fit; the one that failed if nothing does that.

        It may take the budget once more: nothing else can be of use to such a script. `beyond`:
        settings that fitted once and not again.
        """
        self._unfit = failed
        if failed.result is None or failed.log is None:
            return failed

        def left() -> float:
            return self._time.left + self._time.budget

        facts = gather_facts(self.options, machine(), failed.result, failed.log)
        found = make_it_fit(
            all_knobs(self.options.knob_paths),
            replace(facts, out_of_memory=True),
            self._allowed,
            lambda settings: self._first_trial(settings, max(LEAST_PROBE_SECONDS, left())),
            self._decide,
            out_of_time=lambda: left() <= 0,
            beyond=beyond,
        )
        if found is None:
            self.findings.probe = failed
            return failed
        base, trial = found
        self.findings.base = base
        return trial

    def _baseline(self, probe: Trial) -> SearchState:
        """Learn the facts, plan the trials, and measure the script as it is once more."""
        assert probe.result is not None
        assert probe.log is not None
        base = self.findings.base
        facts = gather_facts(self.options, machine(), probe.result, probe.log)
        facts = replace(
            facts, current=dict(base), out_of_memory=bool(base), objective=self._objective.value
        )
        self.findings.facts = facts
        self._trials.training_loaders = facts.training_loaders
        plan = TrialPlan(facts, steps_per_epoch(probe.log), self._time.budget, self._objective)
        self._rule, self.findings.second_epoch_budget = plan.rule, plan.budget_needed
        self._decide(plan.described)
        if probe.evidence is not None and probe.evidence.never_finite:
            self._allowed -= {Effect.NUMERICS}
            self._decide("the script's own loss is never finite: no numerics change is tried")
        self._import_early(facts)
        as_it_is = SearchState(dict(base), probe, facts, self._judge([], base))
        coming = (self._first_set(as_it_is),) * MOST
        request = TrialRequest(TrialPurpose.SCREEN, base, self._rule, following=coming)
        trial = self._launch(request)
        if trial.throughput is None and self._trials.layered and not trial.was_slow:
            self._decide(
                "it fails on top of the first trial's files: each starts from the original folder"
            )
            self._trials.drop_layer()
            trial = self._launch(replace(request, following=()))
        if disturbed(trial, probe) and self._time.left > AMPLE * trial.record.seconds:
            self._decide("this trial is much slower than the first, and is launched once more")
            trial = max(trial, self._launch(request), key=lambda one: one.score or 0.0)
        if trial.record.status == "oom" and base and self._unfit is not None:
            self._decide("it fitted once and not again: more memory must be saved")
            again = self._fitting_trial(self._unfit, beyond=base)
            if again.throughput is not None:
                return self._baseline(again)
            if again is not self._unfit:
                raise TuningEnded(*unusable(again))
        if trial.score is None or trial.result is None:
            raise TuningEnded(*unusable(trial))
        for line in plan.settle(trial.result):
            self._decide(line)
        self._rule = plan.rule
        shorter = min(trial, probe, key=lambda one: one.record.seconds)
        self._time.baseline(trial if plan.longer else shorter)
        shown = [t.evidence for t in (probe, trial) if t.evidence is not None]
        return SearchState(
            settings=dict(base),
            best=trial,
            facts=replace(facts, result=trial.result),
            judge=self._judge(shown, base),
            dropped=self.findings.dropped,
            rejections=self.findings.rejections,
        )

    def _judge(self, shown: list[LaunchAudit], base: Mapping[str, Any]) -> TrainingJudge:
        def room(late: float = 0.0) -> float:
            return (self._time.left + late * self._time.budget) / max(self._time.usual, 1e-9)

        terms = (self._launch, self._decide, base, self._rule)
        repeated = partial(launch_repeat, *terms)
        rounded = partial(launch_rounded, *terms, partial(room, LATE_SHARE))
        reseeded, still = partial(launch_reseeded, *terms, room), partial(launch_still, *terms)
        return TrainingJudge(shown, rounded, reseeded, repeated, still)

    def _import_early(self, facts: Facts) -> None:
        """Let prestarted processes import what only some settings need, if several may wait."""
        if self._trials.prestart_modules and has_several_slots():
            allowed = [knob for knob in self._knobs() if knob.effect in self._allowed]
            self._trials.prestart_modules += knob_calls.early_imports(allowed, facts)

    def _knobs(self) -> list[Knob]:
        """The knobs that the search may set, in their order."""
        tuned = self.options.tuned_arguments
        knobs = [k for k in all_knobs(self.options.knob_paths, tuned) if k.name != BATCH]
        return [k for k in knobs if k.saves_memory or self._objective is not Objective.MEMORY]

    def _first_set(self, state: SearchState) -> dict[str, Any]:
        """The settings that the search most likely launches first: their process starts early."""
        allowed = [knob for knob in self._knobs() if knob.effect in self._allowed]
        return {**state.settings, **settings_of(likely_changes(allowed, state.facts))}

    def _search(self, state: SearchState) -> StageSearch:
        knobs, seen = self._knobs(), self.findings.seen
        trials = SearchTrials(
            self._launch_in_search, self._decide, self._rule, self._time, self._most_trials - 2
        )
        search = StageSearch(trials, self._allowed)
        self._time.search_begins()
        if self._objective is Objective.THROUGHPUT and self._time.room(compiled=False):
            self._keep_reference(state)

        def pressing(trial: Trial) -> list[str]:
            left = self._diagnoses.of(trial.record)
            return [knob.name for knob in knobs if answered_by(knob, left) is not None]

        search.run(by_findings(knobs, seen), state, pressing)
        self.findings.untried = tuple(trials.untried)
        if trials.untried and not self._time.tried:
            raise TuningEnded("inconclusive", self._time.too_small())
        return search

    def _keep_reference(self, state: SearchState) -> None:
        why = self._proofs.obstacle(state.settings, state.facts, [state.settings])
        if self._reference.start(state.best, self._rule, self._time.left_of_phase, why):
            record = replace(state.best.record, gain_over_reference=1.0)
            state.best = replace(state.best, record=record)

    def _larger_batch(self, state: SearchState, search: StageSearch) -> SearchState | None:
        """Tune the batch size on top of the kept settings; None if no other batch is faster."""
        proposals = other_batches(state.facts, self.options)
        if isinstance(proposals, Skip):
            self._decide(f"batch size: not tried: {proposals.reason}")
            return None
        trial, knob = state.branch(), find(BATCH, self.options.knob_paths)
        search.try_knob(knob, proposals, trial)
        largest = largest_that_fits(self._trials.trials, state.facts)
        if largest is not None:
            search.try_knob(knob, [largest], trial)
        return trial if BATCH in trial.settings else None

    def _batch_with_the_rest(
        self,
        untouched: SearchState,
        state: SearchState,
        search: StageSearch,
        selection: FinalSelection,
    ) -> None:
        """Try and prove batch sizes that may not be applied, with the budget that the proof left.

        On top of what was proven; where nothing was, on top of the script as it is.
        """
        if self.findings.verdict == "inconclusive":
            self._decide("batch size: not tried: the budget ended before the proof")
            return
        ground, chosen = untouched, self.findings.chosen
        if self.findings.verdict == "faster" and chosen is not None:
            ground = state
            if chosen.settings != state.settings:
                self._decide("batch size: not tried: the settings that it builds on were not kept")
                return
        batch = self._larger_batch(ground, search)
        if batch is not None:
            selection.settle_larger(batch)

    def _selection(self, judge: TrainingJudge) -> FinalSelection:
        return FinalSelection(
            self.findings, judge, self._allowed, self._effect_of, self._proofs.prove, self._decide
        )

    def trial_folder(self, record: TrialRecord) -> Path:
        """Where a trial's records and output are."""
        return self._trials.folder_of(record)

    def _launch(self, request: TrialRequest) -> Trial:
        limit = max(LEAST_TRIAL_SECONDS, self._time.left)
        if math.isfinite(request.deadline):  # a pair that has begun may go on
            limit = max(limit, request.deadline - time.monotonic())
        request = replace(request, limit_seconds=min(limit, request.limit_seconds))
        if request.patience_seconds is None:
            usual = self._time.usual or max((t.seconds for t in self._trials.trials), default=0.0)
            patient = patience(self._time.budget, usual)
            request = replace(request, patience_seconds=patient)
        number = len(self._trials.trials) + 1
        self._view.trial_started(number, request.purpose, dict(request.settings))
        trial = self._trials.run(request)
        self._view.trial_finished(trial.record)
        return trial

    def _launch_in_search(self, request: TrialRequest) -> Trial:
        """One that comes to the end of the search is given up."""
        trial = self._reference.run(request)
        late = trial.record.status == "timeout" and trial.record.seconds >= request.limit_seconds
        return replace(trial, late=True) if late else trial

    def _rule_for(self, settings: Mapping[str, Any]) -> StopRule:
        """The stop rule of a launch of the proof under these settings."""
        facts = self.findings.facts
        return with_read_ahead(self._rule, settings, facts.loaders if facts else ())

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self._view.note(line)

    def _effect_of(self, name: str) -> Effect:
        return self._knob(name).effect

    def _knob(self, name: str) -> Knob:
        return find(name, self.options.knob_paths, self.options.tuned_arguments)
