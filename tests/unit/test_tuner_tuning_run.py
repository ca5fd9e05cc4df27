"""The course of a tuning with stand-in launches: what reaches the proof, and what is made of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.knobs import find
from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import ProcessEvent
from gpurun.records.facts import BatchFlag, Facts
from gpurun.records.failure import FailureKind
from gpurun.records.result import StepTime
from gpurun.records.tuning import (
    PAIR_SIDES,
    GuardVerdict,
    LadderRow,
    TrialPurpose,
    TrialRecord,
    Unproven,
)
from gpurun.tuner import training_judge
from gpurun.tuner import tuning_run as tuning_module
from gpurun.tuner.guard.training_evidence import Evidence
from gpurun.tuner.proof import final_selection
from gpurun.tuner.proof.decision import BATCH
from gpurun.tuner.proof.paired_proof import Finalist, proof_of
from gpurun.tuner.proof.proof_launches import ProofLaunches
from gpurun.tuner.search import knob_search as search_module
from gpurun.tuner.search.screening import Screening, SearchState
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_run import TuningRun
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView
from tests.unit.knob_facts import facts
from tests.unit.report_records import run_result
from tests.unit.tuner_trials import judge_of

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())
BROKEN = GuardVerdict(accepted=False, loss_deviation=0.3, noise=0.0, reasons=("the loss is off",))
Rates = Callable[[Mapping[str, Any], int], float | None]


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
        self.training_loaders: tuple[str, ...] = ()
        self.prestart_modules: tuple[str, ...] = ()

    def end_reference(self) -> None:
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
        return Trial(record, result, None, shown, 0)


def prove(
    monkeypatch: pytest.MonkeyPatch,
    rates: Rates,
    settings: dict[str, Any],
    batch: dict[str, Any] | None = None,
    *,
    allow: tuple[str, ...] = ("pipeline", "numerics"),
    rejected: frozenset[str] = frozenset(),
) -> TuningRun:
    """The proof of `settings` (and `batch` on top); the guard rejects the knobs in `rejected`."""

    def judge(baselines: Any, candidates: Any, effect: Any) -> GuardVerdict:
        shown = {knob for finalist in candidates for knob in finalist}
        return BROKEN if rejected & shown else SOUND

    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True, allow=allow)
    stand_in = StandIn(rates, shows=True)
    tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 1e6)  # type: ignore[arg-type]
    monkeypatch.setattr(training_judge, "judge_training", judge)
    best = stand_in.run(TrialRequest(TrialPurpose.SCREEN, settings, PROBE))
    state = SearchState(settings, best, facts(), judge_of())
    side = None
    if batch is not None:
        side = SearchState({**settings, "batch_size": batch}, best, facts(), judge_of())
    for knob, value in {**settings, **({"batch_size": batch} if batch else {})}.items():
        tuning.findings.ladder.append(
            LadderRow(knob, value, "pipeline", 200.0, 2.0, None, None, None, True, "")
        )
    tuning._selection(state.judge).settle(state, side)
    return tuning


BATCH_64 = {"batch_size": 64, "from": 32, "via": "loader", "learning_rate": "linear"}
TRAINING = ("pipeline", "numerics", "training")


def steady(**gains: float) -> Rates:
    """100 samples/s, times the gain of each knob that is set; the launches differ a little."""

    def rates(settings: Mapping[str, Any], number: int) -> float:
        rate = 100.0 + 0.05 * (number % 3)
        for knob in settings:
            rate *= gains.get(knob, 1.0)
        return rate

    return rates


def test_rejected_numerics_do_not_come_back_inside_the_larger_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning = prove(
        monkeypatch,
        steady(loader_workers=2.0, autocast=1.5, batch_size=1.5),
        {"loader_workers": 4, "autocast": "bf16"},
        BATCH_64,
        allow=TRAINING,
        rejected=frozenset({"autocast"}),
    )
    found = tuning.findings
    assert found.verdict == "faster"
    assert found.chosen is not None
    assert found.chosen.settings == {"loader_workers": 4}
    assert found.larger is None
    assert [(r.knob, r.kept) for r in found.ladder] == [
        ("loader_workers", True),
        ("autocast", False),
        ("batch_size", False),
    ]
    assert "the loss is off" in found.ladder[1].reason
    assert found.rejections[0].knobs == {"loader_workers": 4, "autocast": "bf16"}


def test_a_rejected_finalist_with_nothing_to_save_leaves_the_script_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning = prove(
        monkeypatch, steady(autocast=2.0), {"autocast": "bf16"}, rejected=frozenset({"autocast"})
    )
    assert tuning.findings.verdict == "no_gain"
    assert not tuning.findings.ladder[0].kept
    assert "loss guard" in tuning.findings.ladder[0].reason


def test_when_a_gain_was_proven_is_kept_and_nothing_where_none_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proven = prove(monkeypatch, steady(loader_workers=2.0), {"loader_workers": 4})
    assert proven.findings.proof_seconds is not None
    assert 0 < proven.findings.proof_seconds < 600
    without = prove(monkeypatch, steady(), {"loader_workers": 4})
    assert without.findings.proof_seconds is None


def test_a_settled_proof_survives_a_baseline_that_fails_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady_rates = steady(loader_workers=3.0)

    def rates(settings: Mapping[str, Any], number: int) -> float | None:
        if not settings and number > 12:
            return None
        rate = steady_rates(settings, number)
        assert rate is not None
        if "batch_size" in settings:  # undecided, so that the rounds go on
            return rate * (0.7 if number % 2 else 1.6)
        return rate

    tuning = prove(monkeypatch, rates, {"loader_workers": 4}, BATCH_64)
    assert tuning.findings.verdict == "faster"


def test_a_baseline_that_fails_before_anything_is_proven_ends_the_tuning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rates(settings: Mapping[str, Any], number: int) -> float | None:
        return 200.0 if settings else None

    with pytest.raises(TuningEnded) as ended:
        prove(monkeypatch, rates, {"loader_workers": 4})
    assert ended.value.verdict == "script_failed"


def test_a_batch_that_gains_nothing_in_the_proof_is_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning = prove(
        monkeypatch,
        steady(loader_workers=2.0, batch_size=0.8),
        {"loader_workers": 4},
        BATCH_64,
        allow=TRAINING,
    )
    assert tuning.findings.larger is None
    assert tuning.findings.chosen is not None
    assert tuning.findings.chosen.settings == {"loader_workers": 4}
    assert not tuning.findings.ladder[1].kept


def test_a_larger_batch_that_trains_otherwise_keeps_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning = prove(
        monkeypatch,
        steady(loader_workers=2.0, batch_size=1.5),
        {"loader_workers": 4},
        BATCH_64,
        rejected=frozenset({"batch_size"}),
    )
    found = tuning.findings
    assert found.chosen is not None
    assert found.chosen.settings == {"loader_workers": 4}
    assert found.larger_guard == BROKEN
    assert "rejected by the loss guard: the loss is off" in found.ladder[1].reason


def test_a_batch_that_may_be_applied_and_is_not_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was allowed is not advised."""
    seen: list[float] = []
    steady_rates = steady(loader_workers=2.0, batch_size=1.2)

    def rates(settings: Mapping[str, Any], number: int) -> float | None:
        rate = steady_rates(settings, number)
        assert rate is not None
        if "batch_size" in settings:
            seen.append(rate)
            return rate * (0.4 if len(seen) % 2 else 2.8)
        return rate

    tuning = prove(monkeypatch, rates, {"loader_workers": 4}, BATCH_64, allow=TRAINING)
    row = tuning.findings.ladder[1]
    assert (row.knob, row.kept) == ("batch_size", False)
    assert "--allow" not in row.reason
    assert row.reason == "the proof does not confirm it"


