"""Verdicts on trainings made by hand: what is rejected, and what is allowed."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from gpurun.knobs.api import Effect
from gpurun.records.events import AuditEvent, SamplesEvent
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import ROUNDING, SEEDS, STILL
from tests.unit.recorded_runs import loader
from tests.unit.same_launches import judged, missing

INFINITE = float("inf")
UNSEEN = float("nan")


def audit(step: int, **fields: Any) -> AuditEvent:
    usual: dict[str, Any] = {
        "loss": 1.0, "hyperparameters": ({"lr": 0.1, "fused": None},),
        "gradient_norms": {"0.weight": 1.0, "0.bias": 0.5},
        "update_norms": {"0.weight": 0.1, "0.bias": 0.05}, "side_update_norms": {"Net 0": 0.01},
        "gradient_values": (0.5, -0.25, 0.1), "input_values": (1.0, 2.0),
        "draws": False, "modules": {"0.": "Net(), training"},
    }  # fmt: skip
    return AuditEvent(step=step, **{**usual, **fields})


def passing(number: int, order: list[int], **fields: Any) -> SamplesEvent:
    usual: dict[str, Any] = {"checksums": {str(i): (i * 7, i * 11) for i in order}}
    return SamplesEvent(loader=0, epoch=number, order=tuple(order), **{**usual, **fields})


def shuffled(seed: int, size: int = 64) -> list[int]:
    return random.Random(seed).sample(range(size), size)


def trial(seed: int = 0, **fields: Any) -> LaunchAudit:
    usual: dict[str, Any] = {
        "losses": (1.0, 0.9, 0.8, 0.7) * 10, "microbatches": (1,) * 40,
        "audits": tuple(audit(step) for step in range(1, 9)),
        "samples": (passing(1, shuffled(1)), passing(2, shuffled(2))),
        "rates": ((1, (0.1,)),),
    }  # fmt: skip
    return LaunchAudit(seed=seed, **{**usual, **fields})


BASELINES = [trial(), trial()]


def audits(**fields: Any) -> dict[str, Any]:
    return {"audits": tuple(audit(step, **fields) for step in range(1, 9))}


OTHERS = (0.16, 0.25, 0.3)
"""First gradients under other masks of dropout; under the usual ones they are (0.5, -0.25, 0.1)."""


def dropping(**fields: Any) -> LaunchAudit:
    """A trial whose model draws random numbers."""
    return trial(**audits(draws=True, **fields))


BROKEN: dict[str, dict[str, Any]] = {
    "not finite": {"losses": (1.0,) * 10 + (INFINITE,) * 30},
    "not finite at step 41": {"losses": (1.0, 0.9, 0.8, 0.7) * 10 + (INFINITE,)},
    "no loss was seen": {"losses": (UNSEEN,) * 40},
    "lr is 0.2": audits(hyperparameters=({"lr": 0.2, "fused": None},)),
    "in step 21 the learning rate is 0.05": {"rates": ((1, (0.1,)), (21, (0.05,)))},
    "no gradient": audits(gradient_norms={"0.weight": 1.0, "0.bias": 0.0}),
    "no longer optimized": audits(gradient_norms={"0.weight": 1.0}),
    "gradient of 0.weight is not": audits(gradient_norms={"0.weight": INFINITE, "0.bias": 0.5}),
    "gradients are 2.00": audits(gradient_norms={"0.weight": 2.0, "0.bias": 1.0}),
    "gradients of 0.bias": audits(gradient_norms={"0.weight": 1.0, "0.bias": 0.25}),
    "changed no parameter": audits(update_norms={"0.weight": 0.0, "0.bias": 0.0}),
    "left parameter 0.bias": audits(update_norms={"0.weight": 0.1, "0.bias": 0.0}),
    "no longer follows": audits(side_update_norms={"Net 0": 0.0}),
    "point elsewhere": audits(gradient_values=(-0.5, 0.25, -0.1)),
    "first loss": audits(loss=1.2),
    "fed other tensors": audits(input_values=(-1.0, 5.0)),
    "is Net(), evaluating": audits(modules={"0.": "Net(), evaluating"}),
    "backward passes is 2": {"microbatches": (1, 1, 2) + (1,) * 37},
    "in another order": {"samples": (passing(1, shuffled(5)), passing(2, shuffled(2)))},
    "hands out 32": {"samples": (passing(1, shuffled(1)[:32]), passing(2, shuffled(2)))},
    "another content": {
        "samples": (passing(1, shuffled(1), checksums={str(i): (i * 7, 0) for i in range(1, 9)}),)
    },
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_is_off_is_named(reason: str) -> None:
    verdict = judged(BASELINES, [trial(**BROKEN[reason])], Effect.NUMERICS)
    assert not verdict.accepted
    assert any(reason in said for said in verdict.reasons), verdict.reasons
    assert verdict.curves is not None


@pytest.mark.parametrize("finite", [0, 10])
def test_a_script_whose_own_loss_is_not_finite_is_not_called_the_same(finite: int) -> None:
    broken: dict[str, Any] = {
        "losses": (1.0,) * finite + (INFINITE,) * (40 - finite),
        **audits(gradient_norms={"0.weight": math.nan, "0.bias": math.nan}),
    }
    baselines, candidate = [trial(**broken), trial(**broken)], trial(**broken)
    verdict = judged(baselines, [candidate], Effect.PIPELINE)
    assert (verdict.accepted, verdict.loss_deviation) == (True, None)
    assert verdict.compared == ("samples",)
    rounding = judged(baselines, [candidate], Effect.NUMERICS)
    assert any("losses not compared" in said for said in rounding.reasons) == (finite == 0)


def test_a_twin_is_accepted() -> None:
    verdict = judged(BASELINES, [trial()], Effect.PIPELINE)
    assert verdict.accepted, verdict.reasons
    assert verdict.loss_deviation == 0


SOUND: dict[str, dict[str, Any]] = {
    "kernels chosen": audits(hyperparameters=({"lr": 0.1, "fused": True},)),
    "rounding": audits(loss=1.004, gradient_values=(0.5, -0.26, 0.1)),
    "a loss unseen now and then": {"losses": (1.0, UNSEEN, 0.8, 0.7) * 10},
    "more steps": {"losses": (1.0, 0.9, 0.8, 0.7) * 12, "microbatches": (1,) * 48},
    "a replaced module": audits(modules={"0.": "FusedNet(), training"}),
    "a longer trial": {
        "samples": (passing(1, shuffled(1)), passing(2, shuffled(2)), passing(3, shuffled(3)))
    },
}


@pytest.mark.parametrize("change", SOUND)
def test_what_is_harmless_is_accepted(change: str) -> None:
    verdict = judged(BASELINES, [trial(**SOUND[change])], Effect.NUMERICS)
    assert verdict.accepted, verdict.reasons


def noisy(workers: int, orders: tuple[int, ...], **fields: Any) -> LaunchAudit:
    """A trial whose samples draw random numbers; after the audited ones, each worker its own."""
    samples = tuple(
        passing(number, shuffled(order), drawn=True) for number, order in enumerate(orders, 1)
    )
    loaders = (loader(workers=workers),)
    return trial(seed=0, **{"samples": samples, "loaders": loaders, **fields})


def test_later_passes_may_be_shuffled_otherwise_where_the_data_set_draws_random_numbers() -> None:
    baselines = [replace(noisy(1, (1, 2))), noisy(1, (1, 2))]
    assert judged(baselines, [noisy(2, (1, 9))], Effect.PIPELINE).accepted


def test_but_they_must_still_be_shuffles() -> None:
    baselines = [noisy(1, (1, 2)), noisy(1, (1, 2))]
    sorted_pass = passing(2, list(range(64)), checksums={})
    first = noisy(2, (1,)).samples
    verdict = judged(baselines, [trial(samples=(*first, sorted_pass))], Effect.PIPELINE)
    assert "the samples are no longer shuffled" in verdict.reasons
    verdict = judged(baselines, [noisy(2, (1, 1))], Effect.PIPELINE)
    assert "every pass over the data has the same order" in verdict.reasons


def test_a_loss_that_other_draws_may_explain_is_held_against_other_seeds() -> None:
    """Seen with augmentations that workers draw from other generators."""
    baselines = [noisy(1, (1, 2)), noisy(1, (1, 2))]
    usual = baselines[0].losses
    off = tuple(1.06 * x for x in usual)
    assert missing(baselines, [noisy(2, (1, 2), losses=off)], Effect.PIPELINE) == {SEEDS}
    alike = judged(baselines, [noisy(1, (1, 2), losses=off)], Effect.PIPELINE)
    assert not alike.accepted
    same = missing(baselines, [noisy(1, (1, 2), losses=off)], Effect.PIPELINE)
    assert not same, "nothing was drawn anew"
    far = tuple(1.2 * x for x in usual)
    assert not missing(baselines, [noisy(2, (1, 2), losses=far)], Effect.PIPELINE), "too far off"
    for spread, accepted in ((0.05, True), (0.001, False)):
        seeds = [
            replace(baselines[0], seed=seed, losses=tuple((1 + seed * spread) * x for x in usual))
            for seed in (1, 2)
        ]
        verdict = judged([*baselines, *seeds], [noisy(2, (1, 2), losses=off)], Effect.PIPELINE)
        assert verdict.accepted is accepted, verdict.reasons


def test_draws_explain_nothing_where_samples_draw_none() -> None:
    still = [replace(b, samples=trial().samples) for b in (noisy(1, (1, 2)), noisy(1, (1, 2)))]
    off = tuple(1.06 * x for x in still[0].losses)
    candidate = noisy(2, (1, 2), losses=off, samples=trial().samples)
    assert not judged(still, [candidate], Effect.PIPELINE).accepted
    assert not missing(still, [candidate], Effect.PIPELINE)


def test_samples_that_draw_by_their_index_are_equal_in_workers_too() -> None:
    baselines = [noisy(0, (1, 2)), noisy(0, (1, 2))]
    assert judged(baselines, [noisy(4, (1, 2))], Effect.PIPELINE).accepted
    changed = {str(i): (i * 7, i * 11 + (i == 5)) for i in range(64)}
    wrong = noisy(4, (1, 2), samples=(passing(1, shuffled(1), checksums=changed, drawn=True),))
    verdict = judged(baselines, [wrong], Effect.PIPELINE)
    assert "1 of 64 samples have another content than in the baseline" in verdict.reasons


def test_a_part_in_which_repeats_differ_hides_no_other_part_and_gets_no_workers() -> None:
    """Numbers that no seed rules, say; labels are compared all the same."""

    def labelled(draw: int, shift: int = 0, workers: int = 0) -> LaunchAudit:
        checksums = {str(i): (i * draw, i + shift) for i in range(64)}
        samples = (passing(1, shuffled(1), checksums=checksums),)
        return trial(samples=samples, loaders=(loader(workers=workers),))

    baselines = [labelled(1), labelled(2), labelled(3)]
    assert judged(baselines, [labelled(4)], Effect.PIPELINE).accepted
    (reason,) = judged(baselines, [labelled(4, workers=2)], Effect.PIPELINE).reasons
    assert "no other processes load them" in reason
    verdict = judged(baselines, [labelled(4, shift=7)], Effect.PIPELINE)
    assert [x for x in verdict.reasons if "have another content" in x]


def loaded_again(*passes: list[int], workers: int = 0) -> LaunchAudit:
    again = {0: tuple((0, *one) for one in passes)} if passes else {}
    return trial(again=again, loaders=(loader(workers=workers),))


def test_samples_that_are_loaded_again_must_be_equal_in_the_second_pass_too() -> None:
    """A cache that fills in the first pass shows itself there."""
    baselines = [loaded_again([1, 2, 3], [3, 1, 2]), loaded_again([1, 2, 3], [3, 1, 2])]
    shorter = loaded_again([1, 2], [3, 1, 2, 4], workers=2)
    assert judged(baselines, [shorter], Effect.PIPELINE).accepted
    other = loaded_again([1, 2, 3], [3, 1, 9], workers=2)
    (reason,) = judged(baselines, [other], Effect.PIPELINE).reasons
    assert reason == "1 of 6 samples have another content than in the baseline"


def test_workers_that_hand_out_nothing_again_are_refused() -> None:
    baselines = [loaded_again([1, 2], [2, 1]), loaded_again([1, 2], [2, 1])]
    assert judged(baselines, [loaded_again()], Effect.PIPELINE).accepted, "the same processes load"
    (reason,) = judged(baselines, [loaded_again(workers=2)], Effect.PIPELINE).reasons
    assert reason == "workers hand out no samples"


def test_batches_may_have_different_numbers_of_parts() -> None:
    """Boxes of a detector are a part where there are as many of them as samples."""
    checksums: dict[str, Any] = {str(i): (i,) * (2 if i < 8 else 3) for i in range(64)}
    odd = trial(samples=(passing(1, shuffled(1), checksums=checksums),))
    verdict = judged([odd], [odd], Effect.PIPELINE)
    assert verdict.accepted, verdict.reasons


def test_gradients_of_other_masks_say_only_that_nothing_is_lost() -> None:
    baselines = [dropping(), dropping()]
    half = {"gradient_norms": {n: x / 2 for n, x in audit(1).gradient_norms.items() if x}}
    other = dropping(gradient_values=OTHERS, **half)
    assert judged(baselines, [other], Effect.NUMERICS).accepted
    lost = dropping(gradient_values=OTHERS, gradient_norms={"0.weight": 0.0, "0.bias": 1.0})
    verdict = judged(baselines, [lost], Effect.NUMERICS)
    assert "parameter 0.weight gets no gradient in step 1" in verdict.reasons
    assert missing(baselines, [dropping(**half)], Effect.NUMERICS) == {STILL}, "or other masks"
    assert not judged(baselines, [other], Effect.PIPELINE).accepted, "it computes as the script"


def test_they_are_compared_in_launches_without_dropout() -> None:
    baselines = [dropping(), dropping()]
    other = dropping(gradient_values=OTHERS)
    assert missing(baselines, [other], Effect.NUMERICS) == {STILL}
    assert not missing(baselines, [dropping()], Effect.NUMERICS)
    still = trial(still=True, losses=(7.0,) * 9)
    known, both = [*baselines, still], [other, replace(still, losses=(9.0,) * 9)]
    assert judged(known, both, Effect.NUMERICS).accepted, "their curves say nothing"
    assert not missing(known, both, Effect.NUMERICS)
    wrong = trial(still=True, **audits(gradient_norms={"0.weight": 9.0, "0.bias": 9.0}))
    assert not judged(known, [other, wrong], Effect.NUMERICS).accepted
    assert missing(known, [other, wrong], Effect.NUMERICS) == {ROUNDING}


def test_what_draws_all_the_same_is_compared() -> None:
    """Other layers than dropout are seeded alike: their gradients are compared."""
    noisy_baselines = [dropping(), dropping(), replace(dropping(), still=True)]
    candidates = [replace(dropping(gradient_values=OTHERS), still=still) for still in (False, True)]
    assert not judged(noisy_baselines, candidates, Effect.NUMERICS).accepted
    candidates[1] = replace(dropping(), still=True)
    assert judged(noisy_baselines, candidates, Effect.NUMERICS).accepted
    assert not missing(noisy_baselines, candidates, Effect.NUMERICS)


def test_launches_without_dropout_are_asked_for_where_some_steps_draw() -> None:
    """A penalty with random numbers in one step of many hides nothing of the others."""
    rare = [replace(one, draws=number == 1) for number, one in enumerate(dropping().audits)]
    baselines = [trial(audits=tuple(rare))] * 2
    other = [
        replace(one, update_norms={n: 2 * x for n, x in one.update_norms.items()}) for one in rare
    ]
    assert missing(baselines, [trial(audits=tuple(other))], Effect.NUMERICS) == {STILL}


def test_a_larger_batch_may_train_otherwise_but_not_on_other_samples() -> None:
    other = {**audits(gradient_norms={"0.weight": 9.0, "0.bias": 9.0}), "microbatches": (2,) * 40}
    assert judged(BASELINES, [trial(**other)], Effect.TRAINING).accepted
    verdict = judged(BASELINES, [trial(**BROKEN["another content"])], Effect.TRAINING)
    assert not verdict.accepted
    verdict = judged(BASELINES, [trial(losses=(1.0,) * 20 + (50.0,) * 20)], Effect.TRAINING)
    assert "the loss diverges" in verdict.reasons[0]


VALUES = (0.5, -0.25) * 16 + (0.1, 0.3, 0.2) * 16
COUNTS = {"gradient_counts": (32, 48)}
"""Of two parameters: an early one, and the last before the loss."""
TURNED = (-0.4, 0.3) * 16 + (0.1, 0.3, 0.2) * 16
"""As rounding alone leaves them in a model whose gradients explode on their way back."""


def under_rounding(turned: tuple[float, ...], candidate: tuple[float, ...], effect: Effect) -> bool:
    """Whether a candidate is accepted where rounding the parameters gives `turned` gradients."""
    plain = trial(**audits(gradient_values=VALUES, **COUNTS))
    rounded = trial(**audits(gradient_values=turned, **COUNTS), rounded=True)
    other = trial(**audits(gradient_values=candidate, **COUNTS))
    verdict = judged([plain, plain, rounded], [other], effect)
    assert not judged([plain, plain], [other], effect).accepted
    rounds = effect is Effect.NUMERICS
    assert missing([plain, plain], [other], effect) == ({ROUNDING} if rounds else set())
    return verdict.accepted


def test_gradients_that_rounding_alone_turns_about_may_be_turned_by_a_change_of_numerics() -> None:
    other = (0.3, 0.45) * 16 + (0.1, 0.29, 0.21) * 16
    assert under_rounding(TURNED, other, Effect.NUMERICS)
    assert not under_rounding(VALUES, other, Effect.NUMERICS), "here rounding explains nothing"
    assert not under_rounding(TURNED, other, Effect.PIPELINE), "and there nothing is rounded"


def test_near_the_loss_they_must_agree_all_the_same() -> None:
    assert not under_rounding(TURNED, tuple(-x for x in VALUES), Effect.NUMERICS)


def test_a_rounded_trial_is_no_baseline() -> None:
    """It would pass for the noise of the script's own repeats."""
    far = trial(losses=(1.0, 2.0) * 20, rounded=True)
    assert judged([trial(), trial(), far], [trial()], Effect.NUMERICS).noise == pytest.approx(0.0)


