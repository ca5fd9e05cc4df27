"""One tuning from the first trial to the report: probe, search, proof, guard."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.formatting.finding_sentence import ceilings_sentence, finding_sentence
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.measure.machine import machine
from gpurun.measure.resource_use import is_about_gpus
from gpurun.pairs.engine import ToldOnce
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.stats.descriptive import geometric_mean
from gpurun.trials import knob_calls
from gpurun.trials.launch_request import ALL_LAUNCHES
from gpurun.trials.prestart import MOST, has_several_slots, what_to_import
from gpurun.tuner.loader_trials import ceilings_of
from gpurun.tuner.phases import Phases
from gpurun.tuner.proof.final_selection import FinalSelection
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.proof.proof_launches import ProofLaunches
from gpurun.tuner.rungs import Stages, losing, measure_rungs, unmeasured
from gpurun.tuner.script_facts import gather_facts, reload_rate, steps_per_epoch
from gpurun.tuner.search.changes import (
    BATCH,
    largest_that_fits,
    likely_changes,
    other_batches,
    settings_of,
    strongest_effect,
)
from gpurun.tuner.search.live_reference import LiveReference
from gpurun.tuner.search.memory_fit import make_it_fit
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.search.search_trials import SearchTrials
from gpurun.tuner.search.stage_search import StageSearch
from gpurun.tuner.training_judge import AuditLaunches, TrainingJudge
from gpurun.tuner.trial_length import (
    PROBE,
    TrialPlan,
    needed_steps,
    with_read_ahead,
)
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import (
    TrialDiagnoses,
    TuningEnded,
    TuningFindings,
    answered_by,
    by_findings,
    serious,
    unusable,
)
from gpurun.tuner.tuning_preview import PreviewInputs, preview_lines
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView

MOST_TRIALS = 20
"""Before the proof, the probe and the baseline included. Each value of an argument that the user
lists adds one."""
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
        self._trials, self._view = trials, view
        self._note = ToldOnce(view.decision, self.findings.decisions)
        self._tell = ToldOnce(view.note, self.findings.decisions)
        self._time = Phases(deadline, budget)
        self._objective = options.aim
        self._allowed = frozenset(map(Effect, options.allowed))
        asked = [a for a in options.tuned_arguments if Effect(a.effect) in self._allowed]
        more = sum(len(argument.values) - 1 for argument in asked)
        self._most_trials = options.max_trials or MOST_TRIALS + more
        self._rule = PROBE
        self._proofs = ProofLaunches(
            self.findings,
            trials,
            view,
            self._time,
            self._objective,
            self._launch,
            self._rule_for,
            self._note,
        )
        self._reference = LiveReference(trials, self._launch, self._note)

    def run(self) -> None:
        """Run the whole tuning. `TuningEnded` and KeyboardInterrupt leave `findings` incomplete."""
        state = self._baseline(self._probe())
        found, facts = self.findings, state.facts
        found.seen = self._diagnoses.of(state.best.record)
        for finding in serious(found.seen):
            self._note(finding_sentence(finding))
        self._settle(state)
        chosen = found.chosen if found.verdict == "faster" else None
        if self._objective is Objective.THROUGHPUT:
            launch = self._launch if self._time.left > 2 * self._time.usual else None
            proven = geometric_mean(chosen.rates) if chosen is not None and chosen.rates else None
            found.ceilings = ceilings_of(facts, self._rule, launch, proven)
            why = f"ceilings: none: {found.ceilings.reason}"
            self._note(ceilings_sentence(found.ceilings) or why)
        if chosen is not None:
            found.left = self._diagnoses.under(chosen.settings)

    def _settle(self, state: SearchState) -> None:
        """Search from the script as it is, prove what was found, and measure its rungs."""
        untouched = state.branch()
        search = self._search(state)
        training = Effect.TRAINING in self._allowed
        if training:
            self._try_batches(state, search)
        self._reference.end()
        self._time.search_ends()
        selection = FinalSelection(
            self.findings, state.judge, self._effect_of, self._prove, self._note
        )
        selection.settle(state)
        self._measure_rungs_that_pay(untouched, selection)
        if not training:
            self._batch_with_the_rest(untouched, state, search, selection)
        if self._time.left > self._proofs.seconds:
            selection.narrow()
            self._measure_rungs_that_pay(untouched, selection)

    def _measure_rungs_that_pay(self, untouched: SearchState, selection: FinalSelection) -> None:
        """Measure the rungs of what was proven; what loses in its own leaves, and the rest is
        proven again."""
        self._measure_rungs(untouched)
        stages = self._stages(self.findings.chosen)
        lost = losing(self.findings.rungs, stages.names)
        if lost and selection.without(stages.changes(lost), "it loses in its rung"):
            self._measure_rungs(untouched)

    def preview(self) -> None:
        """The first trial alone, and what the rest would be; `TuningEnded` in any case."""
        probe = self._probe()
        facts = self._facts_of(probe)
        self._time.baseline(probe)
        batches = other_batches(facts, self.options)
        in_turn = self._proofs.obstacle(self.findings.base)
        ground = PreviewInputs(self._knobs(), self._allowed, probe, facts, batches, in_turn)
        for line in preview_lines(ground, self._time):
            self._tell(line)
        raise TuningEnded("dry_run", "nothing was tuned: --dry-run launches the first trial alone")

    # -- first trials --------------------------------------------------------------------------

    def _probe(self) -> Trial:
        trial = self._first_trial({}, self._time.left)
        if trial.record.status == "oom":
            trial = self._fitting_trial(trial)
        result, log = trial.result, trial.log
        if trial.throughput is None or result is None or result.clock is None or log is None:
            raise unusable(trial)
        if result.steps < needed_steps(result):
            raise unusable(trial)
        for error in result.hook_errors:
            self._tell(f"a hook failed and was left out: {error}")
        for note in filter(is_about_gpus, result.notes):
            self._tell(note)
        modules = what_to_import(self.options.target, log, ranks=self.options.elastic)
        if isinstance(modules, Skip):
            self._note(f"trials do not start while another one runs: {modules.reason}")
        else:
            self._trials.prestarted.modules = modules
        return trial

    def _first_trial(self, settings: Mapping[str, Any], seconds: float) -> Trial:
        limit = max(LEAST_PROBE_SECONDS, seconds)
        request = TrialRequest(TrialPurpose.PROBE, settings, PROBE, hold=True, limit_seconds=limit)
        trial = self.findings.probe = self._launch(request)
        self._time.longest = max(self._time.longest, trial.record.seconds)
        return trial

    def _fitting_trial(self, failed: Trial) -> Trial:
        """A first trial of the script made to fit; the one that failed if nothing does that.

        It may take the budget once more: nothing else can be of use to such a script.
        """
        if failed.result is None or failed.log is None:
            return failed

        def left() -> float:
            return self._time.left + self._time.budget

        facts = gather_facts(self.options, machine(), failed.result, failed.log)
        found = make_it_fit(
            all_knobs(self.options.knob_paths),
            replace(facts, out_of_memory=True),
            self._allowed,
            lambda settings: self._first_trial(settings, left()),
            self._note,
            out_of_time=lambda: left() <= 0,
        )
        if found is None:
            self.findings.probe = failed
            return failed
        self.findings.base, trial = found
        return trial

    def _facts_of(self, probe: Trial) -> Facts:
        """The facts of the script, made to fit if it must be."""
        assert probe.result is not None
        assert probe.log is not None
        base = dict(self.findings.base)
        facts = gather_facts(self.options, machine(), probe.result, probe.log)
        aim = self._objective.value
        facts = replace(facts, current=base, out_of_memory=bool(base), objective=aim)
        self.findings.facts = facts
        return facts

    def _baseline(self, probe: Trial) -> SearchState:
        """Learn the facts, plan the trials, and measure the script as it is once more."""
        facts, base = self._facts_of(probe), self.findings.base
        self._trials.training_loaders = facts.training_loaders
        assert probe.log is not None
        epoch, again = steps_per_epoch(probe.log), reload_rate(probe.log)
        plan = TrialPlan(facts, epoch, self._time.budget, self._objective, again)
        self._rule, self.findings.second_epoch_budget = plan.rule, plan.budget_needed
        self._note(plan.described)
        if probe.evidence is not None and probe.evidence.never_finite:
            self._allowed -= {Effect.NUMERICS}
            self._note("the script's own loss is never finite: no numerics change is tried")
        trial = self._as_it_is(facts)
        if trial.score is None or trial.result is None:
            raise unusable(trial)
        if told := plan.settle(trial.result):
            self._note(told)
        self._rule = plan.rule
        self._time.baseline(*([] if plan.longer else [probe]), trial)
        shown = [t.evidence for t in (probe, trial) if t.evidence is not None]
        launches = AuditLaunches(self._launch, self._note, base, self._rule, self._time)
        return SearchState(
            settings=dict(base),
            best=trial,
            facts=replace(facts, result=trial.result),
            judge=TrainingJudge(shown, launches),
            dropped=self.findings.dropped,
            rejections=self.findings.rejections,
        )

    def _as_it_is(self, facts: Facts) -> Trial:
        """A second trial of the script, without the first one's files where it fails with them."""
        base, allowed = self.findings.base, self._allowed_knobs()
        if self._trials.prestarted.modules and has_several_slots():
            self._trials.prestarted.modules += knob_calls.early_imports(allowed, facts)
        coming = ({**base, **settings_of(likely_changes(allowed, facts))},) * MOST
        request = TrialRequest(TrialPurpose.SCREEN, base, self._rule, following=coming)
        trial = self._launch(request)
        launcher = self._trials.launcher
        if trial.throughput is None and launcher.has_layer(ALL_LAUNCHES) and not trial.was_slow:
            self._note(
                "it fails on top of the first trial's files: each starts from the original folder"
            )
            launcher.drop_layer(ALL_LAUNCHES)
            trial = self._launch(replace(request, following=()))
        return trial

    # -- search --------------------------------------------------------------------------------

    def _knobs(self) -> list[Knob]:
        """The knobs that the search may set, in their order."""
        tuned = self.options.tuned_arguments
        knobs = [k for k in all_knobs(self.options.knob_paths, tuned) if k.name != BATCH]
        return [k for k in knobs if k.saves_memory or self._objective is not Objective.MEMORY]

    def _allowed_knobs(self) -> list[Knob]:
        return [knob for knob in self._knobs() if knob.effect in self._allowed]

    def _search(self, state: SearchState) -> StageSearch:
        knobs, seen = self._knobs(), self.findings.seen
        trials = SearchTrials(
            self._launch_in_search, self._note, self._rule, self._time, self._most_trials - 2
        )
        search = StageSearch(trials, self._allowed)
        self._time.search_begins()
        if self._objective is Objective.THROUGHPUT and self._time.room(compiled=False):
            why = self._proofs.obstacle(state.settings)
            if self._reference.start(state.best, self._rule, self._time.left_of_phase, why):
                record = replace(state.best.record, gain_over_reference=1.0)
                state.best = replace(state.best, record=record)

        def pressing(trial: Trial) -> list[str]:
            left = self._diagnoses.of(trial.record)
            return [knob.name for knob in knobs if answered_by(knob, left) is not None]

        search.run(by_findings(knobs, seen), state, pressing)
        self.findings.untried = tuple(trials.untried)
        if trials.untried and not self._time.tried:
            raise TuningEnded("inconclusive", self._time.too_small())
        return search

    def _try_batches(self, state: SearchState, search: StageSearch) -> None:
        """Tune the batch size on top of the kept settings."""
        proposals = other_batches(state.facts, self.options)
        if isinstance(proposals, Skip):
            self._note(f"batch size: not tried: {proposals.reason}")
            return
        knob = find(BATCH, self.options.knob_paths)
        search.try_knob(knob, proposals, state)
        largest = largest_that_fits(self._trials.trials, state.facts)
        if largest is not None:
            search.try_knob(knob, [largest], state)

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
        found, chosen = self.findings, self.findings.chosen
        if found.verdict == "inconclusive":
            self._note("batch size: not tried: the budget ended before the proof")
            return
        proven = found.verdict == "faster" and chosen is not None
        if proven and chosen is not None and chosen.settings != state.settings:
            self._note("batch size: not tried: the settings that it builds on were not kept")
            return
        batch = (state if proven else untouched).branch()
        self._try_batches(batch, search)
        if BATCH in batch.settings:
            selection.settle_larger(batch)

    # -- proof and rungs -----------------------------------------------------------------------

    def _prove(self, finalist: Finalist, rungs: bool) -> Finalist:
        """Take its pairs; with `rungs`, time is kept for those that are not measured yet."""
        if not rungs or self._objective is not Objective.THROUGHPUT:
            return self._proofs.prove(finalist)
        missing = unmeasured(self._stages(finalist), self._reference.trials)
        return self._proofs.prove(finalist, len(missing))

    def _measure_rungs(self, as_it_is: SearchState) -> None:
        """Measure what was proven stage by stage, as long as there is time; what was measured is
        restated by all pairs so far."""
        chosen, known = self.findings.chosen, list(self._reference.trials)
        stages, pair, alone = self._stages(chosen), self._proofs.seconds, as_it_is.best
        proven = self.findings.verdict == "faster" and self._objective is Objective.THROUGHPUT
        if chosen is None or not proven or not stages.names:
            return
        if unmeasured(stages, known) and self._time.may_begin(pair):
            why = self._proofs.obstacle(chosen.settings)
            self._reference.start(alone, self._rule, self._time.left, why)

        def launch(settings: Mapping[str, Any]) -> Trial:
            rule = self._rule_for(settings)
            return self._reference.run(TrialRequest(TrialPurpose.RUNG, settings, rule))

        def deviation(trial: Trial) -> float | None:
            effect = strongest_effect(map(self._effect_of, trial.record.knobs))
            return as_it_is.judge.loss_deviation(trial, effect)

        def room(seconds: float) -> bool:
            # the first is a pair that may end late, or nobody would see what the stages gain
            return self._time.left > seconds if seconds else self._time.may_begin(pair)

        try:
            found = measure_rungs(stages, chosen, launch, room, deviation, alone, known)
            for rungs in found:
                self.findings.rungs = rungs
        finally:
            self._reference.end()

    def _stages(self, finalist: Finalist | None) -> Stages:
        """The settings of a finalist by stage."""
        settings = {} if finalist is None else finalist.settings
        return Stages(self.findings.base, settings, self._knob)

    # -- launches ------------------------------------------------------------------------------

    def trial_folder(self, record: TrialRecord) -> Path:
        """Where a trial's records and output are."""
        return self._trials.folder_of(record)

    def _launch(self, request: TrialRequest) -> Trial:
        limit = max(LEAST_TRIAL_SECONDS, self._time.left)
        if math.isfinite(request.deadline):  # a pair that has begun may go on
            limit = max(limit, request.deadline - time.monotonic())
        request = replace(request, limit_seconds=min(limit, request.limit_seconds))
        if request.patience_seconds is None:
            request = replace(request, patience_seconds=self._time.patience)
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

    def _effect_of(self, name: str) -> Effect:
        return self._knob(name).effect

    def _knob(self, name: str) -> Knob:
        return find(name, self.options.knob_paths, self.options.tuned_arguments)
