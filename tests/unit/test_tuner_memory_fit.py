"""A script that runs out of memory is made to fit by what saves least at first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.failure import FailureKind
from gpurun.tuner.search.memory_fit import make_it_fit
from gpurun.tuner.tuning_trial import Trial
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import trial


class Parts(Knob):
    """Saves the more memory the higher its value."""

    name: ClassVar[str] = "parts"
    effect: ClassVar[Effect] = Effect.NUMERICS
    saves_memory: ClassVar[bool] = True
    values: Sequence[Any] | Skip = (2, 4)

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        assert facts.out_of_memory
        return self.values

    def apply(self, value: Any, hooks: Hooks) -> None:
        raise AssertionError("nothing is launched here")


class Offload(Parts):
    name: ClassVar[str] = "offload"
    values = (True,)


class Faster(Parts):
    name: ClassVar[str] = "faster"
    saves_memory: ClassVar[bool] = False


def fitted(
    knobs: Sequence[Knob],
    need: dict[str, Any],
    allowed: frozenset[Effect] = frozenset(Effect),
) -> tuple[dict[str, Any] | None, list[dict[str, Any]], list[str]]:
    """The settings found, those tried, and the notes; it fits once everything in `need` is set."""
    tried: list[dict[str, Any]] = []
    notes: list[str] = []

    def probe(settings: dict[str, Any]) -> Trial:
        tried.append(settings)
        if "broken" in settings.values():
            return trial(None, settings, status="failed", reason="KeyError: 'x'")
        fits = need.items() <= settings.items()
        return trial(100.0 if fits else None, settings, status="stopped" if fits else "oom")

    ground = facts(out_of_memory=True)
    found = make_it_fit(
        knobs,  # type: ignore[arg-type]
        ground,
        allowed,
        probe,
        notes.append,
    )
    return None if found is None else found[0], tried, notes


def test_the_values_of_a_knob_are_tried_until_the_script_trains() -> None:
    settings, tried, _ = fitted([Faster(), Parts(), Offload()], {"parts": 4})
    assert settings == {"parts": 4}
    assert tried == [{"parts": 2}, {"parts": 4}], "nothing that saves no memory"


def test_where_one_is_not_enough_the_next_comes_on_top_of_its_strongest_value() -> None:
    settings, tried, notes = fitted([Parts(), Offload()], {"parts": 4, "offload": True})
    assert settings == {"parts": 4, "offload": True}
    assert tried[-1] == settings
    assert notes[-1] == "it runs out of memory as it is: trying parts 4, offload"


def test_a_knob_that_fails_otherwise_is_left_out_with_its_reason() -> None:
    broken = Parts()
    broken.values = ("broken", 4)
    settings, tried, notes = fitted([broken, Offload()], {"offload": True})
    assert settings == {"offload": True}
    assert tried == [{"parts": "broken"}, {"offload": True}]
    assert "parts broken: KeyError: 'x'" in notes


def test_nothing_is_found_where_nothing_fits_or_may_be_changed() -> None:
    settings, _, notes = fitted([Parts(), Offload()], {"parts": 99})
    assert (settings, notes[-1]) == (None, "nothing makes it fit, not even parts 4, offload")
    assert fitted([Parts()], {"parts": 2}, frozenset({Effect.PIPELINE}))[:2] == (None, [])
    refusing = Parts()
    refusing.values = Skip("the model is compiled")
    assert fitted([refusing], {})[2] == ["parts: not tried: the model is compiled"]


def test_nothing_more_is_tried_once_the_budget_is_used_up() -> None:
    tried: list[dict[str, Any]] = []

    def probe(settings: dict[str, Any]) -> Trial:
        tried.append(settings)
        return trial(None, settings, status="oom")

    notes: list[str] = []
    ground, late = facts(out_of_memory=True), lambda: len(tried) == 1
    found = make_it_fit([Parts()], ground, frozenset(Effect), probe, notes.append, late)
    assert (found, tried) == (None, [{"parts": 2}])
    assert notes[-1] == "parts: not tried: the budget is used up"


def test_what_still_trains_when_its_time_is_up_fits() -> None:
    """A GPT at batch 160 took 5 s a step once it fitted, and the trial's limit came first."""

    def slow(steps: int, failure: FailureKind) -> Trial:
        found = trial(None, {"parts": 2}, status="timeout", reason="not done", seconds=107.0)
        assert found.result is not None
        record = replace(found.record, failure=failure)
        return replace(found, record=record, result=replace(found.result, steps=steps))

    late, hung = FailureKind.OUT_OF_TIME, FailureKind.HUNG
    for steps, failure, held in ((12, late, True), (12, hung, False), (2, late, False)):
        shown, ground = slow(steps, failure), facts(out_of_memory=True)
        found = make_it_fit([Parts()], ground, frozenset(Effect), lambda _, it=shown: it, print)
        assert (found is not None) == held, (steps, failure)