def drifting(rate: float, steps: int = 80, **fields: Any) -> LaunchAudit:
    """A training whose loss moves away from the plain one by this part a step."""
    losses = tuple(0.8 * (1 + rate * step) for step in range(steps))
    return trial(losses=losses, microbatches=(1,) * steps, **fields)


@pytest.mark.parametrize(
    ("rounding", "reach", "changed", "accepted"),
    [
        (8e-4, 80, 1e-3, True),
        (8e-4, 80, -1e-3, True),
        (4e-4, 80, 1.2e-3, False),
        (8e-4, 40, 1e-3, False),
        (8e-4, 80, 3e-3, False),
        (1e-2, 80, 1e-3, False),
    ],
    ids=["as far", "the other way", "three times", "not so long", "much further", "astray"],
)
def test_a_loss_may_go_about_as_far_off_as_rounding_alone_takes_it(
    rounding: float, reach: int, changed: float, accepted: bool
) -> None:
    rounded = drifting(rounding, reach, rounded=True)
    known = [drifting(0), drifting(0), rounded]
    verdict = judged(known, [drifting(changed)], Effect.NUMERICS)
    assert verdict.accepted is accepted, verdict.reasons
    assert not judged(known, [drifting(changed)], Effect.PIPELINE).accepted
    assert not judged(known[:2], [drifting(changed)], Effect.NUMERICS).accepted


