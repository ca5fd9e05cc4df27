"""The search keeps what gains, drops what does not, and says why for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gpurun.arguments.options import Objective
from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.result import KnobOutcome, StepTime
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner import training_judge
from gpurun.tuner.guard.training_evidence import Evidence, RoundingReason
from gpurun.tuner.search.knob_search import KnobSearch
from gpurun.tuner.search.screening import SearchLimits, SearchState, StartupSeconds
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import judge_of, trial

ALL = frozenset(Effect)


class Planted(Knob):
    """A knob that proposes what the test says."""

    name: ClassVar[str] = "planted"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def __init__(self, values: Sequence[Any] | Skip, further: Any = None) -> None:
        self._values = values
        self._further = further

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return self._values

    def refine(self, facts: Facts, value: Any, gain: float) -> Any | None:
        return self._further

    def apply(self, value: Any, hooks: Hooks) -> None:
        raise AssertionError("nothing is launched here")


class Raising(Planted):
    """A knob whose method called `where` raises."""

    def __init__(self, where: str) -> None:
        super().__init__([2], further=8)
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


class Slow(Planted):
    """A knob that takes long to start."""

    startup_seconds: ClassVar[float] = 12.0


class Other(Planted):
    """A second knob."""

    name: ClassVar[str] = "other"
    effect: ClassVar[Effect] = Effect.NUMERICS


def searched(
    knobs: Sequence[Planted],
    launch: Callable[[TrialRequest], Trial],
    *,
    trials: int = 99,
    allowed: frozenset[Effect] = ALL,
    late: Callable[[StartupSeconds], bool] = lambda startup: False,
    argv: tuple[str, ...] = (),
    base: Trial | None = None,
    planned_steps: int | None = None,
) -> tuple[SearchState, list[str]]:
    """The state after a search from a script of 100 samples/s, and what was noted."""
    notes: list[str] = []
    base = base or trial(100.0)
    assert base.evidence is not None
    judge = judge_of(base.evidence, base.evidence, launch=launch, note=notes.append)
    state = SearchState({}, base, facts(argv=argv, planned_steps=planned_steps), judge)
    limits = SearchLimits(trials, lambda best, startup: late(startup), allowed)
    KnobSearch(launch, notes.append, PROBE, limits).run(knobs, state)
    return state, notes


def by_value(rates: dict[Any, float]) -> Callable[[TrialRequest], Trial]:
    """A launch whose rate is that of the last knob's value."""

    def launch(request: TrialRequest) -> Trial:
        return trial(rates[list(request.settings.values())[-1]], request.settings)

    return launch


def in_turns(gain: float, error: float, settings: Mapping[str, Any] | None = None) -> Trial:
    """A trial that took turns with the reference."""
    measured = trial(100.0, settings or {})
    record = replace(measured.record, gain_over_reference=gain, gain_error=error)
    return replace(measured, record=record)


@pytest.mark.parametrize(
    ("figures", "kept", "launches"),
    [
        ([(1.34, 0.06), (0.91, 0.01)], {}, 2),  # a lucky one
        ([(1.34, 0.06), (0.91, 0.07)], {"planted": 2}, 2),  # the proof will tell
        ([(1.34, 0.06), (1.30, 0.04)], {"planted": 2}, 2),
        ([(1.34, 0.06), (1.30, 0.09)], {"planted": 2}, 2),
        ([(1.34, 0.01)], {"planted": 2}, 1),
        ([(0.98, 0.06)], {}, 1),  # no gain anyway
    ],
)
def test_a_gain_whose_turns_disagree_is_measured_once_more_and_both_count(
    figures: list[tuple[float, float]], kept: dict[str, Any], launches: int
) -> None:
    coming = list(figures)
    base = in_turns(1.0, 0.0)
    state, notes = searched(
        [Planted([2])], lambda request: in_turns(*coming.pop(0), request.settings), base=base
    )
    assert state.settings == kept
    assert len(figures) - len(coming) == launches
    assert ("×1.34 is uncertain, and measured once more" in notes) is (launches == 2)


