"""The course of a tuning with stand-in launches: baseline, search, proof, rungs, batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.knobs import find
from gpurun.knobs.api import Knob
from gpurun.records.facts import BatchFlag
from gpurun.records.tuning import GuardVerdict, TrialPurpose
from gpurun.tuner import tuning_run as tuning_module
from gpurun.tuner.proof.proof_launches import ProofLaunches
from gpurun.tuner.search import stage_search
from gpurun.tuner.search.changes import BATCH
from gpurun.tuner.search.search_trials import SearchTrials
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_findings import TuningEnded
from gpurun.tuner.tuning_run import TuningRun
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.tuner_runs import TRAINING, Rates, StandIn, steady, tuning_of
from tests.unit.tuner_searches import Planted, compiled, data, precision

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())


@pytest.fixture
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """All trials train the same, and each change acts."""
    monkeypatch.setattr(TrainingJudge, "judge", lambda *_: SOUND)
    monkeypatch.setattr(TrainingJudge, "loss_deviation", lambda *_: 0.0)
    monkeypatch.setattr(SearchTrials, "objection", lambda *_: (None, SOUND))
    monkeypatch.setattr(stage_search, "not_applied", lambda *_: None)


def settled(
    monkeypatch: pytest.MonkeyPatch,
    rates: Rates,
    *knobs: Planted,
    took: float = 0.0,
    batches: bool = True,
    **words: Any,
) -> tuple[TuningRun, StandIn]:
    """A tuning with these knobs, and batch sizes, from the script as it is to its end.

    `took`: seconds of the budget that each launch takes.
    """
    stand_in = StandIn(rates, shows=True)
    tuning, state = tuning_of(stand_in, **words)
    run = stand_in.run

    def timed(request: TrialRequest) -> Trial:
        tuning._time.deadline -= took
        return run(request)

    monkeypatch.setattr(stand_in, "run", timed)
    by_name: Mapping[str, Knob] = {knob.name: knob for knob in knobs}
    monkeypatch.setattr(tuning_module, "all_knobs", lambda *_: [*knobs, find(BATCH)])
    if not batches:
        monkeypatch.setattr(tuning, "_batch_with_the_rest", lambda *_: None)
    monkeypatch.setattr(tuning, "_knob", lambda name: by_name.get(name) or find(name))
    state.facts = facts(batch_flag=BatchFlag("--batch-size", 32))
    tuning._settle(state)
    return tuning, stand_in


def purposes(stand_in: StandIn) -> list[tuple[str, set[str]]]:
    return [(r.purpose.value.split()[0], set(r.settings)) for r in stand_in.requests[1:]]


LADDER = {"data": 2.0, "precision": 1.5, "compiled": 1.3}
KNOBS = (data(), precision(), compiled())


@pytest.mark.usefixtures("sound")
def test_the_top_is_proven_first_and_the_rungs_are_measured_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning, stand_in = settled(monkeypatch, steady(**LADDER), *KNOBS)
    asked = [(purpose, names) for purpose, names in purposes(stand_in) if "batch_size" not in names]
    first_pair = asked.index(("pair", set(LADDER)))
    assert ("screen", set(LADDER)) in asked[:first_pair]
    rungs = [names for purpose, names in asked if purpose == "rung"]
    assert rungs == [{"data", "precision"}, {"data"}]
    assert asked.index(("rung", {"data"})) > first_pair
    found = tuning.findings
    assert found.verdict == "faster"
    speeds = {rung.stage: math.exp(rung.log) for rung in found.rungs}
    assert speeds == {
        "data": pytest.approx(2.0, rel=0.01),
        "precision": pytest.approx(3.0, rel=0.01),
        "compile": pytest.approx(3.9, rel=0.01),
    }


@pytest.mark.usefixtures("sound")
def test_an_interval_gets_narrower_only_with_the_time_that_the_rungs_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each launch takes five seconds, a pair ten; pairs scatter so that none is precise soon."""

    def rates(settings: Mapping[str, Any], number: int) -> float:
        scatter = (1.0, 1.25, 0.9)[number // 3 % 3] if "compiled" in settings else 1.0
        return scatter * 100.0 * math.prod(8.0 if "c" in name else 2.0 for name in settings)

    monkeypatch.setattr(ProofLaunches, "seconds", 10.0)
    tuning, stand_in = settled(monkeypatch, rates, *KNOBS, took=5.0, batches=False, seconds=55.0)
    asked = [purpose for purpose, _ in purposes(stand_in)]
    first_rung = asked.index("rung")
    assert asked[first_rung - 4 : first_rung] == ["pair"] * 4, "two pairs proved the gain"
    assert [rung.stage for rung in tuning.findings.rungs] == ["data", "precision", "compile"]
    assert asked[-2:] == ["pair"] * 2, "and further ones took what was left"


@pytest.mark.usefixtures("sound")
def test_one_rung_is_begun_as_a_pair_is_before_the_budget_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each launch takes five seconds, a pair ten; two pairs leave less than that."""
    monkeypatch.setattr(ProofLaunches, "seconds", 10.0)
    tuning, stand_in = settled(
        monkeypatch, steady(**LADDER), *KNOBS, took=5.0, batches=False, seconds=30.0
    )
    asked = [purpose for purpose, _ in purposes(stand_in)]
    assert asked.count("rung") == 1
    assert [rung.stage for rung in tuning.findings.rungs] == ["precision", "compile"]


@pytest.mark.usefixtures("sound")
def test_a_rung_that_loses_leaves_and_the_top_is_proven_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = steady(**{**LADDER, "precision": 0.6})
    tuning, stand_in = settled(monkeypatch, rates, *KNOBS)
    found = tuning.findings
    assert found.chosen is not None
    assert set(found.chosen.settings) == {"data", "compiled"}
    assert found.objections["precision"] == "it loses in its rung"
    asked = purposes(stand_in)
    last_pair = max(n for n, one in enumerate(asked) if one == ("pair", {"data", "compiled"}))
    assert last_pair > asked.index(("rung", {"data", "precision"}))
    assert [rung.stage for rung in found.rungs] == ["data", "compile"]
    assert asked.count(("rung", {"data"})) == 1, "the new ladder has the same first rung"


@pytest.mark.usefixtures("sound")
def test_nothing_is_measured_rung_by_rung_if_nothing_was_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuning, stand_in = settled(monkeypatch, steady(), *KNOBS)
    assert tuning.findings.verdict == "no_gain"
    assert tuning.findings.rungs == []
    assert all(purpose != "rung" for purpose, _ in purposes(stand_in))


@pytest.mark.usefixtures("sound")
@pytest.mark.parametrize(("allow", "proof_first"), [(TRAINING[:2], True), (TRAINING, False)])
def test_a_batch_size_that_may_not_be_applied_is_tried_after_the_proof(
    monkeypatch: pytest.MonkeyPatch, allow: tuple[str, ...], proof_first: bool
) -> None:
    rates = steady(data=2.0, batch_size=1.5)
    tuning, stand_in = settled(monkeypatch, rates, data(), allow=allow)
    order = [(purpose, "batch_size" in names) for purpose, names in purposes(stand_in)]
    first_batch = order.index(("screen", True))
    first_pair = [purpose for purpose, _ in order].index("pair")
    assert (first_pair < first_batch) is proof_first
    found = tuning.findings
    assert found.verdict == "faster"
    assert found.chosen is not None
    assert ("batch_size" in found.chosen.settings) is not proof_first
    if proof_first:
        assert found.larger is not None
        assert found.larger.look().significant, "what was left of the budget proved it"


def test_batch_sizes_that_the_user_lists_are_the_only_ones_tried() -> None:
    words = ["--optimize", "train.py", "--batch-size", "@tune:32,64"]
    stand_in = StandIn(steady())
    tuning, state = tuning_of(stand_in, options=replace(parse(words, {}), allow=TRAINING))
    state.facts = facts(batch_flag=BatchFlag("--batch-size", 32))
    tuning._try_batches(state, tuning._search(state))
    assert BATCH not in state.settings
    assert "batch size: not tried: --batch-size is tuned" in tuning.findings.decisions
    tried = [trial.knobs.get("--batch-size") for trial in stand_in.trials]
    assert "64" in tried


# -- the budget ------------------------------------------------------------------------------------


def test_a_launch_of_the_search_ends_with_the_search() -> None:
    stand_in = StandIn(steady())
    tuning, state = tuning_of(stand_in, seconds=200.0)
    tuning._search(state)
    limits = [request.limit_seconds for request in stand_in.requests[1:]]
    assert limits
    assert max(limits) <= 100.0


def test_a_budget_without_room_for_any_trial_ends_the_tuning() -> None:
    stand_in = StandIn(steady())
    tuning, state = tuning_of(stand_in, seconds=1.0)
    with pytest.raises(TuningEnded, match="left no time to try anything") as ended:
        tuning._search(state)
    assert ended.value.verdict == "inconclusive"
    assert len(stand_in.requests) == 1


@pytest.mark.parametrize(("took", "late"), [(100.0, True), (10.0, False)])
def test_only_what_took_all_its_time_is_late(took: float, late: bool) -> None:
    stand_in = StandIn(steady())
    tuning, state = tuning_of(stand_in, seconds=200.0)
    record = replace(state.best.record, status="timeout", seconds=took)
    stand_in.run = lambda request: replace(state.best, record=record)  # type: ignore[method-assign]
    request = TrialRequest(TrialPurpose.SCREEN, {"a": 1}, PROBE, limit_seconds=90.0)
    assert tuning._launch_in_search(request).late is late
