"""Loss curves are told apart by more than chance, and by no less than 2 %."""

from __future__ import annotations

import random
from dataclasses import replace

from gpurun.stats.loss_deviation import deviation, differences, standard_error
from gpurun.tuner.guard.training_evidence import Evidence


def curve(seed: int = 0, factor: float = 1.0, noise: float = 0.05, steps: int = 80) -> Evidence:
    dice = random.Random(seed)
    losses = tuple(
        factor * (1 + 2 / (1 + step / 10)) * (1 + dice.gauss(0, noise)) for step in range(steps)
    )
    return Evidence(seed=seed, losses=losses, microbatches=(1,) * steps)


def test_the_same_curve_does_not_deviate() -> None:
    found = deviation([curve(), curve()], [curve()])
    assert found is not None
    assert found.size == 0


def test_a_bias_beyond_two_percent_is_seen_where_repeats_agree() -> None:
    found = deviation([curve(), curve()], [curve(factor=1.03)])
    assert found is not None
    assert found.size > found.bound


def test_what_goes_wrong_late_is_seen_though_shorter_trials_have_the_same_seed() -> None:
    """The first trial of a script is the shortest; the first pair of a proof has its seed."""
    sound = curve(steps=160)
    late = replace(sound, losses=(*sound.losses[:80], *(1.2 * x for x in sound.losses[80:])))
    found = deviation([curve(steps=24), curve(steps=40), sound], [late])
    assert found is not None
    assert found.size > found.bound


def test_repeats_that_differ_may_be_compared_with_the_nearest() -> None:
    """The spread of short repeats says little of how far long ones come apart."""
    sound, apart = curve(steps=160), curve(steps=160, factor=1.03)
    short = replace(curve(steps=24), losses=(*apart.losses[:23], 2.0))
    found = deviation([short, sound], [apart])
    assert found is not None
    assert found.size < found.bound


def test_a_bias_below_two_percent_is_tolerated() -> None:
    found = deviation([curve(), curve()], [curve(factor=1.01)])
    assert found is not None
    assert found.size < found.bound


def test_other_random_draws_on_the_same_course_are_tolerated() -> None:
    refused = 0
    for repeat in range(200):
        drawn = curve(seed=1000 + repeat, noise=0.2)
        candidate = Evidence(seed=0, losses=drawn.losses, microbatches=drawn.microbatches)
        found = deviation([curve(noise=0.2), curve(noise=0.2)], [candidate])
        assert found is not None
        refused += found.size > found.bound
    assert refused <= 4


def test_more_pairs_see_a_smaller_bias() -> None:
    baselines = [curve(seed=s, noise=0.3) for s in range(8)]
    biased = [curve(seed=s, noise=0.3, factor=1.2) for s in range(8)]
    one, all_of_them = deviation(baselines, biased[:1]), deviation(baselines, biased)
    assert one is not None
    assert all_of_them is not None
    assert all_of_them.bound < one.bound
    assert all_of_them.size > all_of_them.bound


def test_steps_without_a_loss_are_left_out() -> None:
    holes = tuple(float("nan") if step % 2 else 1.0 for step in range(40))
    assert [d.relative for d in differences(holes, (1.0,) * 40)] == [0.0] * 4


def test_without_a_common_step_nothing_is_compared() -> None:
    empty = Evidence(seed=0, losses=(), microbatches=())
    assert deviation([empty], [curve()]) is None


def test_neighbours_that_resemble_each_other_count_for_less() -> None:
    dice = random.Random(1)
    free = [dice.gauss(0, 1) for _ in range(200)]
    slow = [0.0]
    for x in free:
        slow.append(0.8 * slow[-1] + 0.6 * x)
    assert standard_error(slow) > 1.4 * standard_error(free)