@pytest.mark.parametrize(
    ("gain", "room", "launches"), [(3.0, 12.0, 1), (1.34, 12.0, 2), (3.0, 60.0, 2)]
)
def test_a_clear_gain_is_not_measured_again_where_no_further_trial_is_compared_with_it(
    gain: float, room: float, launches: int
) -> None:
    asked = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        found = in_turns(gain, 0.06, request.settings)
        return replace(found, record=replace(found.record, seconds=20.0))

    def late(startup: StartupSeconds) -> bool:
        return startup.first > room  # with 12 s there is none for a trial after the repeat

    state, _ = searched([Planted([2])], launch, base=in_turns(1.0, 0.0), late=late)
    assert state.settings == {"planted": 2}
    assert len(asked) == launches


def test_what_starts_slowly_is_tried_last() -> None:
    """On two cores a compiler took 45 of 120 s, and cheaper changes were not reached."""
    asked = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(list(request.settings))
        return trial(100.0, request.settings)

    searched([Slow([2]), Other([4])], launch)
    assert asked == [["other"], ["planted"]]


def test_numerics_that_lost_are_tried_again_in_compiled_code() -> None:
    def launch(request: TrialRequest) -> Trial:
        rate = 100.0 * (1.2 if "planted" in request.settings else 1.0)
        if "other" in request.settings:
            rate *= 1.5 if "planted" in request.settings else 0.9
        return trial(rate, request.settings)

    state, _ = searched([Slow([2]), Other([4])], launch)
    assert state.settings == {"planted": 2, "other": 4}


UNSURE_TWICE = [(1.15, 0.16), (1.06, 0.2)]
"""The second figure is that of the repeat."""


@pytest.mark.parametrize(
    ("figures", "kept"),
    [
        ([*UNSURE_TWICE, (1.0, 0.01)], {"planted": 2}),
        ([*UNSURE_TWICE, (1.05, 0.01)], {"other": 4}),  # surer
        ([*UNSURE_TWICE, (1.2, 0.3), (1.2, 0.3)], {"other": 4}),  # as unsure, and larger
        ([(1.01, 0.16), (1.0, 0.01)], {}),
        ([(1.025, 0.028), (1.0, 0.01)], {}),  # measured well, and too small
    ],
)
def test_what_may_gain_goes_to_the_proof_if_nothing_surer_is_found(
    figures: list[tuple[float, float]], kept: dict[str, Any]
) -> None:
    coming = list(figures)
    state, notes = searched(
        [Planted([2]), Other([4])],
        lambda request: in_turns(*coming.pop(0), request.settings),
        base=in_turns(1.0, 0.0),
    )
    assert state.settings == kept
    told = any("the proof measures it" in note for note in notes)
    assert told is (figures[:2] == UNSURE_TWICE and (1.05, 0.01) not in figures)
    assert [row.knob for row in state.ladder if row.kept] == list(kept)


def test_a_set_that_may_gain_goes_to_the_proof_if_no_member_does_by_itself() -> None:
    class First(Planted):
        likely: ClassVar[bool] = True

    class Second(Other):
        likely: ClassVar[bool] = True

    coming = [*UNSURE_TWICE, (1.0, 0.01), (1.0, 0.01), (1.0, 0.01)]
    state, notes = searched(
        [First([2, 3]), Second([4])],
        lambda request: in_turns(*coming.pop(0), request.settings),
        base=in_turns(1.0, 0.0),
    )
    assert any(note.startswith("all at once: uncertain: ×1.11") for note in notes)
    assert state.settings == {"planted": 2, "other": 4}
    assert [(row.knob, row.value, row.kept) for row in state.ladder] == [
        ("planted", 3, False), ("planted", 2, True), ("other", 4, True),
    ], "what else was tried stays"  # fmt: skip


def test_a_gain_that_is_unsure_does_not_pass_by_the_price_of_a_slow_start() -> None:
    def measured(gain: float, error: float, startup: float) -> Trial:
        found = in_turns(gain, error, {"planted": 2})
        times = StepTime(40.0, 40.0, 40.0, 40.0)
        assert found.result is not None
        started = replace(found.result, startup_seconds=startup, step_time_ms=times)
        return replace(found, result=started)

    state, _ = searched(
        [Slow([2])],
        lambda request: measured(1.15, 0.16, 60.0),
        base=measured(1.0, 0.0, 3.0),
        planned_steps=4_000,
    )
    assert state.settings == {}
    assert state.ladder[0].reason.startswith("starts 57 s later, repaid after")