@pytest.mark.parametrize(("allow", "first"), [(("pipeline",), "a"), (TRAINING, "b")])
def test_what_was_consented_to_is_proven_first(
    monkeypatch: pytest.MonkeyPatch, allow: tuple[str, ...], first: str
) -> None:
    asked: list[list[str]] = []
    real = ProofLaunches.prove

    def prove_of(self: ProofLaunches, finalists: list[Any], best: Trial) -> Any:
        asked.append(["b" if "batch_size" in finalist.settings else "a" for finalist in finalists])
        return real(self, finalists, best)

    monkeypatch.setattr(ProofLaunches, "prove", prove_of)
    rates = steady(loader_workers=2.0, batch_size=1.5)
    prove(monkeypatch, rates, {"loader_workers": 4}, BATCH_64, allow=allow)
    assert asked[0][0] == first
    assert sorted(asked[0]) == ["a", "b"]


def test_batch_sizes_that_the_user_lists_are_the_only_ones_tried() -> None:
    words = ["--optimize", "train.py", "--batch-size", "@tune:32,64"]
    options = replace(parse(words, {}), allow=TRAINING)
    stand_in = StandIn(steady())
    tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 1e6)  # type: ignore[arg-type]
    best = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
    state = SearchState({}, best, facts(batch_flag=BatchFlag("--batch-size", 32)), judge_of())
    assert tuning._larger_batch(state, tuning._search(state)) is None
    assert "batch size: not tried: --batch-size is tuned" in tuning.findings.decisions
    tried = [trial.knobs.get("--batch-size") for trial in stand_in.trials]
    assert "64" in tried