def test_rounding_excuses_no_part_of_a_curve_that_is_far_off() -> None:
    """Neither where another part of it is only a little off."""
    plain, rounded = drifting(0), drifting(1e-3, rounded=True)
    losses = tuple(
        x * (1.1 if step < 20 else 1.7 if step > 60 else 1.0) for step, x in enumerate(plain.losses)
    )
    broken = replace(plain, losses=losses)
    assert not judged([plain, plain, rounded], [broken], Effect.NUMERICS).accepted


def test_late_rounding_excuses_no_early_steps() -> None:
    """The first trial of a script is short, and a candidate is nearest to it."""
    plain, rounded = drifting(0, 200), drifting(8e-4, 200, rounded=True)
    first = drifting(0, 24)
    losses = tuple(
        x * (1.0 if step < 18 else 1.1 if step < 24 else 1.6) for step, x in enumerate(plain.losses)
    )
    broken = replace(plain, losses=losses)
    assert not judged([first, plain, rounded], [broken], Effect.NUMERICS).accepted


def test_rounding_is_asked_about_a_loss_that_is_not_far_off() -> None:
    for rate, asked in ((1e-3, True), (1e-2, False)):
        verdict = judged([drifting(0)], [drifting(rate)], Effect.NUMERICS)
        assert not verdict.accepted
        assert bool(missing([drifting(0)], [drifting(rate)], Effect.NUMERICS)) is asked