def test_under_the_aim_of_energy_the_search_keeps_what_takes_fewer_joules_a_sample() -> None:
    def launch(request: TrialRequest) -> Trial:
        rate, energy = {2: (150.0, 3.0), 4: (90.0, 1.0)}[request.settings["planted"]]
        return of_energy(trial(rate, request.settings), energy)

    state, _ = searched([Planted([2, 4])], launch, base=of_energy(trial(100.0), 2.0))
    assert state.settings == {"planted": 4}
    assert state.ladder[0].reason == "no gain: 3.00 J a sample against 2.00 J without it"


def of_energy(measured: Trial, joules: float) -> Trial:
    """A trial of a tuning for energy, which took so many joules a sample."""
    record = replace(measured.record, joules_per_sample=joules)
    return replace(measured, record=record, objective=Objective.ENERGY)


def test_nothing_is_asked_about_the_time_of_a_trial_that_failed() -> None:
    """Its settings may name what does not exist."""
    asked: list[Trial] = []
    base = in_turns(1.0, 0.0)

    def late(best: Trial, startup: StartupSeconds) -> bool:
        asked.append(best)
        return False

    assert base.evidence is not None
    state = SearchState({}, base, facts(), judge_of(base.evidence, base.evidence))
    limits = SearchLimits(9, late, ALL)
    KnobSearch(lambda request: trial(None), lambda line: None, PROBE, limits).run(
        [Planted([2])], state
    )
    assert asked
    assert all(one is base for one in asked)


def test_settings_that_fail_when_measured_once_more_are_not_kept() -> None:
    coming = [in_turns(1.34, 0.06), trial(None)]
    state, _ = searched([Planted([2])], lambda request: coming.pop(0), base=in_turns(1.0, 0.0))
    assert state.settings == {}
    assert not coming


def test_the_best_value_is_kept_and_the_rest_say_why_not() -> None:
    state, _ = searched([Planted([2, 4])], by_value({2: 150.0, 4: 200.0}))
    assert state.settings == {"planted": 4}
    assert [(row.value, row.kept, row.reason) for row in state.ladder] == [
        (2, False, "a better value was found"), (4, True, ""),
    ]  # fmt: skip


def test_a_gain_within_the_noise_is_not_kept() -> None:
    state, _ = searched([Planted([2])], by_value({2: 101.0}))
    assert state.settings == {}
    assert state.ladder[0].reason == "no gain: 101 samples/s against 100 without it"


def test_a_refinement_is_tried_after_a_gain() -> None:
    state, _ = searched([Planted([2], further=8)], by_value({2: 150.0, 8: 300.0}))
    assert state.settings == {"planted": 8}


def test_each_knob_is_tried_on_top_of_what_was_kept() -> None:
    asked: list[dict[str, Any]] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(dict(request.settings))
        return trial(100.0 * 2 ** len(request.settings), request.settings)

    state, _ = searched([Planted([2]), Other([True])], launch)
    assert asked == [{"planted": 2}, {"planted": 2, "other": True}]
    assert [row.speedup for row in state.ladder] == [None, None], "one trial each is no ground"


def test_a_candidate_that_fails_is_a_row_with_its_reason() -> None:
    state, _ = searched([Planted([2])], lambda r: trial(None, r.settings, reason="out of memory"))
    assert state.settings == {}
    assert state.ladder[0].reason == "out of memory"
    assert state.ladder[0].speedup is None


def test_a_setting_that_did_not_apply_is_not_kept_however_fast() -> None:
    skipped = (KnobOutcome("planted", "skipped", "no loader"),)
    state, _ = searched([Planted([2])], lambda r: trial(900.0, r.settings, outcomes=skipped))
    assert state.settings == {}
    assert state.ladder[0].reason == "not applied: no loader"


def test_what_is_not_allowed_or_has_nothing_to_try_costs_no_trial() -> None:
    def launch(request: TrialRequest) -> Trial:
        raise AssertionError("launched")

    pipeline = frozenset({Effect.PIPELINE})
    state, notes = searched([Planted(Skip("no GPU")), Other([1])], launch, allowed=pipeline)
    assert state.ladder == []
    assert notes == [
        "other: not tried (numerics changes not allowed)",
        "planted: not tried: no GPU",
    ]


