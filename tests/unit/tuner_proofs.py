"""Stand-ins for the launches of a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.pairs.engine import PairOutcome, ToldOnce
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.facts import Facts
from gpurun.records.tuning import TrialRecord
from gpurun.tuner.phases import Phases
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.proof.proof_launches import ProofLaunches
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_findings import TuningFindings
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import trial

A: Mapping[str, Any] = {"a": 1}
PORT = "a port is taken"
FAILED = "it fell over"
IN_TURN = "trials work on the real files"


class StandIn:
    """Trials that are `gain` times as fast with settings, times what their pair's number says.

    `fails(number)`: whether the live pair of this number does; `alone`: the rate of a launch of
    the baseline alone, by how many there were; `broken`: the settings whose launches fail.
    """

    def __init__(
        self,
        *records: TrialRecord,
        in_turn_only: str = "",
        gain: float = 3.0,
        scatter: Sequence[float] = (1.0,),
    ) -> None:
        self.trials = list(records)
        self.in_turn_only = in_turn_only
        self.gain, self.scatter = gain, scatter
        self.fails: Callable[[int], bool] = lambda number: False
        self.alone: Callable[[int], float | None] = lambda number: 100.0
        self.broken: Mapping[str, Any] | None = None
        self.pairs: list[tuple[TrialRequest, TrialRequest]] = []
        self.launched: list[TrialRequest] = []
        self.figures: dict[str, Any] = {}

    def _gain_of(self, request: TrialRequest) -> float:
        return self.gain * self.scatter[request.seed_offset % len(self.scatter)]

    def run_pair(self, requests: tuple[TrialRequest, TrialRequest]) -> PairOutcome[Trial]:
        self.pairs.append(requests)
        if self.fails(len(self.pairs) - 1):
            return PairOutcome(None, None, None, PORT)
        speeds = [self._gain_of(request) if request.settings else 1.0 for request in requests]
        sides = [trial(10.0, request.settings) for request in requests]  # only the turns count
        for number, side in enumerate(sides):
            if side.result is not None:
                sides[number] = replace(side, result=replace(side.result, **self.figures))
        ratio = TurnRatio(math.log(speeds[0] / speeds[1]), 0.01, 40)
        return PairOutcome(sides[0], sides[1], ratio)

    def launch(self, request: TrialRequest) -> Trial:
        self.launched.append(request)
        if request.settings:
            rate = None if request.settings == self.broken else 100.0 * self._gain_of(request)
        else:
            rate = self.alone(sum(not one.settings for one in self.launched) - 1)
        return trial(rate, request.settings, reason="" if rate else FAILED)


class Told(TuningView):
    """Keeps what the proof says of its progress."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def proof_update(self, line: str) -> None:
        self.lines.append(line)


def launches(
    series: StandIn,
    objective: Objective = Objective.THROUGHPUT,
    seconds: float = 1e6,
    known: Facts | None = None,
) -> ProofLaunches:
    findings = TuningFindings(facts=known or facts())
    stand_in: Any = series
    phases = Phases(time.monotonic() + seconds)
    note = ToldOnce(lambda line: None, findings.decisions)
    return ProofLaunches(
        findings, stand_in, Told(), phases, objective, series.launch, lambda _: PROBE, note
    )


def chosen() -> Finalist:
    return Finalist("chosen", A)


def timed_out(found: Trial) -> Trial:
    return replace(found, record=replace(found.record, status="timeout"))
