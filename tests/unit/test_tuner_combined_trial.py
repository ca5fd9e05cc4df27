"""Likely changes are tried at once; then each has to show what it is worth in the set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gpurun.knobs.api import Effect
from gpurun.knobs.loading.loader_workers import LoaderWorkers
from gpurun.knobs.processor.cpu_threads import CpuThreads
from gpurun.records.facts import Facts
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import KnobOutcome
from gpurun.tuner.search.knob_search import KnobSearch
from gpurun.tuner.search.screening import Screening, SearchLimits, SearchState, StartupSeconds
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import MACHINE, facts
from tests.unit.tuner_searches import (
    Compiled,
    Doubtful,
    Likely,
    Rate,
    Rounding,
    Second,
    kept,
    product,
    searched,
)
from tests.unit.tuner_trials import judge_of, trial


def test_the_first_trial_takes_every_likely_change_and_no_doubtful_one() -> None:
    knobs = [Likely(), Second(), Rounding(), Doubtful()]
    _, asked, _ = searched(knobs, product(first=1.5, second=2.0, rounding=1.2))
    assert asked[0] == {"first": True, "second": True, "rounding": True}
    assert asked[1] == {**asked[0], "doubtful": "a"}, "the doubtful one comes on top"


def test_each_change_of_numerics_in_a_set_is_left_out_once() -> None:
    rates = product(first=1.5, second=2.0, rounding=1.2)
    state, asked, notes = searched([Likely(), Second(), Rounding()], rates)
    whole = {"first": True, "second": True, "rounding": True}
    assert state.settings == whole
    left_out = [next(iter(set(whole) - set(settings))) for settings in asked[1:]]
    assert left_out == ["rounding"], "pipeline changes are judged after the proof"
    assert kept(state) == dict.fromkeys(whole), "what each is worth is told by the proof's pairs"
    stays = "rounding: stays in the set: 360 samples/s against 300 without it"
    assert stays in notes


def test_a_change_of_numerics_that_gains_nothing_in_the_set_is_dropped() -> None:
    state, _, _ = searched([Likely(), Second(), Rounding()], product(first=2.0, rounding=0.9))
    assert state.settings == {"first": True, "second": True}
    rows = {row.knob: (row.kept, row.reason) for row in state.ladder}
    assert rows == {
        "first": (True, ""),
        "second": (True, ""),
        "rounding": (False, "no gain: 180 samples/s against 200 without it"),
    }
    assert state.best.throughput == 200.0


def test_changes_that_only_gain_together_are_found() -> None:
    """One at a time neither would be kept: a launch-bound model is slower in bfloat16 alone."""

    def rate(settings: dict[str, Any]) -> float:
        return 300.0 if {"first", "rounding"} <= set(settings) else 90.0

    state, _, _ = searched([Likely(), Rounding()], rate)
    assert state.settings == {"first": True, "rounding": True}


def test_a_set_that_gains_nothing_is_tried_one_by_one() -> None:
    rates = product(first=2.0, second=0.4)
    state, asked, notes = searched([Likely(), Second()], rates)
    assert asked == [
        {"first": True, "second": True},
        {"first": True},
        {"first": True, "second": True},
    ]
    assert state.settings == {"first": True}
    assert "all at once: no gain: 80.0 samples/s against 100" in notes


def test_where_a_set_is_slower_what_only_feeds_the_model_is_tried_without_the_rest() -> None:
    """Half precision and graphs may cost more than workers gain: a loader waited for 40 %."""
    rates = product(first=1.3, second=1.3, rounding=0.3)
    state, asked, _ = searched([Likely(), Second(), Rounding(), Doubtful()], rates)
    feeding = {"first": True, "second": True}
    assert asked[:2] == [{**feeding, "rounding": True}, feeding]
    assert state.settings == feeding
    assert {**feeding, "rounding": True} not in asked[2:4], "what lost comes last"


def test_the_changes_of_a_set_that_lost_are_tried_after_the_others() -> None:
    """Loader workers on two busy cores: the budget ended after their second trial."""
    knobs = [Likely(), Second(), Doubtful()]
    _, asked, _ = searched(knobs, product(first=0.8, doubtful=1.15))
    assert asked[1:4] == [{"doubtful": "a"}, {"doubtful": "b"}, {"doubtful": "a", "first": True}]


def test_where_the_loss_guard_objects_the_pipeline_changes_are_tried_by_themselves() -> None:
    def of(request: TrialRequest) -> Trial:
        rate = product(first=2.0, second=1.5, rounding=1.5)(dict(request.settings))
        found = trial(rate, request.settings)
        if "rounding" not in request.settings or found.evidence is None:
            return found
        bad = (float("nan"),) * len(found.evidence.losses)
        return replace(found, evidence=replace(found.evidence, losses=bad))

    state, asked, _ = searched([Likely(), Second(), Rounding()], product(), of=of)
    assert asked[:2] == [
        {"first": True, "second": True, "rounding": True},
        {"first": True, "second": True},
    ]
    assert state.settings == {"first": True, "second": True}
    assert state.rejections, "what was rejected is told"


def test_a_change_that_fails_is_named_and_the_rest_is_tried_without_it() -> None:
    def of(request: TrialRequest) -> Trial:
        if "second" in request.settings:
            why = "second: no such library"
            failed = trial(None, request.settings, status="skipped", reason=why)
            return replace(failed, failure=Failure(FailureKind.KNOB_FAILED, why, knob="second"))
        return trial(product(first=2.0, rounding=1.5)(dict(request.settings)), request.settings)

    state, asked, _ = searched([Likely(), Second(), Rounding()], product(), of=of)
    assert asked[1] == {"first": True, "rounding": True}
    assert state.settings == asked[1]
    (row,) = [row for row in state.ladder if row.knob == "second"]
    assert (row.kept, row.reason) == (False, "second: no such library")
    assert sum("second" in settings for settings in asked) == 1, "and it is not tried again"


def without_second(rate: Rate) -> Callable[[TrialRequest], Trial]:
    """Trials in which the second change is skipped."""

    def of(request: TrialRequest) -> Trial:
        outcomes = tuple(
            KnobOutcome(name, "skipped" if name == "second" else "applied", "no loader")
            for name in request.settings
        )
        return trial(rate(dict(request.settings)), request.settings, outcomes=outcomes)

    return of


def test_a_change_that_did_not_apply_is_no_part_of_the_set() -> None:
    of = without_second(product(first=2.0, rounding=1.5))
    state, _, _ = searched([Likely(), Second(), Rounding()], product(), of=of)
    assert state.settings == {"first": True, "rounding": True}
    (row,) = [row for row in state.ladder if row.knob == "second"]
    assert row.reason == "not applied: no loader"


@pytest.mark.parametrize(("other", "again"), [("third", 0), ("doubtful", 1)])
def test_what_went_with_a_change_that_did_not_apply_stays_if_it_is_likely_itself(
    other: str, again: int
) -> None:
    """It acted in the trial: only what was set for the other's sake alone costs a further one."""

    class WithOther(Second):
        def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
            return {other: "a" if other == "doubtful" else True}

    class Third(Likely):
        name: ClassVar[str] = "third"
        order: ClassVar[int] = 5

    of = without_second(product(first=2.0, third=1.5))
    state, asked, _ = searched([Likely(), WithOther(), Doubtful(), Third()], product(), of=of)
    sets = [settings for settings in asked if settings.keys() >= {"first", "third"}]
    assert "second" in sets[0]
    assert state.settings == {"first": True, "third": True}
    assert kept(state).keys() == {"first", "third"}
    assert ({"first": True, "third": True} in sets) is bool(again)


