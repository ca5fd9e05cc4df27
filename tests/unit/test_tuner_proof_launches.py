"""Which sides of a proof may be live, and what a pair of them says."""

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
from gpurun.pairs.engine import Pair
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.facts import Facts
from gpurun.records.result import StepTime
from gpurun.records.tuning import TrialRecord
from gpurun.tuner.proof.proof_launches import gain_of
from gpurun.tuner.tuning_trial import Trial
from tests.unit.knob_facts import facts, result
from tests.unit.recorded_runs import loader, row, steps, write_events
from tests.unit.tuner_proofs import A, StandIn, launches
from tests.unit.tuner_trials import trial

GIB = 1 << 30


def with_peak(gib: float, knobs: Mapping[str, Any], host: int = GIB) -> TrialRecord:
    record = trial(100.0, knobs).record
    return replace(record, peak_reserved_bytes=int(gib * GIB), peak_host_bytes=host)


def on_gpu(gib: float, step_ms: float = 10.0) -> Facts:
    known = facts(device="cuda")
    step = StepTime(step_ms, step_ms, step_ms, step_ms)
    machine = replace(known.machine, gpu_memory_bytes=int(gib * GIB))
    return replace(known, machine=machine, result=replace(known.result, step_time_ms=step))


def obstacle(
    series: StandIn, known: Facts, settings: Any = A, objective: Objective = Objective.THROUGHPUT
) -> str:
    return launches(series, objective, known=known).obstacle(settings)


# -- which sides may be live -----------------------------------------------------------------------


def test_two_sides_that_fit_beside_each_other_are_measured_live() -> None:
    series = StandIn(with_peak(20, {}), with_peak(40, A))
    assert obstacle(series, on_gpu(80), A) == ""


def test_two_sides_that_do_not_fit_together_take_turns_as_launches() -> None:
    series = StandIn(with_peak(30, {}), with_peak(45, A))
    assert obstacle(series, on_gpu(80), A) == "both sides together do not fit in memory"


def test_two_sides_whose_data_do_not_fit_in_the_hosts_memory_take_turns_as_launches() -> None:
    data = available_memory() * 6 // 10
    series = StandIn(with_peak(1, {}, data), with_peak(1, A, data))
    assert obstacle(series, on_gpu(80), A) == "both sides together do not fit in memory"


def test_steps_of_minutes_are_not_cut_into_turns() -> None:
    assert obstacle(StandIn(), on_gpu(80, step_ms=30_000)) == "a step takes 30 s"


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.MEMORY])
def test_what_turns_do_not_measure_is_launched_in_turn(objective: Objective) -> None:
    series = StandIn(with_peak(20, {}), with_peak(40, A))
    said = obstacle(series, on_gpu(80), A, objective=objective)
    assert said == f"turns do not measure {objective.value}"


def test_a_script_that_is_soon_over_is_not_started_for_a_live_pair() -> None:
    over = replace(with_peak(1, {}), status="completed")
    said = obstacle(StandIn(with_peak(1, {}), over), on_gpu(80))
    assert said == "the script is over before a live pair could be measured"
    in_turns = replace(over, in_turns=True)  # turns beside another gave it its figures
    assert obstacle(StandIn(with_peak(1, {}), in_turns), on_gpu(80)) == ""


def test_what_the_launcher_cannot_do_live_is_the_reason() -> None:
    series = StandIn(in_turn_only="trials work on the real files")
    assert obstacle(series, on_gpu(80)) == "trials work on the real files"


def test_ranks_that_the_script_spawned_do_not_take_turns() -> None:
    ranks = on_gpu(80)
    ranks = replace(ranks, result=replace(ranks.result, ranks=2))
    assert obstacle(StandIn(), ranks) == "the script runs in several ranks"


# -- what a pair says ------------------------------------------------------------------------------


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
    pair = Pair(*sides, TurnRatio(math.log(0.5), 0.01, 20))
    assert gain_of(pair) == pytest.approx(gain)


def test_the_last_batch_of_an_epoch_in_one_side_alone_is_no_gain(tmp_path: Path) -> None:
    sides = side(tmp_path / "a", [32] * 12), side(tmp_path / "b", [32] * 20 + [8])
    pair = Pair(*sides, TurnRatio(0.0, 0.01, 20))
    assert gain_of(pair) == pytest.approx(1.0)


def test_the_turns_say_the_gain_in_speed_and_the_launches_that_of_other_objectives() -> None:
    pair = Pair(trial(100.0), trial(150.0), TurnRatio(math.log(0.5), 0.01, 20))
    assert gain_of(pair) == pytest.approx(2.0)
    assert gain_of(replace(pair, ratio=None)) == pytest.approx(1.5)
    assert gain_of(Pair(trial(100.0), trial(None))) is None