def test_a_launch_of_the_search_that_hangs_leaves_time_for_the_shortest_proof() -> None:
    stand_in = StandIn(steady())
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)
    tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 200)  # type: ignore[arg-type]
    best = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
    slow = replace(best, record=replace(best.record, seconds=20.0))
    tuning._time.baseline(slow, started_early=False)
    tuning._search(SearchState({}, slow, facts(), judge_of()))
    limits = [request.limit_seconds for request in stand_in.requests[1:]]
    assert limits
    assert max(limits) <= 0.4 * 200 + 1


@pytest.mark.parametrize(
    ("allow", "proof_first"), [(("pipeline", "numerics"), True), (TRAINING, False)]
)
def test_a_batch_size_that_may_not_be_applied_is_tried_after_the_proof(
    monkeypatch: pytest.MonkeyPatch, allow: tuple[str, ...], proof_first: bool
) -> None:
    class Gains(Knob):
        name = "gains"
        effect = Effect.PIPELINE

        def candidates(self, facts: Facts) -> list[int]:
            return [1]

        def apply(self, value: int, hooks: Hooks) -> None:
            raise AssertionError("nothing is launched here")

    monkeypatch.setattr(training_judge, "judge_training", lambda *_: SOUND)
    monkeypatch.setattr(Screening, "objection", lambda *_: (None, SOUND))
    monkeypatch.setattr(tuning_module, "all_knobs", lambda *_: [Gains(), find(BATCH)])
    monkeypatch.setattr(search_module, "not_applied", lambda *_: None)
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True, allow=allow)
    stand_in = StandIn(steady(gains=2.0, batch_size=1.5))
    tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 1e6)  # type: ignore[arg-type]
    base = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
    known = facts(batch_flag=BatchFlag("--batch-size", 32))
    state = SearchState({}, base, known, judge_of(), ladder=tuning.findings.ladder)
    monkeypatch.setattr(tuning, "_knob", lambda name: Gains() if name == "gains" else find(name))
    tuning._settle(state)
    order = [(r.purpose.value.split()[0], "batch_size" in r.knobs) for r in stand_in.trials[1:]]
    first_batch, first_pair = order.index(("screen", True)), order.index(("pair", False))
    assert (first_pair < first_batch) is proof_first
    found = tuning.findings
    assert found.verdict == "faster"
    assert found.chosen is not None
    assert ("batch_size" in found.chosen.settings) is not proof_first
    if proof_first:
        assert found.larger is not None
        assert found.larger.look().significant, "what was left of the budget proved it"
        row = next(r for r in found.ladder if r.knob == "batch_size" and "apply" in r.reason)
        assert not row.kept


