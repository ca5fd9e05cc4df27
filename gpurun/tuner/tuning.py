"""One tuning from the first trial to the report: probe, search, proof, guard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.measure.gpu_notes import is_about_gpus
from gpurun.measure.machine import machine
from gpurun.options import Objective, Options
from gpurun.records.facts import Facts
from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.records.tuning import TrialRecord
from gpurun.report.tuning import TuningView
from gpurun.trials.prestart import MOST, several, what_to_import
from gpurun.tuner import asking
from gpurun.tuner import facts as facts_of
from gpurun.tuner.decision import BATCH
from gpurun.tuner.evidence import Evidence
from gpurun.tuner.finals import Finals
from gpurun.tuner.findings import Ended, Findings
from gpurun.tuner.fitting import make_it_fit
from gpurun.tuner.live_proof import LiveProof
from gpurun.tuner.plan import (
    LEAST_PROOF_ROUNDS,
    PROBE,
    needed_steps,
    plan,
    with_read_ahead,
)
from gpurun.tuner.proof import Arm, prove
from gpurun.tuner.screening import Limits, State, ladder_row
from gpurun.tuner.search import Search
from gpurun.tuner.timetable import Timetable
from gpurun.tuner.together import likely_members
from gpurun.tuner.trial import Request, Trial
from gpurun.tuner.trial_series import TrialSeries

MOST_TRIALS = 15
"""Before the proof, the probe and the baseline included; and one for each value of an argument that
the user lists."""
BATCH_TRIALS = 4
"""Of these, kept back for the batch size."""
LEAST_PROBE_SECONDS = 20.0
"""The first trial gets so long, however small the budget: importing torch can take half of it."""
LEAST_LAUNCHES = 2 + 1 + 2 * LEAST_PROOF_ROUNDS
"""The shortest tuning: two of the script as it is, one value, both sides of the proof's rounds."""
LEAST_TRIAL_SECONDS = 30.0
"""A trial may run this long whatever is left of the budget."""


