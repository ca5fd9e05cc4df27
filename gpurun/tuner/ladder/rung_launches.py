"""Launches the rungs of the settings that were proven, and has a stage that loses left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpurun.arguments.options import Objective
from gpurun.knobs.api import Knob
from gpurun.knobs.stages import stage_of
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.tuner.ladder.rungs import Settings, Stages, losing, measure_rungs
from gpurun.tuner.phases import Phases
from gpurun.tuner.proof.final_selection import FinalSelection
from gpurun.tuner.search.changes import strongest_effect
from gpurun.tuner.search.live_reference import LiveReference
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.tuning_findings import TuningFindings
from gpurun.tuner.tuning_trial import TrialRequest

Obstacle = Callable[[Settings, Facts, Sequence[Settings]], str]
"""(settings of the script as it is, facts, others) → why these cannot take turns with it, or ""."""
LOSES = "it loses in its rung"


@dataclass
class RungLaunches:
    """Writes into `findings.rungs`. `rule_for(settings)`: how long a launch is."""

    findings: TuningFindings
    phases: Phases
    objective: Objective
    reference: LiveReference
    obstacle: Obstacle
    rule_for: Callable[[Settings], StopRule]
    knob_of: Callable[[str], Knob]

    def measure(self, as_it_is: SearchState, rule: StopRule, selection: FinalSelection) -> None:
        """Measure the chosen settings stage by stage, as long as there is time; what loses goes."""
        found = self.findings
        if found.verdict != "faster" or self.objective is not Objective.THROUGHPUT:
            return
        self._measure(as_it_is, rule)
        lost = losing(found.rungs, self._stages().names)
        if lost and selection.without(self._stages().changes(lost), LOSES):
            self._measure(as_it_is, rule)

    def _measure(self, as_it_is: SearchState, rule: StopRule) -> None:
        found, stages, least = self.findings, self._stages(), 2 * self.phases.usual
        if found.chosen is None or not stages.names:
            return
        if len(stages.names) > 1 and self.phases.left > least:
            others = [found.chosen.settings]
            why = self.obstacle(as_it_is.settings, as_it_is.facts, others)
            self.reference.start(as_it_is.best, rule, self.phases.left, why)
        try:
            for rungs in measure_rungs(
                stages,
                found.chosen,
                self.reference.run,
                lambda purpose, settings: TrialRequest(purpose, settings, self.rule_for(settings)),
                lambda seconds: self.phases.left > (seconds or least),
                lambda trial, settings: as_it_is.judge.loss_deviation(
                    trial, strongest_effect(self.knob_of(name).effect for name in settings)
                ),
                as_it_is.best,
            ):
                found.rungs = rungs
        finally:
            self.reference.end()

    def _stages(self) -> Stages:
        chosen = self.findings.chosen
        settings = {} if chosen is None else chosen.settings
        return Stages(self.findings.base, settings, lambda name: stage_of(self.knob_of(name)))
