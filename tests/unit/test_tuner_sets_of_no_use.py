"""A set of changes that is of no use is tried again without those that most likely spoil it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from gpurun.knobs.api import Effect
from gpurun.records.events import SamplesEvent
from gpurun.tuner.search.knob_search import KnobSearch
from gpurun.tuner.search.screening import SearchLimits, SearchState, StartupSeconds
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.tuner_searches import Compiled, Likely, Rounding, Second, product, searched
from tests.unit.tuner_trials import judge_of, trial


def test_of_a_set_that_is_of_no_use_what_is_compiled_goes_first_and_then_the_numerics() -> None:
    def rate(settings: dict[str, Any]) -> float | None:
        return None if {"compiled", "rounding"} & set(settings) else 150.0

    knobs = [Likely(), Second(), Rounding(), Compiled()]
    state, asked, _ = searched(knobs, rate, trials=3)
    assert [set(settings) for settings in asked] == [
        {"first", "second", "rounding", "compiled"},
        {"first", "second", "rounding"},
        {"first", "second"},
    ]
    assert set(state.settings) == {"first", "second"}


def test_of_numerics_that_are_of_no_use_the_more_doubtful_half_goes_first() -> None:
    """Half precision is the likeliest to fail: what is left of the set may gain."""

    class Fused(Rounding):
        name: ClassVar[str] = "fused"
        order: ClassVar[int] = 6

    class Half(Rounding):
        name: ClassVar[str] = "half"
        order: ClassVar[int] = 7

    def rate(settings: dict[str, Any]) -> float | None:
        return None if "half" in settings else product(first=1.2, rounding=1.2, fused=1.1)(settings)

    state, asked, _ = searched([Likely(), Half(), Fused(), Rounding()], rate, trials=2)
    assert [set(settings) for settings in asked] == [
        {"first", "rounding", "fused", "half"},
        {"first", "rounding"},
    ]
    assert set(state.settings) == {"first", "rounding"}


def fed(rate: float, settings: Mapping[str, Any], order: tuple[int, ...]) -> Trial:
    """A trial whose loader handed out these samples in its first pass."""
    found = trial(rate, settings)
    assert found.evidence is not None
    seen = SamplesEvent(loader=0, epoch=1, order=order, checksums={}, moments={})
    return replace(found, evidence=replace(found.evidence, samples=(seen,)))


def test_where_other_samples_come_what_may_hand_them_out_otherwise_goes_first() -> None:
    class Workers(Likely):
        name: ClassVar[str] = "workers"
        reorders_samples: ClassVar[bool] = True

    def of(request: TrialRequest) -> Trial:
        return fed(150.0, request.settings, (1, 0) if "workers" in request.settings else (0, 1))

    knobs = [Workers(), Likely(), Rounding(), Compiled()]
    base = fed(100.0, {}, (0, 1))
    state, asked, notes = searched(knobs, product(), of=of, trials=2, base=base)
    assert [set(settings) for settings in asked] == [
        {"workers", "first", "rounding", "compiled"},
        {"first", "rounding", "compiled"},
    ]
    assert set(state.settings) == {"first", "rounding", "compiled"}
    assert any("other samples are drawn" in note for note in notes)


class Dear(Compiled):
    startup_seconds: ClassVar[float] = 40.0


def test_a_set_that_takes_more_than_its_share_goes_on_without_what_is_compiled() -> None:
    def of(request: TrialRequest) -> Trial:
        if "compiled" not in request.settings:
            return trial(150.0, request.settings)
        found = trial(None, request.settings, status="timeout", seconds=69.0, reason="not done")
        return replace(found, late=True)

    knobs = [Likely(), Second(), Dear()]
    state, asked, notes = searched(knobs, product(), of=of)
    assert asked[:2] == [
        {"first": True, "second": True, "compiled": True}, {"first": True, "second": True},
    ]  # fmt: skip
    assert sum("compiled" in settings for settings in asked) == 1, "it is not tried alone again"
    row = next(row for row in state.ladder if row.knob == "compiled")
    assert "not tried to its end" in row.reason
    assert "compiled: not tried to its end, 1 min 09 s" in "\n".join(notes)


@pytest.mark.parametrize(("room", "untried"), [(100.0, ["compiled"]), (0.0, ["compiled b"])])
def test_what_had_no_time_is_named_at_the_end(room: float, untried: list[str]) -> None:
    """A value that was given up, and one that would have started too late."""

    class Two(Dear):
        values: ClassVar[Sequence[Any]] = ("a", "b")
        likely: ClassVar[bool] = False

    asked: list[dict[str, Any]] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(dict(request.settings))
        found = trial(90.0, request.settings)
        return replace(found, late=True) if room else found

    def late(best: Trial, startup: StartupSeconds) -> bool:
        return bool(asked) and startup.first > room

    base = trial(100.0)
    assert base.evidence is not None
    state = SearchState({}, base, facts(), judge_of(base.evidence, base.evidence))
    search = KnobSearch(launch, lambda note: None, PROBE, SearchLimits(99, late, frozenset(Effect)))
    search.run([Two()], state)
    assert asked == [{"compiled": "a"}]
    assert search.untried == untried


def test_what_takes_too_long_to_start_is_left_out_of_the_set_before_it_is_launched() -> None:
    knobs = [Likely(), Second(), Dear()]
    _, asked, notes = searched(
        knobs, product(first=1.5, second=2.0), late=lambda best, startup: startup.first > 20
    )
    assert asked[0] == {"first": True, "second": True}
    assert any(
        line.startswith("compiled: not among all at once: it takes about 40 s") for line in notes
    )