NORMS = {"0.conv": 1.5, "0.conv bias": 3e-8, "0.norm": 0.13}
MOVED = {"0.conv": 0.1, "0.conv bias": 0.01, "0.norm": 0.01}


def test_steps_made_of_rounding_alone_are_not_compared() -> None:
    """Adam makes whole steps of a gradient whose true value is zero."""
    plain = trial(**audits(gradient_norms=NORMS, update_norms=MOVED))

    def accepted(**moved: float) -> bool:
        other = trial(**audits(gradient_norms=NORMS, update_norms={**MOVED, **moved}))
        return judged([plain, plain], [other], Effect.NUMERICS).accepted

    assert accepted(**{"0.conv bias": 0.021})
    assert accepted(**{"0.conv bias": 0.0})
    assert not accepted(**{"0.norm": 0.021})
    assert not accepted(**{"0.norm": 0.0})


def test_an_update_that_rounding_may_swallow_is_not_missed() -> None:
    """In a warm-up from next to nothing a residual branch that begins at zero hardly moves."""
    moved = {"0.weight": 0.1, "0.bias": 0.05, "0.branch": 2e-7}
    norms = {"0.weight": 1.0, "0.bias": 0.5, "0.branch": 4e-4}
    plain = trial(**audits(gradient_norms=norms, update_norms=moved))
    for update in (0.0, 2e-7):
        other = trial(**audits(gradient_norms=norms, update_norms={**moved, "0.branch": update}))
        assert judged([plain, plain], [other], Effect.PIPELINE).accepted