class Tuning:
    """Carries one tuning through; what it found stands in `findings` at any moment."""

    def __init__(
        self, options: Options, trials: TrialSeries, view: TuningView, deadline: float
    ) -> None:
        self.options = options
        self.findings = Findings()
        self._lab = trials
        self._view = view
        self._time = Timetable(deadline, lambda knob: self._knob(knob).startup_seconds > 0)
        self._objective = options.aim
        self._allowed = frozenset(Effect(e) for e in options.allow or ("pipeline", "numerics"))
        asked = [a for a in options.tuned_arguments if Effect(a.effect) in self._allowed]
        more = sum(len(argument.values) - 1 for argument in asked)
        self._most_trials = options.max_trials or MOST_TRIALS + more
        self._rule = PROBE
        self._prefetch = 2
        self._evidence: list[Evidence] = []
        self._unfit: Trial | None = None
        """The first trial of a script that runs out of memory as it is."""

    def run(self) -> None:
        """The whole tuning; `Ended` and KeyboardInterrupt leave `findings` as far as they are."""
        probe = self._probe()
        state = self._baseline(probe)
        search = self._search(state)
        batch = self._larger_batch(state, search)
        self._finals().settle(state, batch, self._time.again(state.best))

    # -- first trials --------------------------------------------------------------------------

    def _probe(self) -> Trial:
        left = max(LEAST_PROBE_SECONDS, self._time.left)
        trial = self._first_trial({}, left)
        if trial.record.status == "oom":
            trial = self._fitting_trial(trial)
        if trial.throughput is None:
            raise Ended(*_unusable(trial))
        steps = trial.result.steps if trial.result else 0
        if trial.result is None or trial.result.clock is None or trial.log is None:
            raise Ended("no_training", "no training step was seen in it")
        if steps < needed_steps(trial.result):
            raise Ended(*_too_few(trial, steps))
        for error in trial.result.hook_errors:
            self._decide(f"a hook failed and was left out: {error}")
        for note in filter(is_about_gpus, trial.result.notes):
            self._decide(note)
        modules = what_to_import(self.options.target, trial.log, ranks=self.options.elastic)
        if isinstance(modules, Skip):
            self._decide(f"no trial is started while another runs: {modules.reason}")
        else:
            self._lab.standby_modules = modules
        return trial

    def _first_trial(self, settings: Mapping[str, Any], seconds: float) -> Trial:
        request = Request("probe", settings, PROBE, hold=True, limit_seconds=seconds)
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

        facts = facts_of.gather(self.options, machine(), failed.result, failed.log)
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
        self.findings.ladder.clear()
        for name, value in base.items():
            row = ladder_row(self._knob(name), value, trial, speedup=None, guard=None)
            self.findings.ladder.append(replace(row, kept=True, reason="makes it fit"))
        return trial

    def _baseline(self, probe: Trial) -> State:
        """Learn the facts, plan the trials, and measure the script as it is once more."""
        assert probe.result is not None
        assert probe.log is not None
        base = self.findings.base
        facts = facts_of.gather(self.options, machine(), probe.result, probe.log)
        facts = replace(
            facts,
            current=dict(base),
            out_of_memory=bool(base),
            objective=self._objective.value,
        )
        self.findings.facts = facts
        self._lab.training_loaders = facts.training_loaders
        self._prefetch = max((x.prefetch_factor or 2 for x in facts.loaders), default=2)
        workers = max((x.workers for x in facts.loaders_of_training()), default=0)
        self._rule = plan(probe.result, facts_of.steps_per_epoch(probe.log), self._time.budget)
        self._rule = with_read_ahead(self._rule, {"loader_workers": workers}, self._prefetch)
        self._decide(
            f"trials measure {self._rule.min_steps - self._rule.audit_steps} steps "
            f"after {self._rule.audit_steps} audited ones"
        )
        self._import_early(facts)
        coming = (self._first_set(State(dict(base), probe, facts, [])),) * MOST
        trial = self._launch(Request("screen", base, self._rule, following=coming))
        if trial.throughput is None and self._lab.layered:
            self._decide(
                "the script does not run on top of what its first trial wrote: "
                "every trial starts from the untouched folder"
            )
            self._lab.drop_layer()
            trial = self._launch(Request("screen", base, self._rule))
        if trial.record.status == "oom" and base and self._unfit is not None:
            self._decide("it fitted once, and not again: more is to be saved")
            again = self._fitting_trial(self._unfit, beyond=base)
            if again.throughput is not None:
                return self._baseline(again)
            if again is not self._unfit:
                raise Ended(*_unusable(again))
        if trial.throughput is None or trial.result is None:
            raise Ended(*_unusable(trial))
        self._time.baseline(trial, started_early=bool(self._lab.standby_modules))
        self._evidence = [t.evidence for t in (probe, trial) if t.evidence is not None]
        return State(
            settings=dict(base),
            best=trial,
            facts=replace(facts, result=trial.result),
            baselines=self._evidence,
            ladder=self.findings.ladder,
            rejections=self.findings.rejections,
        )

    def _import_early(self, facts: Facts) -> None:
        """Let the processes on standby import what only some settings need, if they are several."""
        if not self._lab.standby_modules or not several():
            return
        for knob in self._knobs():
            if knob.early_imports and knob.effect in self._allowed:
                if not isinstance(asking.candidates(knob, facts), Skip):
                    self._lab.standby_modules += tuple(knob.early_imports)

    # -- search --------------------------------------------------------------------------------

    def _knobs(self) -> list[Knob]:
        """Those that the search may turn, in their order."""
        tuned = self.options.tuned_arguments
        knobs = [k for k in all_knobs(self.options.knob_paths, tuned) if k.name != BATCH]
        return [k for k in knobs if k.saves_memory or self._objective is not Objective.MEMORY]

    def _first_set(self, state: State) -> dict[str, Any]:
        """What the search will most likely launch first: its process can start beforehand."""
        allowed = [knob for knob in self._knobs() if knob.effect in self._allowed]
        settings = dict(state.settings)
        for member in likely_members(allowed, state):
            settings |= member.settings
        return settings

    def _search(self, state: State) -> Search:
        knobs = self._knobs()
        trials = self._most_trials - 2
        kept_back = min(BATCH_TRIALS, trials // 3)
        limits = Limits(max(0, trials - kept_back), self._time.no_room_to_search, self._allowed)
        search = Search(self._launch_in_search, self._decide, self._rule, limits)
        to_come = kept_back > 0 and not isinstance(self._other_batches(state), Skip)
        self._time.batch_to_come = to_come
        search.run(knobs, state)
        if search.out_of_time and len(state.ladder) == len(self.findings.base):
            needed = math.ceil(2 * LEAST_LAUNCHES * state.best.record.seconds)
            raise Ended(
                "inconclusive",
                f"the budget of {self._time.budget:.0f} s left no time to try anything: "
                f"a trial takes {state.best.record.seconds:.0f} s; "
                f"give it --budget {needed}s or more",
            )
        return search

    def _larger_batch(self, state: State, search: Search) -> State | None:
        """Tune the batch size on top of the kept settings; None if no other batch is faster."""
        proposals = self._other_batches(state)
        self._time.batch_to_come = False
        if isinstance(proposals, Skip):
            self._decide(f"batch size: not tried: {proposals.reason}")
            return None
        trial = replace_state(state)
        search.allow_more(min(BATCH_TRIALS, self._trials_left()))
        search.try_knob(find(BATCH, self.options.knob_paths), proposals, trial)
        return trial if BATCH in trial.settings else None

    def _other_batches(self, state: State) -> list[Any] | Skip:
        if self._objective is Objective.MEMORY:
            return Skip("a larger one takes more memory")
        knob = find(BATCH, self.options.knob_paths)
        return self._tuned_by_its_flag(state.facts) or asking.candidates(knob, state.facts)

    def _tuned_by_its_flag(self, facts: Facts) -> Skip | None:
        """Who lists batch sizes wants those; two changes of one flag would undo each other."""
        names = {argument.name for argument in self.options.tuned_arguments}
        flag = facts.batch_flag
        return Skip(f"{flag.flag} is tuned") if flag is not None and flag.flag in names else None

    def _finals(self) -> Finals:
        def effect_of(knob: str) -> Effect:
            return self._knob(knob).effect

        found, seen = self.findings, self._evidence
        return Finals(found, seen, self._allowed, effect_of, self._prove, self._decide)

    def _prove(self, arms: list[Arm], seconds: float) -> Arm:
        """Run the rounds; the baseline's side of them."""
        baseline = self.findings.baseline = Arm("baseline", self.findings.base)
        if not arms:
            return baseline
        update = self._view.proof_update
        prove(baseline, arms, self._launch_arm, self._no_room, update, seconds, self._live(arms))
        if baseline.failure is not None:
            if not any(arm.look().settled for arm in arms):
                raise Ended("script_failed", f"the script as it is failed: {baseline.failure}")
            self._decide(f"the proof ended early, the script as it is failed: {baseline.failure}")
        return baseline

    def trial_folder(self, record: TrialRecord) -> Path:
        """Where a trial's records and output are."""
        return self._lab.folder / record.run_dir

    # -- small things --------------------------------------------------------------------------

    def _launch(self, request: Request) -> Trial:
        limit = max(LEAST_TRIAL_SECONDS, self._time.left)
        request = replace(request, limit_seconds=min(limit, request.limit_seconds))
        number = len(self._lab.trials) + 1
        self._view.trial_started(number, request.purpose, dict(request.settings))
        trial = self._lab.run(request)
        self._view.trial_finished(trial.record)
        return trial

    def _launch_in_search(self, request: Request) -> Trial:
        """One that hangs is given up while there is time for the shortest proof."""
        limit = max(LEAST_TRIAL_SECONDS, self._time.room_beside_proof())
        request = replace(request, limit_seconds=min(request.limit_seconds, limit))
        trial = self._launch(request)
        self._time.launched(trial, started_early=bool(self._lab.standby_modules))
        return trial

    def _launch_arm(
        self,
        purpose: str,
        settings: Mapping[str, Any],
        number: int,
        following: Sequence[Mapping[str, Any]],
    ) -> Trial:
        rule: StopRule = with_read_ahead(self._rule, settings, self._prefetch)
        request = Request(purpose, settings, rule, seed_offset=number, following=following)
        return self._launch(request)

    def _live(self, arms: Sequence[Arm]) -> LiveProof | None:
        """How a live pair is measured; None, with the reason noted, where launches take turns."""
        facts = self.findings.facts
        if facts is None:
            return None
        finished = self._view.trial_finished
        live = LiveProof(
            self._lab, self.findings.base, self._objective, self._live_request, finished
        )
        why = live.obstacle(facts, [arm.settings for arm in arms])
        if why:
            self._decide(f"the proof launches in turn: {why}")
            return None
        return live

    def _live_request(self, purpose: str, settings: Mapping[str, Any], number: int) -> Request:
        limit = max(LEAST_TRIAL_SECONDS, self._time.left)
        rule = with_read_ahead(self._rule, settings, self._prefetch)
        return Request(purpose, settings, rule, seed_offset=number, limit_seconds=limit)

    def _trials_left(self) -> int:
        return max(0, self._most_trials - len(self._lab.trials))

    def _no_room(self, seconds: float) -> bool:
        return self._time.left < seconds

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self._view.note(line)

    def _knob(self, name: str) -> Knob:
        return find(name, self.options.knob_paths, self.options.tuned_arguments)


def replace_state(state: State) -> State:
    """The same state for a side branch: settings of its own, ladder and rejections shared."""
    return replace(state, settings=dict(state.settings))


def _too_few(trial: Trial, steps: int) -> tuple[str, str]:
    needed = needed_steps(trial.result)
    return "too_few_steps", f"it ended after {steps} steps; {needed} are needed to measure it"


def _unusable(trial: Trial) -> tuple[str, str]:
    record = trial.record
    steps = trial.result.steps if trial.result else 0
    if trial.failure is not None and trial.failure.kind is FailureKind.RANKS_REFUSED:
        return "script_failed", record.reason
    if record.status == "timeout" and steps >= needed_steps(trial.result):
        return (
            "inconclusive",
            f"it did not end: {record.reason}, {steps} steps seen; "
            "a longer --budget gives it more time",
        )
    if record.status == "timeout":
        seen = f"{steps} steps" if steps else "no training step"
        return (
            "inconclusive" if steps else "no_training",
            f"{seen} of the {needed_steps(trial.result)} needed in {record.seconds:.0f} s: "
            f"{record.reason}; a longer --budget gives it more time",
        )
    if record.status in ("stopped", "completed"):
        if not steps:
            return "no_training", "no training step was seen in it"
        return _too_few(trial, steps)
    return "script_failed", f"the script fails by itself ({record.status}): {record.reason}"
