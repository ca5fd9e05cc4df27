"""What a proof launches: which sides may be live, what a pair of them says, and in which order."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.options import Objective
from gpurun.measure.machine import available_memory
from gpurun.measure.run_events import read_run
from gpurun.pairs.engine import Pair, PairOutcome
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.facts import Facts
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import StepTime
from gpurun.records.tuning import PAIR_SIDES, LadderRow, TrialPurpose, TrialRecord
from gpurun.tuner.proof.paired_proof import Finalist
from gpurun.tuner.proof.proof_launches import ProofLaunches, gain_of
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView
from tests.unit.knob_facts import facts, result
from tests.unit.recorded_runs import loader, row, steps, write_events
from tests.unit.tuner_trials import trial

GIB = 1 << 30
A = {"a": 1}
PORT = Failure(FailureKind.EXCEPTION, "a port is taken")


def with_peak(gib: float, knobs: Mapping[str, Any], host: int = GIB) -> TrialRecord:
    record = trial(100.0, knobs).record
    return replace(record, peak_reserved_bytes=int(gib * GIB), peak_host_bytes=host)


def on_gpu(gib: float, step_ms: float = 10.0) -> Facts:
    known = facts(device="cuda")
    step = StepTime(step_ms, step_ms, step_ms, step_ms)
    machine = replace(known.machine, gpu_memory_bytes=int(gib * GIB))
    return replace(known, machine=machine, result=replace(known.result, step_time_ms=step))


class StandIn:
    """Trials that are `gain` times as fast with settings; launches are told by their settings.

    `fails(number)`: whether the live pair of this number does; `alone`: the rate of a launch of
    the baseline alone, by how many there were.
    """

    def __init__(self, *records: TrialRecord, in_turn_only: str = "", gain: float = 3.0) -> None:
        self.trials = list(records)
        self.in_turn_only = in_turn_only
        self.gain = gain
        self.fails: Callable[[int], bool] = lambda number: False
        self.alone: Callable[[int], float | None] = lambda number: 100.0
        self.pairs: list[tuple[TrialRequest, TrialRequest]] = []
        self.launched: list[TrialRequest] = []

    def run_pair(self, requests: tuple[TrialRequest, TrialRequest]) -> PairOutcome[Trial]:
        self.pairs.append(requests)
        if self.fails(len(self.pairs) - 1):
            return PairOutcome(None, None, None, PORT)
        speeds = [self.gain if request.settings else 1.0 for request in requests]
        sides = [trial(10.0, request.settings) for request in requests]
        ratio = TurnRatio(math.log(speeds[0] / speeds[1]), 0.01, 40)
        return PairOutcome(sides[0], sides[1], ratio, None)

    def launch(self, request: TrialRequest) -> Trial:
        self.launched.append(request)
        if request.settings:
            return trial(100.0 * self.gain, request.settings)
        rate = self.alone(sum(not one.settings for one in self.launched) - 1)
        return trial(rate, reason="" if rate else "it fell over")


def launches(
    series: StandIn,
    objective: Objective = Objective.THROUGHPUT,
    seconds: float = 1e6,
    known: Facts | None = None,
) -> ProofLaunches:
    findings = TuningFindings(facts=known or facts())
    timetable = TimeBudget(time.monotonic() + seconds, lambda knob: False)
    stand_in: Any = series
    return ProofLaunches(
        findings, stand_in, TuningView(), timetable, objective, series.launch, lambda _: PROBE
    )


def obstacle(
    series: StandIn, known: Facts, *finalists: Any, objective: Objective = Objective.THROUGHPUT
) -> str:
    return launches(series, objective).obstacle({}, known, finalists)


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
def test_turns_measure_speed_alone(objective: Objective) -> None:
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


def test_the_turns_say_the_gain_and_without_them_the_launches() -> None:
    pair = Pair(trial(100.0), trial(150.0), TurnRatio(math.log(0.5), 0.01, 20))
    assert gain_of(pair) == pytest.approx(2.0)
    assert gain_of(replace(pair, ratio=None)) == pytest.approx(1.5)
    assert gain_of(Pair(trial(100.0), trial(None))) is None


# -- what is launched ------------------------------------------------------------------------------


def proven(proofs: ProofLaunches, *finalists: Finalist) -> tuple[Finalist, list[str]]:
    """The baseline's side of a proof of these finalists, and what was decided."""
    baseline = proofs.prove(list(finalists), trial(300.0, finalists[0].settings))
    return baseline, proofs.findings.decisions