def test_an_update_that_the_numbers_hardly_hold_may_be_swallowed_by_rounding() -> None:
    """A ResNet whose branches begin at zero: ones of float32 that are to move by 1e-7."""
    moved = {"0.weight": 0.1, "0.bias": 0.05, "0.branch": 2e-6}
    norms = {"0.weight": 1.0, "0.bias": 0.5, "0.branch": 4e-4}

    def reasons(
        near_zero: tuple[str, ...], effect: Effect, branch: float, steps: int, **others: float
    ) -> tuple[str, ...]:
        """`steps`: so many steps have the updates `branch` and `others`, the rest `moved`."""
        fields: dict[str, Any] = {"gradient_norms": norms, "updates_near_zero": near_zero}
        plain = trial(**audits(**fields, update_norms=moved))
        now = {**moved, **others, "0.branch": branch}
        other = tuple(
            audit(step, **fields, update_norms=now if step <= steps else moved)
            for step in range(1, 9)
        )
        return judged([plain, plain], [trial(audits=other)], effect).reasons

    near = ("0.branch",)
    assert reasons(near, Effect.NUMERICS, 0.0, steps=1) == ()
    assert "left parameter 0.branch" in reasons((), Effect.NUMERICS, 0.0, steps=1)[0]
    assert "left parameter 0.branch" in reasons(near, Effect.PIPELINE, 0.0, steps=1)[0]
    assert "left parameter 0.branch" in reasons(near, Effect.NUMERICS, 0.0, steps=8)[0]
    nothing = {"0.weight": 0.0, "0.bias": 0.0}
    frozen = reasons(tuple(moved), Effect.NUMERICS, 0.0, steps=1, **nothing)
    assert "step 1 changed no parameter" in frozen[0]


