"""Tunings with stand-in launches, whose throughput depends on their settings alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_run import TuningRun
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView
from tests.unit.knob_facts import facts
from tests.unit.report_records import run_result
from tests.unit.tuner_trials import judge_of

Rates = Callable[[Mapping[str, Any], int], float | None]
TRAINING = ("pipeline", "numerics", "training")
BATCH_64 = {"batch_size": 64, "from": 32, "via": "loader", "learning_rate": "linear"}


class StandIn:
    """Answers every request with the throughput that `rates(settings, launch number)` gives."""

    in_turn_only = "a stand-in has no live pairs"
    has_reference = False

    def __init__(self, rates: Rates, *, shows: bool = False) -> None:
        """`shows`: a trial's evidence is its settings, by which a stand-in for the guard judges."""
        self.rates = rates
        self.shows = shows
        self.trials: list[TrialRecord] = []
        self.requests: list[TrialRequest] = []
        self.folder = Path()
        self.layered = False
        self.launcher = self.live = self
        self.training_loaders: tuple[str, ...] = ()
        self.prestarted = SimpleNamespace(modules=())

    def folder_of(self, record: TrialRecord) -> Path:
        return Path("no such run")

    def end_reference(self) -> None:
        pass

    def has_layer(self, shared: str) -> bool:
        return self.layered

    def drop_layer(self, shared: str) -> None:
        pass

    def run(self, request: TrialRequest) -> Trial:
        self.requests.append(request)
        rate = self.rates(request.settings, len(self.trials))
        record = TrialRecord(
            number=len(self.trials) + 1,
            purpose=request.purpose,
            knobs=dict(request.settings),
            status="failed" if rate is None else "stopped",
            samples_per_second=rate,
            step_time_ms=None,
            peak_memory_bytes=None,
            final_loss=None,
            seconds=1.0,
            reason="it fell over" if rate is None else "",
            run_dir="",
        )
        self.trials.append(record)
        result = None if rate is None else run_result(samples_per_second=rate)
        shown: Any = request.settings if self.shows else None
        return Trial(record, result, None, shown)


def steady(**gains: float) -> Rates:
    """100 samples/s, times the gain of each knob that is set; the launches differ a little."""

    def rates(settings: Mapping[str, Any], number: int) -> float:
        rate = 100.0 + 0.05 * (number % 3)
        for knob in settings:
            rate *= gains.get(knob, 1.0)
        return rate

    return rates


def tuning_of(
    stand_in: StandIn,
    *,
    seconds: float = 1e6,
    options: Options | None = None,
    allow: tuple[str, ...] = ("pipeline", "numerics"),
) -> tuple[TuningRun, SearchState]:
    """A tuning whose launches the stand-in makes, and its state after the script as it is."""
    options = options or Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True, allow=allow)
    series: Any = stand_in
    tuning = TuningRun(options, series, TuningView(), time.monotonic() + seconds)
    base = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
    tuning._time.baseline(base)
    state = SearchState({}, base, facts(), judge_of(), dropped=tuning.findings.dropped)
    return tuning, state
