"""Other ways to exchange gradients: tried in turn, and held against the usual one."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest

from gpurun.arguments.ddp_options import flag_of
from gpurun.records.spec import Setting
from gpurun.scaling.ddp_option_trials import WAYS, DdpOptionTrials, told
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.launch_rounds import Plan
from gpurun.scaling.scaling_requests import PlannedLaunch
from gpurun.trials.stop_rules import later_rule
from tests.unit.scaling_launches import failure, launch

VIEW = "gradient_as_bucket_view"
FEWER = "accumulation 2"
RULE = later_rule(20, ())


class Ranks:
    """Stands for the launcher: a step takes 10 ms, and so much of that by the options."""

    def __init__(self, factors: dict[str, float], mine: tuple[Setting, ...] = ()) -> None:
        self.factors = factors
        self.ddp_options = mine
        self.longest = {4: 5.0}
        self.turns: list[str] = []

    def run(self, planned: PlannedLaunch) -> FinishedLaunch:
        assert planned.options is not None
        assert planned.ranks == 4
        knobs = [f"{setting.knob} {setting.value}" for setting in planned.settings]
        name = " ".join([*knobs, *filter(None, [flag_of(planned.options)])])
        self.turns.append(name)
        factor = self.factors.get(name, 1.0)
        if not factor:
            return failure(planned, error="not with this model")
        noise = 1 + 0.001 * (len(self.turns) % 3)
        return launch(planned, step_ms=10.0 * factor * noise)


def tried(
    ranks: Ranks, rounds: int = 3, seconds: float = math.inf, *, gpus: bool = True
) -> DdpOptionTrials:
    plan = Plan((1, 4), rounds, None, time.monotonic() + seconds)
    trying = DdpOptionTrials(ranks, plan, print)  # type: ignore[arg-type]
    trying.run(4, RULE, nccl=gpus)
    return trying


def test_all_ways_take_turns_with_the_usual_one() -> None:
    ranks = Ranks({})
    tried(ranks, rounds=2)
    names = ["", *map(flag_of, WAYS), FEWER]
    assert ranks.turns == [*names, *names[::-1]]


def test_the_fastest_beyond_the_noise_is_named() -> None:
    both = f"{VIEW},static_graph"
    trying = tried(Ranks({VIEW: 0.95, both: 0.8}))
    found = {way.ddp_options: way for way in told(trying)}
    assert [name for name, way in found.items() if way.faster] == [both]
    assert found[both].speedup == pytest.approx(1.25, rel=0.01)
    assert found[VIEW].speedup == pytest.approx(1.05, rel=0.01)
    interval = found[both].speedup_confidence_interval
    assert interval is not None
    assert interval[0] < 1.25 < interval[1]


def test_fewer_exchanges_are_measured_and_named_no_winner_for_they_change_training() -> None:
    found = told(tried(Ranks({FEWER: 0.5, VIEW: 0.95})))
    fewer = next(way for way in found if way.settings)
    assert fewer.settings == {"accumulation": 2}
    assert (fewer.effect, fewer.ddp_options, fewer.faster) == ("training", "", False)
    assert fewer.speedup == pytest.approx(2.0, rel=0.01)
    assert [way.ddp_options for way in found if way.faster] == [VIEW]


def test_fewer_exchanges_are_not_tried_where_each_pass_exchanges_like_the_first() -> None:
    ranks = Ranks({}, (Setting("static_graph", True),))
    assert not any(way.settings for way in tried(ranks).ways)


def test_steps_of_two_batches_are_not_compared_where_samples_cannot_be_counted() -> None:
    ranks = Ranks({})
    run = ranks.run

    def uncounted(planned: PlannedLaunch) -> FinishedLaunch:
        seen = run(planned)
        assert seen.figures is not None
        return replace(seen, figures=replace(seen.figures, samples_per_second=None))

    ranks.run = uncounted  # type: ignore[method-assign]
    found = told(tried(ranks))
    fewer = next(way for way in found if way.settings)
    assert fewer.speedup is None
    assert fewer.error == "its samples cannot be counted, so its steps cannot be compared"
    assert all(way.speedup for way in found if not way.settings)


def test_nothing_is_named_where_nothing_is_faster() -> None:
    assert not any(way.faster for way in told(tried(Ranks({}))))
    assert not any(way.faster for way in told(tried(Ranks({VIEW: 0.5}), rounds=1))), (
        "one round tells nothing of the noise"
    )


def test_a_way_that_fails_costs_one_launch_and_says_why() -> None:
    compressed = f"compression=bf16,{VIEW}"
    ranks = Ranks({compressed: 0})
    found = {way.ddp_options: way for way in told(tried(ranks))}
    assert ranks.turns.count(compressed) == 1
    assert (found[compressed].error, found[compressed].speedup) == ("not with this model", None)
    assert found[compressed].effect == "numerics"
    assert found[VIEW].effect == "pipeline"


def test_what_the_user_asked_for_is_the_usual_way() -> None:
    ranks = Ranks({}, mine=(Setting(VIEW, True),))
    tried(ranks, rounds=1)
    assert ranks.turns[0] == VIEW
    assert ranks.turns.count(VIEW) == 1


def test_half_precision_is_tried_where_there_is_nccl() -> None:
    ranks = Ranks({})
    tried(ranks, rounds=1, gpus=False)
    assert not any("compression" in name for name in ranks.turns)


def test_the_budget_bounds_it() -> None:
    ranks = Ranks({})
    assert told(tried(ranks, seconds=1.0)) == ()
    assert ranks.turns == []
