"""Single knobs: their values in turn, refinements on top of a gain, and what ends the search."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpurun.arguments.options import Objective
from gpurun.knobs.api import Effect, Skip
from gpurun.records.facts import Facts
from gpurun.records.result import StepSplit
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import ROUNDING
from gpurun.same.verdict import Sameness
from gpurun.tuner import training_judge
from gpurun.tuner.phases import Phases
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts, result
from tests.unit.same_launches import verdict
from tests.unit.tuner_searches import (
    Planted,
    Rate,
    compiled,
    data,
    doubtful,
    precision,
    product,
    searched,
)
from tests.unit.tuner_trials import trial


def by_value(rates: dict[Any, float]) -> Rate:
    """The rate is that of the value of the knob that was set last."""
    return lambda settings: rates[list(settings.values())[-1]]


def test_of_the_values_of_a_knob_the_best_is_kept_and_the_others_say_why_not() -> None:
    found = searched([doubtful("knob", [2, 4])], by_value({2: 150.0, 4: 200.0}))
    assert found.settings == {"knob": 4}
    assert found.reasons == {"knob 2": "a better value was found"}
    other = searched([doubtful("knob", [2, 4])], by_value({2: 101.0, 4: 90.0}))
    assert other.settings == {}
    assert other.reasons == {
        "knob 2": "no gain: 101 samples/s against 100 without it",
        "knob 4": "no gain: 90.0 samples/s against 100 without it",
    }


def test_if_nothing_likely_gains_all_is_tried_one_by_one() -> None:
    found = searched([data(), doubtful("one"), doubtful("two")], product(two=1.5))
    assert found.names == [{"data"}, {"one"}, {"two"}, {"two", "data"}]
    assert found.settings == {"two": True}


def test_a_gain_is_refined_on_top_of_the_set() -> None:
    """More workers, another mode of the compiler: one at a time."""

    def rate(settings: dict[str, Any]) -> float:
        return 100.0 * settings.get("data", 1) * (1.5 if "precision" in settings else 1.0)

    found = searched([data("data", [2, 4], further=8), precision()], rate)
    assert found.asked == [
        {"data": 2, "precision": True},
        {"data": 4, "precision": True},
        {"data": 8, "precision": True},
    ]
    assert found.settings == {"data": 8, "precision": True}


def test_of_a_knob_that_asks_for_it_all_values_are_tried() -> None:
    rates = {2: 90.0, 4: 80.0, 6: 150.0, 8: 70.0}
    two = searched([doubtful("knob", list(rates))], by_value(rates))
    assert [settings["knob"] for settings in two.asked] == [2, 4]
    more = searched([doubtful("knob", list(rates), most_values=4)], by_value(rates))
    assert more.settings == {"knob": 6}


def test_a_set_that_waits_for_data_still_visits_the_data_stage_once_more() -> None:
    """A compiled model waits for data where the model as it is did not."""

    def of(request: TrialRequest) -> Trial:
        settings = request.settings
        rate = 200.0 if settings.get("data") == 8 and "compiled" in settings else 150.0
        found = trial(rate if "compiled" in settings else 90.0, settings)
        assert found.result is not None
        split = StepSplit(waits, None, 1.0, 1.0, 1.0, None)
        return replace(found, result=replace(found.result, split=split))

    knobs = [data("data", Skip("the model is the slower part")), compiled()]

    class Waiting(Planted):
        def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
            return [8] if "compiled" in facts.current else Skip("the model is the slower part")

    knobs[0] = Waiting("data", stage="data", likely=False)
    waits = 10.0
    known = facts(result=result(wait_ms=0.0))
    found = searched(knobs, of=of, known=known)
    assert found.settings == {"compiled": True, "data": 8}
    waits = 0.4
    found = searched(knobs, of=of, known=known)
    assert found.asked == [{"compiled": True}]


def test_no_settings_are_launched_twice() -> None:
    knobs = [data("data", [2, 4]), precision(), doubtful("knob", [1, 2], order=0)]
    found = searched(knobs, product(data=0.9, precision=1.5, knob=1.2))
    assert all(found.asked.count(settings) == 1 for settings in found.asked)


# -- what knobs say --------------------------------------------------------------------------------


class WithOther(Planted):
    """A knob that needs another setting beside it."""

    def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
        return {"other": 1}


def test_what_goes_with_a_change_is_set_and_left_out_with_it() -> None:
    """Workers on two cores need fewer threads beside them: neither is judged without the other."""
    knobs = [WithOther("workers", [2], stage="data"), precision()]
    found = searched(knobs, product(workers=3.0, other=0.8, precision=0.1))
    assert found.asked[0] == {"workers": 2, "other": 1, "precision": True}
    assert found.settings == {"workers": 2, "other": 1}


class Raising(Planted):
    """A knob one of whose methods raises."""

    def __init__(self, where: str) -> None:
        super().__init__("raising", [2], further=8, likely=False)
        self._where = where

    def _raise_in(self, method: str) -> None:
        if method == self._where:
            raise ValueError("no such\nmachine")

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        self._raise_in("candidates")
        return super().candidates(facts)

    def refine(self, facts: Facts, value: Any, gain: float) -> Any | None:
        self._raise_in("refine")
        return super().refine(facts, value, gain)

    def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
        self._raise_in("companions")
        return super().companions(facts, value)

    def is_likely(self, facts: Facts) -> bool:
        self._raise_in("is_likely")
        return False


@pytest.mark.parametrize(
    ("where", "note", "kept"),
    [
        ("candidates", "raising: not tried: candidates raised ValueError: no such machine", {}),
        ("companions", "raising: 2 not tried: companions raised ValueError: no such machine", {}),
        (
            "refine",
            "raising: no further value: refine raised ValueError: no such machine",
            {"raising": 2},
        ),
    ],
)
def test_a_knob_that_raises_is_left_out_with_the_reason_and_the_search_goes_on(
    where: str, note: str, kept: dict[str, Any]
) -> None:
    knobs = [Raising(where), doubtful("other")]
    found = searched(knobs, product(raising=1.5, other=3.0), pressing=["raising", "other"])
    assert note in found.notes
    assert found.settings == {**kept, "other": True}


def test_a_knob_that_cannot_tell_whether_it_is_likely_is_tried_by_itself() -> None:
    found = searched([data(), Raising("is_likely")], product(data=2.0), pressing=["raising"])
    assert found.names[0] == {"data"}


@pytest.mark.parametrize("answer", [None, 7, [{1, 2}]])
def test_an_answer_that_is_no_list_of_json_values_is_left_out_too(answer: Any) -> None:
    found = searched([doubtful("knob", answer), data()], product(data=3.0))
    assert found.noted("knob: not tried: candidates raised TypeError")
    assert found.settings == {"data": True}


# -- the end ---------------------------------------------------------------------------------------


def test_the_search_ends_with_its_trials() -> None:
    knobs = [doubtful("knob", [2, 4]), doubtful("other")]
    found = searched(knobs, by_value({2: 150.0}), trials=1)
    assert found.settings == {"knob": 2}
    assert found.untried == ["knob"]
    assert found.noted("not tried: the trials are used up: knob")


def of_seconds(left: float, usual: float = 10.0) -> Phases:
    """A search that has so many seconds left, where a plain launch takes `usual`."""
    phases = Phases(time.monotonic() + 2 * left)
    phases.baseline(trial(100.0, seconds=usual))
    phases.search_begins()
    return phases


def test_without_room_for_what_is_compiled_the_rest_is_tried() -> None:
    found = searched([data(), compiled()], product(data=2.0), phases=of_seconds(15.0))
    assert found.names == [{"data"}]
    assert found.settings == {"data": True}
    assert found.untried == ["compiled"]
    assert found.noted("not tried: they would take longer than the search may: compiled")


def test_without_room_for_any_launch_nothing_is_tried() -> None:
    found = searched([data(), doubtful()], phases=of_seconds(5.0))
    assert found.asked == []
    assert found.untried == ["data", "doubtful"]
    assert found.noted("not tried: the rest of the budget is kept for the proof: data, doubtful")


def given_up(request: TrialRequest) -> Trial:
    """A trial that the end of the search ended while it started."""
    late = trial(None, request.settings, status="timeout", seconds=69.0, reason="not done")
    assert late.result is not None
    return replace(late, late=True, result=replace(late.result, measured_steps=0))


def test_a_launch_that_comes_to_the_end_of_the_search_is_named_with_a_budget_that_has_room() -> (
    None
):
    phases = of_seconds(100.0)

    def of(request: TrialRequest) -> Trial:
        phases._end -= 100.0
        phases.deadline -= 180.0
        return given_up(request)

    found = searched([data(), compiled()], of=of, phases=phases)
    assert found.names == [{"data", "compiled"}]
    assert found.noted("data, compiled: not tried to its end, 1 min 09 s to start: `--budget 7m`")
    assert set(found.untried) == {"data", "compiled"}


def test_after_a_set_that_starts_too_slowly_a_part_of_it_is_tried() -> None:
    def of(request: TrialRequest) -> Trial:
        if "compiled" in request.settings:
            return given_up(request)
        return trial(product(data=2.0)(dict(request.settings)), request.settings)

    found = searched([data(), compiled()], of=of)
    assert found.names == [{"data", "compiled"}, {"data"}]
    assert found.settings == {"data": True}
    assert found.reasons["compiled True"].startswith("not tried to its end, 1 min 09 s to start")


def test_a_single_change_that_comes_to_the_end_of_the_search_is_tried_no_further() -> None:
    found = searched([doubtful("knob", [1, 2])], of=given_up)
    assert found.asked == [{"knob": 1}]
    assert found.reasons["knob 1"].startswith("not tried to its end, 1 min 09 s to start")


def test_a_trial_that_hangs_is_said_to_hang_and_not_to_be_slow() -> None:
    def of(request: TrialRequest) -> Trial:
        return trial(None, request.settings, status="timeout", reason="hangs: given up after 30 s")

    assert searched([data()], of=of).reasons["data True"] == "hangs: given up after 30 s"


# -- other objectives ------------------------------------------------------------------------------


def test_for_memory_what_is_smaller_is_kept_whatever_it_costs_in_time() -> None:
    def sized(found: Trial, peak: int) -> Trial:
        record = replace(found.record, peak_memory_bytes=peak)
        return replace(found, record=record, objective=Objective.MEMORY)

    def of(request: TrialRequest) -> Trial:
        return sized(trial(50.0, request.settings), {2: 600, 4: 500}[request.settings["knob"]])

    found = searched([doubtful("knob", [2, 4])], of=of, base=sized(trial(100.0), 1000))
    assert found.settings == {"knob": 4}


def test_for_energy_what_takes_fewer_joules_a_sample_is_kept() -> None:
    def of_energy(found: Trial, joules: float) -> Trial:
        record = replace(found.record, joules_per_sample=joules)
        return replace(found, record=record, objective=Objective.ENERGY)

    def of(request: TrialRequest) -> Trial:
        rate, energy = {2: (150.0, 3.0), 4: (90.0, 1.0)}[request.settings["knob"]]
        return of_energy(trial(rate, request.settings), energy)

    found = searched([doubtful("knob", [2, 4])], of=of, base=of_energy(trial(100.0), 2.0))
    assert found.settings == {"knob": 4}
    assert found.reasons["knob 2"] == "no gain: 3.00 J a sample against 2.00 J without it"


def test_where_gradients_may_only_round_the_script_is_launched_once_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(baselines: Sequence[LaunchAudit], _: object, effect: Effect) -> Sameness:
        return verdict(any(b.rounded for b in baselines), ROUNDING)

    monkeypatch.setattr(training_judge, "judge", judge)
    rounded: list[TrialRequest] = []

    def of(request: TrialRequest) -> Trial:
        found = trial(200.0 if request.settings else 100.0, request.settings)
        assert found.evidence is not None
        if request.rounded:
            rounded.append(request)
        return replace(found, evidence=replace(found.evidence, rounded=request.rounded))

    found = searched([precision("precision", ["bf16", "fp16"])], of=of)
    assert found.settings == {"precision": "bf16"}
    assert [dict(request.settings) for request in rounded] == [{}]
    assert rounded[0].stop.max_steps == rounded[0].stop.audit_steps + 1, "no more than it takes"