def test_the_search_ends_with_its_trials_and_with_its_time() -> None:
    state, notes = searched([Planted([2, 4])], by_value({2: 150.0, 4: 200.0}), trials=1)
    assert state.settings == {"planted": 2}
    assert notes[-2:] == ["search ended: 1 trial used up", "planted: kept 2"]
    state, notes = searched([Planted([2])], by_value({}), late=lambda startup: True)
    assert state.ladder == []
    assert notes[-2:] == [
        "planted: not tried: the rest of the budget is kept for the proof",
        "not tried for lack of time: planted",
    ]
    _, notes = searched([Planted([2]), Other([1])], by_value({2: 90.0}), trials=1)
    assert notes[-1] == "not tried for lack of trials: other"


@pytest.mark.parametrize(
    ("where", "note", "kept"),
    [
        ("candidates", "planted: not tried: candidates raised ValueError: no such machine", {}),
        ("companions", "planted: 2 not tried: companions raised ValueError: no such machine", {}),
        (
            "refine",
            "planted: no further value: refine raised ValueError: no such machine",
            {"planted": 2},
        ),
    ],
)
def test_a_knob_that_raises_is_left_out_with_the_reason_and_the_search_goes_on(
    where: str, note: str, kept: dict[str, Any]
) -> None:
    rates = by_value({2: 150.0, True: 300.0})
    state, notes = searched([Raising(where), Other([True])], rates)
    assert note in notes
    assert state.settings == {**kept, "other": True}


@pytest.mark.parametrize("answer", [None, 7])
def test_an_answer_that_is_no_list_of_values_is_left_out_too(answer: Any) -> None:
    state, notes = searched([Planted(answer), Other([True])], by_value({True: 300.0}))
    assert notes[0].startswith("planted: not tried: candidates raised TypeError")
    assert state.settings == {"other": True}


def test_a_knob_that_only_edits_an_argument_has_an_effect_where_there_is_one() -> None:
    class Flag(Planted):
        def arguments(self, value: Any, argv: tuple[str, ...]) -> tuple[str, ...]:
            argv[argv.index("--workers") :]
            return ("--workers", str(value))

    def launch(request: TrialRequest) -> Trial:
        return trial(150.0, request.settings, outcomes=())

    state, _ = searched([Flag([2])], launch, argv=("--workers", "0"))
    assert state.settings == {"planted": 2}
    state, _ = searched([Flag([2])], launch, argv=("--workers", "2"))
    assert state.ladder[0].reason == "not applied: nothing in the script called for it"


def test_why_a_search_ended_is_said_once_however_often_it_goes_on() -> None:
    notes: list[str] = []
    base = trial(100.0)
    state = SearchState({}, base, facts(), judge_of())
    limits = SearchLimits(1, lambda best, startup: False, ALL)
    search = KnobSearch(by_value({2: 90.0, 4: 90.0}), notes.append, PROBE, limits)
    search.run([Planted([2, 4])], state)
    search.allow_more(1)
    search.climb(Other([2, 4]), [2, 4], state)
    assert [n for n in notes if n.startswith("search ended")] == ["search ended: 1 trial used up"]
    assert [row.knob for row in state.ladder] == ["planted", "other"]


def test_a_knob_that_starts_too_slowly_for_the_rest_of_the_budget_leaves_room_for_others() -> None:
    class Slow(Planted):
        name = "slow"
        startup_seconds = 100.0

    notes: list[str] = []
    base = trial(100.0)
    assert base.evidence is not None
    state = SearchState({}, base, facts(), judge_of(base.evidence, base.evidence))
    asked: list[float] = []

    def late(best: Trial, startup: StartupSeconds) -> bool:
        asked.append(startup.first)
        return startup.first > 50.0 and len(asked) > 9

    search = KnobSearch(
        by_value({2: 300.0, 1: 400.0, 3: 450.0}), notes.append, PROBE, SearchLimits(9, late, ALL)
    )
    search.run([Slow([1, 3]), Planted([2])], state)
    assert [row.value for row in state.ladder] == [2, 1], "the second slow value no longer fits"
    assert notes == [
        "planted: trying 2",
        "planted: kept 2",
        "slow: trying 1, 3",
        "slow: 3 not tried: it takes about 100 s more to start, "
        "and the rest of the budget is kept for the proof; try `--budget 5m`",
        "slow: kept 1",
    ]
    asked[:] = [0.0] * 10
    search.run([Slow([5]), Planted([2])], state)
    assert any(x.startswith("slow: not tried: it takes about 100 s more to start") for x in notes)


