"""The likely changes of all stages are tried at once; only what spoils a set is looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpurun.knobs import USER_PACKAGE
from gpurun.knobs.api import Effect
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import KnobOutcome
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.tuner_searches import (
    Launch,
    Rate,
    by_turns,
    compiled,
    data,
    doubtful,
    in_turns,
    kernels,
    precision,
    product,
    searched,
    transfer,
)
from tests.unit.tuner_trials import trial


def test_one_trial_takes_the_likely_changes_of_all_stages_and_nothing_more_is_needed() -> None:
    knobs = [compiled(), kernels(), precision(), transfer(), data()]
    found = searched(knobs, product(data=2.0, precision=1.5, compiled=1.2))
    assert [list(settings) for settings in found.asked] == [
        ["data", "transfer", "precision", "kernels", "compiled"]
    ], "in the ladder's order"
    assert found.settings == found.asked[0]
    assert found.reasons == {}


def test_what_nothing_points_to_is_not_tried_on_top_of_a_gain() -> None:
    found = searched([data(), doubtful()], product(data=2.0))
    assert found.names == [{"data"}]
    assert "not tried, nothing that was found points to them: doubtful" in found.notes


def test_what_answers_a_finding_or_was_asked_for_is_tried_on_top() -> None:
    knobs = [data(), doubtful("pressing"), doubtful("asked", order=0), doubtful()]
    found = searched(knobs, product(data=2.0, pressing=1.2, asked=1.1), pressing=["pressing"])
    assert found.names[1:] == [{"data", "pressing"}, {"data", "pressing", "asked"}]
    assert set(found.settings) == {"data", "pressing", "asked"}


def test_a_knob_of_the_users_own_is_tried_whatever_else_gained() -> None:
    own = doubtful("own")
    own.__class__ = type("Own", (type(own),), {"__module__": f"{USER_PACKAGE}.own"})
    found = searched([data(), own], product(data=2.0, own=1.2))
    assert found.names == [{"data"}, {"data", "own"}]


def test_a_set_that_loses_is_split_by_stages_each_on_top_of_what_was_kept() -> None:
    knobs = [data(), transfer(), precision(), kernels()]
    found = searched(knobs, product(data=1.5, kernels=0.2))
    assert found.names == [
        {"data", "transfer", "precision", "kernels"},
        {"data", "transfer"},
        {"data", "transfer", "precision"},
        {"data", "transfer", "kernels"},
    ]
    assert found.settings == {"data": True, "transfer": True}
    assert found.reasons == {
        "precision True": "no gain: 150 samples/s against 150 without it",
        "kernels True": "no gain: 30.0 samples/s against 150 without it",
    }


def test_a_stage_that_loses_is_split_into_its_changes() -> None:
    found = searched([kernels("one"), kernels("two")], product(one=1.5, two=0.3))
    assert found.names == [{"one", "two"}, {"one"}]
    assert found.settings == {"one": True}
    assert found.reasons == {"two True": "no gain: 45.0 samples/s against 150 without it"}


def test_a_stage_that_merely_gains_nothing_is_not_split() -> None:
    found = searched([kernels("one"), kernels("two")])
    assert found.names == [{"one", "two"}]
    assert list(found.reasons) == ["one True", "two True"]


def test_changes_that_only_gain_together_are_found() -> None:
    """One at a time neither would be kept: a launch-bound model is slower in bfloat16 alone."""

    def rate(settings: dict[str, Any]) -> float:
        return 300.0 if {"precision", "compiled"} <= set(settings) else 90.0

    found = searched([precision(), compiled()], rate)
    assert found.names == [{"precision", "compiled"}]
    assert set(found.settings) == {"precision", "compiled"}


def test_a_set_that_fails_is_told_where_there_is_no_room_for_its_parts() -> None:
    found = searched([data(), precision()], lambda settings: None, trials=1)
    assert found.names == [{"data", "precision"}]
    assert set(found.reasons) == {"data True", "precision True"}
    assert all(why.startswith("together: ") for why in found.reasons.values())


def test_what_lost_alone_rejoins_beside_what_is_compiled() -> None:
    """Half precision before graphs: the set failed for another reason, and it was dropped first."""

    def rate(settings: dict[str, Any]) -> float | None:
        if "kernels" in settings:
            return None
        if {"precision", "compiled"} <= set(settings):
            return 300.0
        return 90.0 if "precision" in settings else 100.0

    found = searched([precision(), kernels(), compiled()], rate)
    assert {"precision"} in found.names, "it lost alone"
    assert set(found.settings) == {"precision", "compiled"}


def test_what_lost_is_tried_once_more_after_the_ground_has_changed() -> None:
    def rate(settings: dict[str, Any]) -> float | None:
        if {"kernels", "failing"} <= set(settings):
            return None
        result = 150.0 if "kernels" in settings else 100.0
        return result * (1.4 if len(settings) > 1 else 0.9) if "data" in settings else result

    found = searched([data(), kernels(), compiled("failing")], rate)
    assert found.names[1] == {"data"}, "it lost alone"
    assert set(found.settings) == {"data", "kernels"}


def test_each_change_is_tried_once_more_on_another_ground_than_that_on_which_it_lost() -> None:
    """One that lost later must not hide it."""

    def rate(settings: dict[str, Any]) -> float:
        result = product(precision=1.5, kernels=0.2)(settings)
        return result * (1.4 if "precision" in settings else 0.9) if "data" in settings else result

    found = searched([data(), precision(), kernels()], rate)
    assert set(found.settings) == {"data", "precision"}
    assert list(found.reasons) == ["kernels True"]


def rejecting(name: str, rate: Rate) -> Launch:
    """Trials whose losses are others where this change is set."""

    def of(request: TrialRequest) -> Trial:
        found = trial(rate(dict(request.settings)), request.settings)
        assert found.evidence is not None
        if name not in request.settings:
            return found
        bad = tuple(10.0 * loss for loss in found.evidence.losses)
        return replace(found, evidence=replace(found.evidence, losses=bad))

    return of


def test_a_change_that_trains_otherwise_leaves_however_fast() -> None:
    rate = product(data=2.0, precision=9.0)
    found = searched([data(), precision()], of=rejecting("precision", rate))
    assert found.names == [{"data", "precision"}, {"data"}]
    assert found.settings == {"data": True}
    assert "loss" in found.reasons["precision True"]
    (rejection,) = found.state.rejections
    assert rejection.knobs == {"data": True, "precision": True}, "what was rejected is told once"


def test_what_was_rejected_does_not_rejoin() -> None:
    rate = product(precision=9.0, compiled=2.0)
    found = searched([precision(), compiled()], of=rejecting("precision", rate))
    assert found.names == [{"precision", "compiled"}, {"precision"}, {"compiled"}]
    assert found.settings == {"compiled": True}


def failing(name: str) -> Launch:
    """Trials that a change makes fail by its own error."""

    def of(request: TrialRequest) -> Trial:
        if name not in request.settings:
            return trial(product(data=2.0)(dict(request.settings)), request.settings)
        why = f"{name}: no such library"
        failed = trial(None, request.settings, status="skipped", reason=why)
        return replace(failed, failure=Failure(FailureKind.KNOB_FAILED, why, knob=name))

    return of


def test_a_change_that_raises_is_named_and_the_rest_is_tried_without_it() -> None:
    found = searched([data(), transfer(), kernels()], of=failing("transfer"))
    assert found.names == [{"data", "transfer", "kernels"}, {"data", "kernels"}]
    assert set(found.settings) == {"data", "kernels"}
    assert found.reasons == {"transfer True": "transfer: no such library"}


def test_a_set_that_compiles_for_too_long_is_tried_without_what_is_compiled() -> None:
    def of(request: TrialRequest) -> Trial:
        if "compiled" not in request.settings:
            return trial(product(data=2.0, precision=2.0)(dict(request.settings)), request.settings)
        why = "not done after 47 s: 41 s of it went into 2 compilations"
        failed = trial(None, request.settings, status="timeout", reason=why)
        return replace(failed, failure=Failure(FailureKind.COMPILING, why))

    found = searched([data(), precision(), compiled()], of=of)
    assert found.names == [{"data", "precision", "compiled"}, {"data", "precision"}]
    assert set(found.settings) == {"data", "precision"}
    assert "41 s of it went into" in found.reasons["compiled True"]


def skipping(name: str, rate: Rate) -> Launch:
    """Trials in which a change says that it could do nothing."""

    def of(request: TrialRequest) -> Trial:
        outcomes = tuple(
            KnobOutcome(knob, "skipped" if knob == name else "applied", "no loader")
            for knob in request.settings
        )
        return trial(rate(dict(request.settings)), request.settings, outcomes=outcomes)

    return of


@pytest.mark.parametrize(("gain", "kept"), [(2.0, {"data"}), (0.5, set())])
def test_an_idle_change_leaves_with_its_reason_and_costs_no_trial(
    gain: float, kept: set[str]
) -> None:
    found = searched([data(), transfer()], of=skipping("transfer", product(data=gain)))
    assert found.names == [{"data", "transfer"}]
    assert set(found.settings) == kept
    assert found.reasons["transfer True"] == "not applied: no loader"


def test_a_set_that_fails_goes_on_without_what_fails() -> None:
    """Out of memory: only the change that takes it is dropped, with what the trial said."""

    def of(request: TrialRequest) -> Trial:
        if "kernels" in request.settings:
            return trial(None, request.settings, status="oom", reason="out of memory")
        return trial(150.0, request.settings)

    found = searched([data(), kernels()], of=of)
    assert found.settings == {"data": True}
    assert found.reasons == {"kernels True": "out of memory"}


UNSURE = (1.15, 0.16)


def test_an_unsure_gain_goes_to_the_proof_if_nothing_surer_is_found() -> None:
    base = in_turns(1.0, 0.0)
    found = searched([data("one"), data("two")], of=by_turns(UNSURE), base=base)
    assert set(found.settings) == {"one", "two"}
    assert "the best gain is uncertain (×1.15): the proof measures it" in found.notes
    surer = searched(
        [data(), doubtful()],
        of=by_turns(UNSURE, (1.05, 0.01), (1.05, 0.01)),
        base=base,
        pressing=["doubtful"],
    )
    assert surer.settings == {"doubtful": True}
    assert not surer.noted("the best gain is uncertain")


@pytest.mark.parametrize("figures", [(1.01, 0.16), (1.005, 0.001), (0.98, 0.06)])
def test_what_can_hardly_gain_does_not(figures: tuple[float, float]) -> None:
    found = searched([data()], of=by_turns(figures), base=in_turns(1.0, 0.0))
    assert found.settings == {}


def test_effects_that_are_not_allowed_cost_no_trial() -> None:
    found = searched([data(), precision()], product(data=2.0), allowed=[Effect.PIPELINE])
    assert found.names == [{"data"}]
    assert "precision: not tried (numerics changes not allowed)" in found.notes
