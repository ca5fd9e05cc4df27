"""When both sides of a proof may run beside each other, and what a pair of them says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.options import Objective
from gpurun.measure.machine import available_memory
from gpurun.measure.run_events import read_run
from gpurun.pairs.pair_outcome import PairOutcome
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import StepTime
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.proof.live_proof import LiveProof
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts, result
from tests.unit.recorded_runs import loader, row, steps, write_events
from tests.unit.tuner_trials import trial

GIB = 1 << 30


def with_peak(gib: float, knobs: Mapping[str, Any], host: int = GIB) -> Any:
    record = trial(100.0, knobs).record
    return replace(record, peak_reserved_bytes=int(gib * GIB), peak_host_bytes=host)


class StandIn:
    """Trials whose pairs end as they are told to."""

    def __init__(self, *records: Any, in_turn_only: str = "", ends: Any = None) -> None:
        self.trials = list(records)
        self.in_turn_only = in_turn_only
        self._ends = ends

    def run_pair(self, requests: tuple[TrialRequest, TrialRequest]) -> Any:
        return self._ends


def proof(series: StandIn, objective: Objective = Objective.THROUGHPUT) -> LiveProof:
    def request(purpose: TrialPurpose, settings: Mapping[str, Any], number: int) -> TrialRequest:
        return TrialRequest(purpose, settings, PROBE)

    stand_in: Any = series
    return LiveProof(stand_in, {}, objective, request, lambda _: None)


def on_gpu(gib: float, step_ms: float = 10.0) -> Any:
    known = facts(device="cuda")
    step = StepTime(step_ms, step_ms, step_ms, step_ms)
    machine = replace(known.machine, gpu_memory_bytes=int(gib * GIB))
    return replace(known, machine=machine, result=replace(known.result, step_time_ms=step))


def test_two_sides_that_fit_beside_each_other_are_measured_live() -> None:
    series = StandIn(with_peak(20, {}), with_peak(40, {"a": 1}))
    assert proof(series).obstacle(on_gpu(80), [{"a": 1}]) == ""


def test_two_sides_that_do_not_fit_together_take_turns_as_launches() -> None:
    series = StandIn(with_peak(30, {}), with_peak(45, {"a": 1}))
    said = proof(series).obstacle(on_gpu(80), [{"a": 1}])
    assert said == "both sides together do not fit in memory"


def test_two_sides_whose_data_do_not_fit_in_the_hosts_memory_take_turns_as_launches() -> None:
    data = available_memory() * 6 // 10
    series = StandIn(with_peak(1, {}, data), with_peak(1, {"a": 1}, data))
    said = proof(series).obstacle(on_gpu(80), [{"a": 1}])
    assert said == "both sides together do not fit in memory"


def test_steps_of_minutes_are_not_cut_into_turns() -> None:
    assert proof(StandIn()).obstacle(on_gpu(80, step_ms=30_000), []) == "a step takes 30 s"


def test_energy_is_not_measured_by_turns_of_milliseconds() -> None:
    series = StandIn(with_peak(20, {}), with_peak(40, {"a": 1}))
    said = proof(series, Objective.ENERGY).obstacle(on_gpu(80), [{"a": 1}])
    assert said == "turns are too short for a GPU's counter of joules"


def test_a_script_that_is_soon_over_is_not_started_for_a_live_pair() -> None:
    over = replace(with_peak(1, {}), status="completed")
    said = proof(StandIn(with_peak(1, {}), over)).obstacle(on_gpu(80), [{"a": 1}])
    assert said == "the script is over before a live pair could be measured"
    in_turns = replace(over, in_turns=True)  # turns beside another gave it its figures
    assert proof(StandIn(with_peak(1, {}), in_turns)).obstacle(on_gpu(80), [{"a": 1}]) == ""


def test_what_the_launcher_cannot_do_live_is_the_reason() -> None:
    series = StandIn(in_turn_only="trials work on the real files")
    assert proof(series).obstacle(on_gpu(80), []) == "trials work on the real files"


def side(folder: Path, batches: list[int]) -> Trial:
    """A side of a pair whose steps have so many samples, two of a warm-up before them."""
    folder.mkdir()
    rows = [row(1000 + 10 * n, samples={0: (b, 1)}) for n, b in enumerate((8, 8, *batches))]
    write_events(folder, [loader(), steps(rows)])
    (log,) = read_run(folder).processes
    samples = sum(batches)
    measured = replace(result(), samples=samples, measured_steps=len(batches))
    return replace(trial(100.0), result=measured, log=log)


@pytest.mark.parametrize(("batch", "gain"), [(32, 2.0), (128, 8.0)])
def test_a_pair_counts_samples_where_sides_take_other_batches(
    tmp_path: Path, batch: int, gain: float
) -> None:
    sides = side(tmp_path / "a", [32] * 50), side(tmp_path / "b", [batch] * 50)
    ends = PairOutcome(*sides, TurnRatio(math.log(0.5), 0.01, 20), None)
    pair = proof(StandIn(ends=ends))({"a": 1}, 0)
    assert pair.gain == pytest.approx(gain)


def test_the_last_batch_of_an_epoch_in_one_side_alone_is_no_gain(tmp_path: Path) -> None:
    sides = side(tmp_path / "a", [32] * 12), side(tmp_path / "b", [32] * 20 + [8])
    ends = PairOutcome(*sides, TurnRatio(0.0, 0.01, 20), None)
    assert proof(StandIn(ends=ends))({"a": 1}, 0).gain == pytest.approx(1.0)


def test_the_sides_change_places_from_pair_to_pair(tmp_path: Path) -> None:
    """What is launched second may have other luck: in every pair that would be a gain."""
    (tmp_path / "even").mkdir()
    (tmp_path / "odd").mkdir()
    gains = []
    for number, where in enumerate(("even", "odd")):
        sides = [side(tmp_path / where / name, [32] * 12) for name in "ab"]
        luck = PairOutcome(*sides, TurnRatio(math.log(0.9), 0.01, 20), None)
        gains.append(proof(StandIn(ends=luck))({"a": 1}, number).gain)
    assert gains == pytest.approx([1 / 0.9, 0.9])


def test_ranks_that_the_script_spawned_do_not_take_turns() -> None:
    ranks = on_gpu(80)
    ranks = replace(ranks, result=replace(ranks.result, ranks=2))
    assert proof(StandIn()).obstacle(ranks, []) == "the script runs in several ranks"


def test_a_pair_without_turns_says_why() -> None:
    failure = Failure(FailureKind.EXIT_CODE, "second ended with exit code 7")
    ends = PairOutcome(trial(100.0), None, None, failure)
    pair = proof(StandIn(ends=ends))({"a": 1}, 0)
    assert (pair.gain, pair.failure) == (None, "second ended with exit code 7")