def weights(
    turned: float, seed: int = 0, dropout: str = "", other_masks: bool = False
) -> LaunchAudit:
    """Two weights' first gradients: a large one, and a small one turned by so many degrees.

    `other_masks`: dropout drew other masks, which turns the large one, too (cosine 0.9).
    """
    draw = random.Random(seed)
    large = [10 * draw.gauss(0, 1) for _ in range(64)]
    if other_masks:
        large = [x + 0.48 * 10 * draw.gauss(0, 1) for x in large]
    angle = math.radians(turned)
    small = [x for _ in range(32) for x in (math.cos(angle), math.sin(angle))]
    fields: dict[str, Any] = {
        "gradient_norms": {"0.head": 80.0, "0.query": 5.7},
        "update_norms": {}, "gradient_values": (*large, *small), "gradient_counts": (64, 64),
    }  # fmt: skip
    if dropout:
        fields |= {"draws": True, "modules": {"0.drop": dropout}}
    return trial(**audits(**fields))


DROPS = "Dropout(p=0.1, inplace=False), training"


@pytest.mark.parametrize("dropout", ["", DROPS])
def test_a_weight_whose_gradient_turns_is_told_beside_a_larger_one(dropout: str) -> None:
    """Masks may turn one weight of many: where there are any, launches without them tell."""

    def rejected(turned: float) -> bool:
        plain, other = weights(0, 0, dropout), weights(turned, 0, dropout)
        if not dropout:
            return not judged([plain, plain], [other], Effect.NUMERICS).accepted
        asked = missing([plain, plain], [other], Effect.NUMERICS)
        assert asked == ({STILL} if turned > 20 else set())
        known, still = (replace(weights(x), still=True) for x in (0, turned))
        return not judged([plain, plain, known], [other, still], Effect.NUMERICS).accepted

    assert not rejected(15)
    assert rejected(45)