def test_live_pairs_change_the_order_of_their_sides_and_share_a_seed() -> None:
    """What is launched second may have other luck: in every pair that would be a gain."""
    series = StandIn()
    proofs = launches(series)
    baseline, told = proven(proofs, chosen := Finalist("chosen", A))
    assert [[one.settings for one in pair] for pair in series.pairs] == [[A, {}], [{}, A]]
    assert [[one.seed_offset for one in pair] for pair in series.pairs] == [[0, 0], [1, 1]]
    assert {one.purpose for pair in series.pairs for one in pair} == set(PAIR_SIDES)
    assert [gain / base for base, gain in chosen.pairs] == pytest.approx([3.0, 3.0])
    assert chosen.errors == [0.01, 0.01]
    assert (len(baseline.rates), series.launched, told) == (2, [], [])
    assert proofs.findings.proof_seconds is not None


def test_sides_that_cannot_be_live_are_launched_in_turn_and_the_reason_is_told() -> None:
    series = StandIn(in_turn_only="trials work on the real files")
    _, told = proven(launches(series), chosen := Finalist("chosen", A))
    assert told == ["launches one after the other, not live pairs: trials work on the real files"]
    order = [(one.purpose, one.seed_offset) for one in series.launched[:4]]
    baseline, candidate = PAIR_SIDES
    assert order == [(candidate, 0), (baseline, 0), (baseline, 1), (candidate, 1)]
    assert not chosen.live
    assert chosen.settled


def test_each_launch_is_told_what_comes_after_it() -> None:
    """So that the processes of the next ones can start meanwhile."""
    series = StandIn(in_turn_only="trials work on the real files", gain=1.05)
    proven(launches(series), Finalist("chosen", A))
    settings = [one.settings for one in series.launched]
    assert len(settings) > 6
    for number, request in enumerate(series.launched[:6]):
        coming = settings[number + 1 : number + 4]
        assert list(request.following[: len(coming)])[:2] == coming[:2]


def test_where_no_live_pair_works_launches_take_turns_at_once() -> None:
    series = StandIn()
    series.fails = lambda number: True
    _, told = proven(launches(series), chosen := Finalist("chosen", A))
    why = f"a live pair failed: {PORT.text}"
    assert told == [f"launches one after the other, not live pairs: {why}"]
    assert len(series.pairs) == 1
    assert not chosen.live
    assert chosen.look().significant


def test_a_live_pair_that_fails_is_measured_again_and_twice_ends_live_pairs() -> None:
    once, twice = StandIn(gain=1.05), StandIn(gain=1.05)
    once.fails, twice.fails = (lambda n: n == 1), (lambda n: n in (1, 2))
    proven(launches(once), chosen := Finalist("chosen", A))
    assert chosen.live
    assert once.launched == []
    proven(launches(twice), chosen := Finalist("chosen", A))
    assert not chosen.live
    assert [request.seed_offset for request in twice.launched[:2]] == [1, 1]
    assert len(chosen.pairs) == 1 + len(twice.launched) // 2, "the live one counts as well"
    assert chosen.errors[:2] == [0.01, None]


def test_a_baseline_launch_that_fails_once_by_itself_is_repeated() -> None:
    series = StandIn(in_turn_only="asked for")
    series.alone = lambda number: None if number == 0 else 100.0
    baseline, _ = proven(launches(series), chosen := Finalist("chosen", A))
    assert [one.purpose for one in series.launched[1:3]] == [TrialPurpose.PAIR_BASELINE] * 2
    assert baseline.failure is None
    assert chosen.look().significant


def test_a_baseline_that_keeps_failing_ends_the_tuning_or_the_proof() -> None:
    series = StandIn(in_turn_only="asked for")
    series.alone = lambda number: None
    with pytest.raises(TuningEnded, match="it fell over"):
        proven(launches(series), Finalist("chosen", A))
    assert len(series.launched) == 3