@pytest.mark.parametrize("more", [{}, {"batch_size": 64}])  # which is no knob of this search
def test_what_went_with_a_change_and_did_nothing_either_is_no_part_of_the_set(
    more: dict[str, Any],
) -> None:
    class WithThird(Second):
        def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
            return {"third": True, **more}

    class Third(Likely):
        name: ClassVar[str] = "third"
        order: ClassVar[int] = 5

    def of(request: TrialRequest) -> Trial:
        outcomes = tuple(
            KnobOutcome(name, "applied" if name == "first" else "skipped", "no loader")
            for name in request.settings
        )
        rate = 200.0 if "first" in request.settings else 100.0
        return trial(rate, request.settings, outcomes=outcomes)

    state, _, _ = searched([Likely(), WithThird(), Third()], product(), of=of)
    assert state.settings == {"first": True}


def test_a_change_that_did_not_apply_in_a_set_that_lost_is_not_tried_by_itself() -> None:
    of = without_second(product(first=0.5, rounding=1.5))
    state, asked, _ = searched([Likely(), Second(), Rounding()], product(), of=of)
    assert sum("second" in settings for settings in asked) == 1
    assert state.settings == {"rounding": True}
    assert [row.reason for row in state.ladder if row.knob == "second"] == [
        "not applied: no loader"
    ]


