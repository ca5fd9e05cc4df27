"""The changes that a search may try, from what the knobs propose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpurun.knobs.api import Effect, Skip
from gpurun.records.facts import Facts
from gpurun.tuner.search.changes import likely_changes, proposals, settings_of, strongest_effect
from tests.unit.knob_facts import facts, gpu_facts, result
from tests.unit.tuner_searches import Planted, data, doubtful


class Following(Planted):
    """Proposes a value where an earlier change is set."""

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return [facts.current["first"] * 2] if "first" in facts.current else Skip("nothing to do")


class WithOther(Planted):
    def companions(self, facts: Facts, value: Any) -> dict[str, Any]:
        return {"other": 1}


def test_the_first_value_of_each_likely_knob_on_the_ground_of_those_before() -> None:
    knobs = [data("first", [2, 4]), Following("second"), doubtful(), data("none", Skip("no GPU"))]
    assert settings_of(likely_changes(knobs, facts())) == {"first": 2, "second": 4}


def test_what_goes_with_a_change_is_no_change_of_its_own() -> None:
    knobs = [WithOther("workers", [8]), data("other", [3])]
    (change,) = likely_changes(knobs, facts())
    assert change.settings == {"workers": 8, "other": 1}
    assert change.text == "workers 8, other 1"
    (alone,) = likely_changes(knobs[:1], facts(current={"other": 3}))
    assert alone.settings == {"workers": 8}, "what is set already stays"


@pytest.mark.parametrize(
    ("wait_ms", "known", "tried"),
    [(0.4, facts, False), (4.0, facts, True), (0.4, gpu_facts, False)],
)
def test_a_knob_is_not_tried_where_its_part_of_the_step_is_too_small_to_gain(
    wait_ms: float, known: Any, tried: bool
) -> None:
    ground = known(result=result(wait_ms=wait_ms))
    found = proposals(data("data", [1], acts_on="data"), ground)
    assert found == ([1] if tried else Skip("data is 1.0% of the step: at most ×1.01"))


def test_on_a_gpu_the_hosts_times_say_little_of_the_model() -> None:
    knob = data("knob", [1], acts_on="optimizer")
    ground = result(wait_ms=0.0)  # of 40 ms the optimizer's are 1
    assert isinstance(proposals(knob, facts(result=ground)), Skip)
    assert proposals(knob, gpu_facts(result=ground)) == [1]


def test_under_another_objective_the_parts_of_a_step_say_nothing() -> None:
    ground = facts(result=result(wait_ms=0.4), objective="memory")
    assert proposals(data("data", [1], acts_on="data"), ground) == [1]


def test_the_effect_of_a_set_is_its_strongest() -> None:
    assert strongest_effect([]) is Effect.PIPELINE
    assert strongest_effect([Effect.PIPELINE, Effect.NUMERICS]) is Effect.NUMERICS
    assert strongest_effect([Effect.TRAINING, Effect.NUMERICS]) is Effect.TRAINING