def test_a_baseline_that_fails_after_the_gain_is_proven_ends_the_proof_alone() -> None:
    series = StandIn(in_turn_only="asked for")
    series.alone = lambda number: (100.0, 106.0, None, None)[number]
    _, told = proven(launches(series), chosen := Finalist("chosen", A))
    assert told[-1] == "the proof ended early, the script as it is failed: it fell over"
    assert (len(chosen.pairs), chosen.settled) == (2, False)
    assert chosen.look().significant


def test_a_pair_that_has_begun_may_take_a_quarter_of_the_budget_more() -> None:
    """One deadline, however often a pair is launched again."""
    series = StandIn(gain=1.05)
    series.fails = lambda number: number == 1
    proofs = launches(series, seconds=50.0)
    proofs.prove([Finalist("chosen", A)], trial(100.0))
    limits = {(one.hurry_at, one.deadline) for pair in series.pairs for one in pair}
    end = proofs.timetable.deadline
    assert limits == {(end, end + 0.25 * proofs.timetable.budget)}


def test_a_find_of_another_objective_is_judged_by_what_launches_differ_by_in_it() -> None:
    """Equal peaks of memory differ by 0.3 %: a gain of 4 % is soon proven."""
    speed, memory = (
        launches(StandIn(in_turn_only="asked for", gain=1.04), objective)
        for objective in (Objective.THROUGHPUT, Objective.MEMORY)
    )
    pairs = []
    for proofs in (speed, memory):
        proven(proofs, chosen := Finalist("chosen", A))
        pairs.append(next((n for n in (2, 3, 4, 5, 6, 8, 10, 12) if _proven_by(chosen, n)), 99))
    assert pairs[1] == 2 < pairs[0]


def _proven_by(finalist: Finalist, pairs: int) -> bool:
    part = replace(finalist, pairs=finalist.pairs[:pairs], errors=finalist.errors[:pairs])
    return part.look().proven


def test_a_finalist_that_does_not_fit_beside_the_baseline_leaves_the_others_live() -> None:
    series = StandIn(with_peak(30, {}), with_peak(45, A), with_peak(20, {"b": 2}))
    proofs = launches(series, known=on_gpu(80))
    _, told = proven(proofs, large := Finalist("larger batch", A), small := Finalist("b", {"b": 2}))
    assert (large.live, small.live) == (False, True)
    why = "both sides together do not fit in memory"
    assert told == [f"launches one after the other, not live pairs: {why}"]


def test_a_live_pair_that_failed_is_not_tried_again_with_the_next_finalist() -> None:
    series = StandIn()
    series.fails = lambda number: True
    proofs = launches(series)
    proven(proofs, Finalist("chosen", A))
    proven(proofs, Finalist("pipeline only", {"b": 2}))
    assert len(series.pairs) == 1


def test_shares_of_changes_are_live_pairs_and_the_first_that_fails_ends_them() -> None:
    series = StandIn()
    proofs = launches(series)
    found = proofs.findings
    found.verdict = "faster"
    proven(proofs, chosen := Finalist("chosen", {"a": 1, "b": 2, "c": 3}))
    found.chosen = chosen
    found.ladder[:] = [
        LadderRow(knob, n, "pipeline", 100.0, None, None, None, None, True, "")
        for n, knob in enumerate("abc", 1)
    ]
    proofs.timetable.baseline(trial(100.0), started_early=False)
    taken = len(series.pairs)
    series.fails = lambda number: number > taken
    proofs.shares(trial(300.0, chosen.settings), lambda row: ())
    assert [row.speedup for row in found.ladder] == [pytest.approx(1.0), None, None]
    without = {"b": 2, "c": 3}
    assert {tuple(one.settings.items()) for one in series.pairs[taken]} == {
        tuple(without.items()), tuple(chosen.settings.items())
    }  # fmt: skip
    assert {one.purpose for one in series.pairs[taken]} == {TrialPurpose.SHARE}
    told = f"shares of single changes: not all measured: a live pair failed: {PORT.text}"
    assert found.decisions[-1] == told