def test_without_trials_for_it_nothing_is_left_out() -> None:
    state, asked, _ = searched([Likely(), Second()], product(first=2.0, second=2.0), trials=1)
    assert len(asked) == 1
    assert state.settings == {"first": True, "second": True}
    assert kept(state) == {"first": None, "second": None}


def test_what_would_compile_the_rest_anew_is_left_out_only_where_there_is_room() -> None:
    """Leaving autocast out took 17 s on an H200, of the 60 that a proof needed."""

    class Compiled(Likely):
        name = "compiled"
        effect = Effect.NUMERICS
        startup_seconds = 30.0

    def late(best: Trial, startup: StartupSeconds) -> bool:
        return best.throughput != 100.0 and startup.first > 10.0

    rates = product(compiled=2.0, rounding=1.2, second=1.5)
    _, asked, notes = searched([Compiled(), Second(), Rounding()], rates, late=late)
    left_out = [set(asked[0]) - set(settings) for settings in asked[1:]]
    assert left_out == [{"compiled"}], "without what compiles, nothing is compiled"
    (told,) = [note for note in notes if note.startswith("rounding: not tried without it")]
    assert "without it the rest would compile for about 20 s" in told


def test_what_goes_with_a_change_is_set_and_left_out_with_it() -> None:
    """Workers on two cores need fewer threads beside them: neither is judged without the other."""

    class Workers(LoaderWorkers):
        effect: ClassVar[Effect] = Effect.NUMERICS  # as a change that is left out before the proof

    of_two = facts(machine=replace(MACHINE, cores=2.0), threads=2)
    asked: list[dict[str, Any]] = []

    def launch(request: TrialRequest) -> Trial:
        if request.worker_turns is not None:
            return trial(None, request.settings)
        asked.append(dict(request.settings))
        rate = product(loader_workers=3.0, second=1.5, cpu_threads=0.8)(asked[-1])
        return trial(rate, request.settings)

    base = trial(100.0)
    assert base.evidence is not None
    state = SearchState({}, base, of_two, judge_of(base.evidence, base.evidence))
    limits = SearchLimits(99, lambda best, startup: False, frozenset(Effect))
    knobs = [Workers(), Second(), CpuThreads()]
    KnobSearch(launch, lambda note: None, PROBE, limits).run(knobs, state)
    workers = asked[0]["loader_workers"]
    lasting = {"loader_persistent": True}  # epochs are short
    assert asked[0] == {"loader_workers": workers, "cpu_threads": 1, **lasting, "second": True}
    assert {"second": True} in asked, "left out together"
    assert all(settings.get("cpu_threads", 1) == 1 for settings in asked), "nor tried by itself"
    rows = {row.knob: row.reason for row in state.ladder if row.kept}
    assert rows["cpu_threads"] == "goes with loader_workers"


def test_a_knob_may_be_likely_for_some_scripts_alone() -> None:
    class Choosy(Likely):
        name: ClassVar[str] = "choosy"

        def is_likely(self, facts: Facts) -> bool:
            return facts.device == "cuda"

    class Broken(Likely):
        name: ClassVar[str] = "broken"

        def is_likely(self, facts: Facts) -> bool:
            raise KeyError("device")

    _, asked, _ = searched([Likely(), Second(), Choosy(), Broken()], product(first=1.5))
    assert set(asked[0]) == {"first", "second"}


def test_changed_numerics_are_compiled_anew_and_a_changed_pipeline_is_not() -> None:
    state = SearchState({"compiled": True}, trial(100.0), facts(), judge_of())
    screening = Screening(lambda request: trial(1.0), print, PROBE, no_limits())
    screening.know([Likely(), Rounding(), Compiled()])
    assert screening.startup([Likely()], state) == StartupSeconds(0.0, 0.0)
    anew = screening.startup([Rounding()], state)
    assert (anew.first, anew.later) == (pytest.approx(20.0), 0.0), "the first time only"
    state.settings.clear()
    assert screening.startup([Compiled(), Rounding()], state) == StartupSeconds(30.0, 10.0)


def no_limits() -> SearchLimits:
    return SearchLimits(99, lambda best, startup: False, frozenset(Effect))