def test_for_memory_what_is_smaller_is_kept_whatever_it_costs_in_time() -> None:
    peaks = {2: 600, 4: 500}

    def launch(request: TrialRequest) -> Trial:
        return sized(trial(50.0, request.settings), peaks[request.settings["planted"]])

    state, _ = searched([Planted([2, 4])], launch, base=sized(trial(100.0), 1000))
    assert state.settings == {"planted": 4}
    assert [(row.value, row.kept) for row in state.ladder] == [
        (2, False), (4, True),
    ]  # fmt: skip


def sized(found: Trial, peak: int) -> Trial:
    """The trial with such a peak of memory, in a tuning for memory."""
    record = replace(found.record, peak_memory_bytes=peak)
    return replace(found, record=record, objective=Objective.MEMORY)


def test_what_a_change_costs_at_the_start_is_in_its_row_with_the_steps_that_make_it_good() -> None:
    def launch(request: TrialRequest) -> Trial:
        return started(trial(200.0, request.settings), 32.0, 5.0)

    state, _ = searched([Planted([2])], launch, base=started(trial(100.0), 2.0, 10.0))
    assert (state.ladder[0].startup_seconds, state.ladder[0].break_even_steps) == (30.0, 6000)
    state, _ = searched([Planted([2])], launch, base=started(trial(100.0), 2.0, 5.0))
    assert (state.ladder[0].startup_seconds, state.ladder[0].break_even_steps) == (30.0, None)


def started(found: Trial, seconds: float, step_ms: float) -> Trial:
    """The trial with such a start and such steps."""
    assert found.result is not None
    pace = StepTime(step_ms, step_ms, step_ms, step_ms)
    return replace(found, result=replace(found.result, startup_seconds=seconds, step_time_ms=pace))


def test_a_value_that_no_settings_file_can_hold_is_not_tried() -> None:
    state, notes = searched([Planted([{1, 2}])], by_value({}))
    assert state.ladder == []
    assert notes == [
        "planted: not tried: candidates raised TypeError: "
        "Object of type set is not JSON serializable"
    ]


def test_of_a_knob_that_asks_for_it_all_values_are_tried() -> None:
    rates = {2: 90.0, 4: 80.0, 6: 150.0, 8: 70.0}
    two, _ = searched([Planted(list(rates))], by_value(rates))
    assert [row.value for row in two.ladder] == [2, 4]
    listed = Planted(list(rates))
    listed.most_values = 4  # type: ignore[misc]
    state, _ = searched([listed], by_value(rates))
    assert [row.value for row in state.ladder] == [2, 4, 6, 8]
    assert state.settings == {"planted": 6}


class Waiting(Planted):
    """Has nothing to do until the other one is set."""

    name: ClassVar[str] = "waiting"

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return [3] if "other" in facts.current else Skip("the model is the slower part")


def test_what_has_nothing_to_do_is_asked_again_after_a_gain() -> None:
    """A compiled model waits for data where the model as it is did not."""
    rates: dict[Any, float] = {2: 150.0, 3: 300.0}
    state, notes = searched([Waiting([]), Other([2])], by_value(rates))
    assert state.settings == {"other": 2, "waiting": 3}
    assert notes[0] == "waiting: not tried: the model is the slower part"
    assert len(notes) == len(set(notes)), "nothing is said twice"


def test_values_that_gained_nothing_are_not_launched_again() -> None:
    asked: list[dict[str, Any]] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(dict(request.settings))
        return trial(150.0 if "other" in request.settings else 100.0, request.settings)

    searched([Planted([7]), Other([2])], launch)
    assert asked == [{"planted": 7}, {"other": 2}]