def test_a_proof_that_the_budget_cut_off_is_gone_on_with_and_not_searched_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_judge, "judge_training", lambda *_: SOUND)
    row = LadderRow("loader_workers", 4, "pipeline", 200.0, None, None, None, None, True, "")
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)

    def settled(before: Unproven, seconds: float) -> TuningRun:
        stand_in = StandIn(steady(loader_workers=2.0))
        tuning = TuningRun(
            options,
            stand_in,
            TuningView(),
            time.monotonic() + seconds,
            before,  # type: ignore[arg-type]
        )
        base = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
        tuning._time.baseline(base, started_early=False)
        tuning._settle(SearchState({}, base, facts(), judge_of(), ladder=tuning.findings.ladder))
        assert all(request.purpose in PAIR_SIDES for request in stand_in.requests[1:])
        return tuning

    no_gain = Unproven({"loader_workers": 4}, ((100.0, 99.0),), (row,), 1.0, False, errors=(0.01,))
    assert settled(replace(no_gain, budget_seconds=1e6), 0.1).findings.unproven is None
    first = Unproven({"loader_workers": 4}, (), (row,), 1.0, rounded=False, budget_seconds=1e6)
    cut_off = settled(first, 0.0).findings
    assert cut_off.verdict == "inconclusive"
    assert cut_off.unproven is not None
    assert cut_off.unproven.knobs == {"loader_workers": 4}
    assert [(r.knob, r.kept) for r in cut_off.unproven.ladder] == [("loader_workers", True)]
    found = settled(replace(cut_off.unproven, budget_seconds=1e6), 1e6).findings
    assert found.verdict == "faster"
    assert found.unproven is None
    assert [(r.knob, r.kept) for r in found.ladder] == [("loader_workers", True)]


def test_the_pairs_of_an_earlier_tuning_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_judge, "judge_training", lambda *_: SOUND)
    earlier = Unproven({"a": 1}, ((100.0, 201.0), (100.0, 202.0)), (), 1.0, rounded=False)
    best = StandIn(steady()).run(TrialRequest(TrialPurpose.SCREEN, {"a": 1}, PROBE))
    state = SearchState({"a": 1}, best, facts(), judge_of())
    findings = TuningFindings()
    asked: list[Finalist] = []

    def prove_none(finalists: list[Finalist], best: Trial) -> Finalist:
        asked.extend(finalists)
        return Finalist("baseline", {})

    effects = frozenset(Effect)
    end = final_selection.FinalSelection(
        findings, state.judge, effects, lambda _: Effect.PIPELINE, prove_none, print
    )
    end.settle(state, None, earlier)
    assert asked[0].done
    assert findings.verdict == "faster"
    shown = proof_of(asked[0])
    assert shown is not None
    assert (shown.earlier_pairs, shown.live) == (2, True)


@pytest.mark.parametrize(("took", "late"), [(100.0, True), (10.0, False)])
def test_only_what_took_all_its_time_is_late(took: float, late: bool) -> None:
    stand_in = StandIn(steady())
    tuning = TuningRun(
        Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True),
        stand_in,  # type: ignore[arg-type]
        TuningView(),
        time.monotonic() + 200,
    )
    ended = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
    record = replace(ended.record, status="timeout", seconds=took)
    stand_in.run = lambda request: replace(ended, record=record)  # type: ignore[method-assign]
    assert tuning._launch_in_search(TrialRequest(TrialPurpose.SCREEN, {"a": 1}, PROBE)).late is late