def test_masks_may_turn_all_of_a_gradient() -> None:
    """A head behind a dropout of 0.2 was turned by 65 degrees by other masks alone."""
    plain, other = weights(0, 0, DROPS), weights(65, 0, DROPS, other_masks=True)
    assert judged([plain, plain], [other], Effect.NUMERICS).accepted
    known, wrong = (replace(weights(turned), still=True) for turned in (0, 65))
    assert not judged([plain, plain, known], [other, wrong], Effect.NUMERICS).accepted


def test_copies_of_the_model_are_told_apart_by_how_far_they_move() -> None:
    """An averaged copy from the start, and one that waits: another process finds them swapped."""
    plain = trial(**audits(side_update_norms={"Net 0": 0.01, "Net 1": 0.0}))
    swapped = trial(**audits(side_update_norms={"Net 0": 0.0, "Net 1": 0.01}))
    assert judged([plain, swapped], [swapped], Effect.PIPELINE).accepted
    assert judged([plain, plain], [swapped], Effect.PIPELINE).accepted
    frozen = trial(**audits(side_update_norms={"Net 0": 0.0, "Net 1": 0.0}))
    (reason,) = judged([plain, swapped], [frozen], Effect.PIPELINE).reasons
    assert "Net 0 no longer follows" in reason


def test_a_weight_whose_gradient_rounding_turns_may_be_turned() -> None:
    plain, other = weights(0), weights(30)
    assert missing([plain, plain], [other], Effect.NUMERICS) == {ROUNDING}
    rounded = replace(weights(20), rounded=True)
    assert judged([plain, plain, rounded], [other], Effect.NUMERICS).accepted
    steady = replace(weights(5), rounded=True)
    assert not judged([plain, plain, steady], [other], Effect.NUMERICS).accepted