def test_where_gradients_point_elsewhere_the_script_is_launched_once_with_rounded_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = RoundingReason("the gradients of step 1 point elsewhere (cosine 0.50)")

    def judge(baselines: Sequence[Evidence], _: object, effect: Effect) -> GuardVerdict:
        told = any(b.rounded for b in baselines)
        return GuardVerdict(told, 0.0, 0.0, () if told else (elsewhere,), None)

    monkeypatch.setattr(training_judge, "judge_training", judge)
    asked: list[TrialRequest] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        found = trial(200.0 if request.settings else 100.0, request.settings)
        assert found.evidence is not None
        return replace(found, evidence=replace(found.evidence, rounded=request.rounded))

    class Numerics(Planted):
        effect = Effect.NUMERICS

    state, notes = searched([Numerics([1, 2])], launch)
    assert state.settings == {"planted": 1}
    assert [(r.rounded, dict(r.settings)) for r in asked] == [
        (False, {"planted": 1}),
        (True, {}),
        (False, {"planted": 2}),
    ]
    assert asked[1].stop.max_steps == asked[1].stop.audit_steps + 1, "no more than it takes"
    assert "is it rounding alone? a trial that only rounds shows it" in notes


def given_up(found: Trial, seconds: float) -> Trial:
    """A trial that was ended while it started."""
    assert found.result is not None
    record = replace(found.record, seconds=seconds, reason="not done after a while")
    result = replace(found.result, measured_steps=0)
    return replace(found, record=record, result=result, late=True)


def test_a_trial_that_takes_more_than_its_share_is_given_up_by_name_and_not_tried_again() -> None:
    class Slow(Planted):
        name = "slow"
        startup_seconds = 40.0

    asked: list[dict[str, Any]] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(dict(request.settings))
        if "slow" in request.settings:
            return given_up(trial(None, request.settings, status="timeout"), 69.0)
        return trial(150.0, request.settings)

    state, notes = searched([Slow([1, 3]), Planted([2])], launch)
    assert asked == [{"planted": 2}, {"planted": 2, "slow": 1}]
    reason = "not tried to its end, 1 min 09 s to start; try `--budget 6m`"
    assert f"slow: {reason}" in notes
    assert state.ladder[1].reason == reason
    assert state.settings == {"planted": 2}


def test_a_trial_that_hangs_is_said_to_hang_and_not_to_be_slow() -> None:
    def launch(request: TrialRequest) -> Trial:
        return trial(None, request.settings, status="timeout", reason="hangs: given up after 30 s")

    state, _ = searched([Planted([2])], launch)
    assert state.ladder[0].reason == "hangs: given up after 30 s"


@pytest.mark.parametrize(("steps", "tried"), [(1_000, False), (10_000, True), (None, True)])
def test_what_starts_slowly_is_not_tried_where_the_whole_training_is_short(
    steps: int | None, tried: bool
) -> None:
    state, notes = searched([Slow([2])], by_value({2: 150.0}), planned_steps=steps)
    assert (state.settings == {"planted": 2}) == tried
    said = "it takes about 12 s more to start, and the whole training (1,000 steps) about 40.0 s"
    assert any(said in note for note in notes) != tried


@pytest.mark.parametrize(("steps", "kept"), [(2_000, False), (4_000, True), (None, True)])
def test_what_the_training_is_too_short_to_repay_is_not_kept(steps: int | None, kept: bool) -> None:
    def measured(rate: float, startup: float, step_ms: float, **settings: Any) -> Trial:
        found = trial(rate, settings)
        times = StepTime(step_ms, step_ms, step_ms, step_ms)
        assert found.result is not None
        started = replace(found.result, startup_seconds=startup, step_time_ms=times)
        return replace(found, result=started)

    state, _ = searched(
        [Slow([2])],
        lambda request: measured(133.0, 33.0, 30.0, planted=2),
        base=measured(100.0, 3.0, 40.0),
        planned_steps=steps,
    )
    assert (state.settings == {"planted": 2}) == kept
    (row,) = state.ladder
    said = "starts 30 s later, repaid after 3,000 steps: the training has 2,000"
    assert row.reason == ("" if kept else said)