@pytest.mark.parametrize(
    ("kind", "steps", "launches"),
    [
        (FailureKind.OUT_OF_TIME, 4, 1),
        (FailureKind.OUT_OF_TIME, 0, 2),
        (FailureKind.HUNG, 4, 2),  # a lock that the first one left?
    ],
)
def test_a_slow_training_is_not_launched_again_without_the_first_ones_files(
    monkeypatch: pytest.MonkeyPatch, kind: FailureKind, steps: int, launches: int
) -> None:
    """Seen on a crowded host: 30 s more, and a line that its files made it fail."""
    late = 0

    def layered(stand_in: StandIn, request: TrialRequest) -> Trial:
        nonlocal late
        late += 1
        stand_in.layered = True
        found = once(stand_in, request)
        record = replace(found.record, status="timeout", failure=kind)
        return replace(found, record=record, result=run_result(steps=steps)) if late > 1 else found

    once = StandIn.run
    monkeypatch.setattr(StandIn, "run", layered)
    monkeypatch.setattr(StandIn, "drop_layer", lambda _: None, raising=False)
    with pytest.raises(TuningEnded):
        with_baseline(monkeypatch, steady())
    assert late == 1 + launches


def test_a_much_larger_budget_searches_again_and_counts_pairs_of_the_same_finalist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Unproven | None] = []
    monkeypatch.setattr(TuningRun, "_search", lambda self, state: state.move({"a": 1}, state.best))
    monkeypatch.setattr(TuningRun, "_batch_with_the_rest", lambda *_: None)
    monkeypatch.setattr(
        final_selection.FinalSelection, "settle", lambda *words: asked.append(words[-1])
    )
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)
    same = Unproven({"a": 1}, ((100.0, 200.0),), (), 1.0, False, budget_seconds=60.0)
    for before in (same, replace(same, knobs={"b": 1})):
        stand_in = StandIn(steady())
        tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 600, before)  # type: ignore[arg-type]
        base = stand_in.run(TrialRequest(TrialPurpose.SCREEN, {}, PROBE))
        tuning._settle(SearchState({}, base, facts(), judge_of()))
    assert asked == [same, None]


def with_baseline(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, loss: float = 1.0
) -> tuple[TuningRun, SearchState]:
    """A tuning that has measured the script as it is, whose trials show this loss."""

    class Timed(StandIn):
        def run(self, request: TrialRequest) -> Trial:
            found = super().run(request)
            assert found.result is not None
            step = 1000.0 / (found.throughput or math.nan)
            times = StepTime(step, step, step, step)
            return replace(found, result=replace(found.result, step_time_ms=times))

    monkeypatch.setattr(tuning_module, "gather_facts", lambda *_: facts())
    monkeypatch.setattr(tuning_module, "steps_per_epoch", lambda log: None)
    stand_in = Timed(rates)
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)
    tuning = TuningRun(options, stand_in, TuningView(), time.monotonic() + 1e6)  # type: ignore[arg-type]
    process = ProcessEvent(1, None, None, None, ("train.py",), "3.12", 0, clock_ns=0)
    probe = replace(
        stand_in.run(TrialRequest(TrialPurpose.PROBE, {}, PROBE)),
        evidence=Evidence(seed=0, losses=(loss,) * 3, microbatches=(1,) * 3),
        log=ProcessLog(Path("events.jsonl"), process),
    )
    return tuning, tuning._baseline(probe)


@pytest.mark.parametrize("loss", [math.inf, 1.0])
def test_no_numerics_change_is_tried_where_no_loss_can_be_compared(
    monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    tuning, _ = with_baseline(monkeypatch, steady(), loss)
    assert (Effect.NUMERICS in tuning._allowed) == math.isfinite(loss)


@pytest.mark.parametrize(
    ("rates", "believed"),
    [
        ((100.0, 12.0, 95.0), 95.0),
        ((100.0, 12.0, 11.0), 12.0),  # the first was another matter: it stays slow
        ((100.0, 80.0), 80.0),
        ((100.0, 180.0), 180.0),
    ],
)
def test_a_second_trial_that_was_disturbed_does_not_stand_for_the_script(
    monkeypatch: pytest.MonkeyPatch, rates: tuple[float, ...], believed: float
) -> None:
    """Seen: an eighth of the speed for some seconds; each change "gained" nine times as much."""
    tuning, state = with_baseline(monkeypatch, lambda _, number: rates[number])
    assert state.best.throughput == believed
    again = [line for line in tuning.findings.decisions if "launched once more" in line]
    assert len(again) == (len(rates) == 3)
