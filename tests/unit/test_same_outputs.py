"""Outputs of calls without gradients, of launches made by hand: what is rejected, and why."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpurun.knobs.api import Effect
from gpurun.records.events import AuditEvent
from gpurun.records.messages.training_events import OutputsEvent, TensorFigures
from gpurun.records.spec import OUTPUT_CALLS, StopRule
from gpurun.records.tuning import GuardVerdict
from gpurun.runtime.trial.tensor_figures import MOST_VALUES, ROTATIONS, places
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import ROUNDING
from gpurun.tuner.training_judge import rounding_rule
from tests.unit.same_launches import judged, missing

CALLS = 20
Change = Callable[[float], float]


def figures(call: int, change: Change = float, place: str = "", **fields: object) -> TensorFigures:
    draw = random.Random(call)
    values = tuple(change(draw.gauss(0, 1)) for _ in range(64))
    plain = TensorFigures(place, "float32", (8, 8), values, None, 0, tuple(range(8)))
    return replace(plain, **fields)  # type: ignore[arg-type]


def trial(change: Change = float, *, rounded: bool = False, **fields: object) -> LaunchAudit:
    calls = tuple(
        replace(
            OutputsEvent(
                call=call, trained=0, module="Net", inputs=(figures(1000 + call),),
                outputs=(figures(call, change),), structure="*", draws=False, overwritten=False,
            ),
            **fields,  # type: ignore[arg-type]
        )
        for call in range(1, CALLS + 1)
    )  # fmt: skip
    return LaunchAudit(0, (), (), outputs=calls, forward_only=True, rounded=rounded)


def off_by(part: float, seed: int = 0) -> Change:
    draw = random.Random(seed)
    return lambda x: x + part * draw.gauss(0, 1)


BASELINES = [trial(), trial()]


def outputs(
    baselines: list[LaunchAudit],
    candidates: list[LaunchAudit],
    effect: Effect,
    rounded: LaunchAudit | None,
) -> GuardVerdict:
    """The verdict beside a launch that only rounds."""
    known = [] if rounded is None else [replace(rounded, rounded=True)]
    return judged([*baselines, *known], candidates, effect)


def test_rounding_is_accepted_up_to_twice_what_the_rounded_script_shows() -> None:
    candidate = trial(off_by(0.004, 1))
    unknown = judged(BASELINES, [candidate], Effect.NUMERICS)
    assert not unknown.accepted
    assert missing(BASELINES, [candidate], Effect.NUMERICS) == {ROUNDING}
    reference = trial(off_by(0.003, 2), rounded=True)
    known = judged([*BASELINES, reference], [candidate], Effect.NUMERICS)
    assert known.accepted, known.reasons
    assert known.compared == ("outputs",)
    assert known.output_deviation is not None
    assert 0.003 < known.output_deviation < 0.005
    further = judged([*BASELINES, reference], [trial(off_by(0.008, 1))], Effect.NUMERICS)
    assert not further.accepted


def test_a_pipeline_change_may_not_round() -> None:
    verdict = judged(BASELINES, [trial(off_by(0.004))], Effect.PIPELINE)
    assert not verdict.accepted
    assert judged(BASELINES, [trial(off_by(1e-6))], Effect.PIPELINE).accepted


def test_outputs_that_repeats_do_not_share_allow_pipeline_changes_alone() -> None:
    repeats = [trial(off_by(0.5, 1)), trial(off_by(0.5, 2))]
    candidate = trial(off_by(0.5, 3))
    pipeline = judged(repeats, [candidate], Effect.PIPELINE)
    assert pipeline.accepted
    assert pipeline.compared == ()
    assert "random" in (pipeline.outputs_not_compared or "")
    numerics = judged(repeats, [candidate], Effect.NUMERICS)
    assert not numerics.accepted
    assert "outputs not compared" in numerics.reasons[0]


def test_a_script_that_shows_no_outputs_allows_pipeline_changes_alone() -> None:
    silent = LaunchAudit(0, (), (), forward_only=True)
    assert judged([silent, silent], [silent], Effect.PIPELINE).accepted
    assert not judged([silent, silent], [silent], Effect.NUMERICS).accepted


def test_other_inputs_are_a_mistake_where_repeats_have_the_same() -> None:
    moved = trial(inputs=(figures(5),))
    (reason,) = judged(BASELINES, [moved], Effect.PIPELINE).reasons
    assert "is given other inputs" in reason


def test_a_state_that_a_trained_model_is_given_again_may_be_off_as_outputs_may() -> None:
    """An LSTM under bf16: after 180 steps its hidden state was off by 3 %, and is an input.

    Under fewer threads, which sum in another order, so were the inputs of a graph network's layers,
    which its training calls one by one.
    """

    def states(change: Change = float, trained: int = 180, **fields: object) -> LaunchAudit:
        found = trial(change, **fields)  # type: ignore[arg-type]
        given = tuple(
            replace(e, trained=trained, inputs=(figures(1000 + e.call, change),))
            for e in found.outputs
        )
        return replace(found, outputs=given, forward_only=False)

    baselines = [states(), states(), states(off_by(0.005, 2), rounded=True)]
    off = states(off_by(0.03, 1))
    judged = outputs(baselines[:2], [off], Effect.NUMERICS, baselines[2])
    assert judged.reasons == ()
    assert judged.compared
    far = outputs(baselines[:2], [states(off_by(0.5, 1))], Effect.NUMERICS, baselines[2])
    assert "is given other inputs" in far.reasons[0]
    first = [states(change, trained=0) for change in (float, float, off_by(0.01, 1))]
    untrained = outputs(first[:2], first[2:], Effect.PIPELINE, None)
    assert untrained.reasons, "before any step they are the same"


def rows_of(e: OutputsEvent, numbers: list[list[float]]) -> OutputsEvent:
    """The same call with an output of these rows, as the trial would see them."""
    leads = [sorted(row, reverse=True) for row in numbers]
    shown = TensorFigures(
        "", "float32", (len(numbers), len(numbers[0])), tuple(x for row in numbers for x in row),
        None, 0, largest=tuple(row.index(max(row)) for row in numbers),
        tops=tuple(row[0] for row in leads), margins=tuple(row[0] - row[1] for row in leads),
    )  # fmt: skip
    return replace(e, outputs=(shown,))


def rows(make: Callable[[int, int], list[float]], trained: int = 180) -> LaunchAudit:
    """A trial whose outputs are of eight rows a call: make(call, row)."""
    found = trial()
    calls = tuple(
        replace(rows_of(e, [make(e.call, row) for row in range(8)]), trained=trained)
        for e in found.outputs
    )
    return replace(found, outputs=calls, forward_only=not trained)


def line(call: int, row: int, off: float = 0.0) -> list[float]:
    """A smooth line of pixels, off by rounding."""
    draw, noise = random.Random(f"{call} {row}"), random.Random(f"noise {call} {row}")
    place, height = draw.uniform(2, 14), draw.gauss(3, 1)
    return [height - 0.002 * (x - place) ** 2 + off * noise.gauss(0, 1) for x in range(16)]


def test_neighbours_on_a_smooth_line_may_change_places() -> None:
    plain = rows(line)
    off = rows(lambda call, row: line(call, row, off=0.02))
    turned = [
        a.outputs[0].largest != b.outputs[0].largest
        for a, b in zip(plain.outputs, off.outputs, strict=True)
    ]
    assert all(turned)
    judged = outputs([plain, plain], [off], Effect.NUMERICS, plain)
    assert judged.reasons == ()
    assert judged.output_agreement is not None


def logits(call: int, row: int) -> list[float]:
    draw = random.Random(f"{call} {row}")
    return [draw.gauss(0, 1) for _ in range(8)]


@pytest.mark.parametrize("trained", [0, 180])
@pytest.mark.parametrize("effect", [Effect.PIPELINE, Effect.NUMERICS])
@pytest.mark.parametrize("kind", ["masked", "offset"])
def test_the_outputs_of_another_batch_are_found_where_their_size_says_nothing(
    kind: str, effect: Effect, trained: int
) -> None:
    """Half of the columns are masked by -1e9, or all numbers lie near 290."""

    def shown(call: int, row: int) -> list[float]:
        numbers = logits(call, row)
        return numbers + [-1e9] * 8 if kind == "masked" else [290 + 7 * x for x in numbers]

    plain = rows(shown, trained)
    stale = rows(lambda call, row: shown(call + 1, row), trained)
    assert outputs([plain, plain], [plain], effect, plain).reasons == ()
    assert outputs([plain, plain], [stale], effect, plain).reasons


def test_a_deviation_that_is_allowed_may_turn_the_largest_of_like_numbers() -> None:
    """An LSTM's state under bf16: 3 % off, and 23 % of its rows have another largest number."""

    def state(part: float, turned: int, every: int = 1, rounded: bool = False) -> LaunchAudit:
        found = trial(off_by(part, 3), rounded=rounded)
        calls = tuple(
            replace(
                e,
                trained=180,
                outputs=(replace(e.outputs[0], largest=turn(turned * (e.call % every == 0))),),
            )
            for e in found.outputs
        )
        return replace(found, outputs=calls, forward_only=False)

    def turn(rows: int) -> tuple[int, ...]:
        return tuple(row + 8 * (row < rows) for row in range(8))

    baselines = [state(0.0, 0), state(0.0, 0)]
    reference = state(0.01, 1, every=4, rounded=True)
    few, many = (
        outputs(baselines, [state(0.03, rows)], Effect.NUMERICS, reference) for rows in (2, 6)
    )
    assert few.reasons == ()
    assert "agrees in 25.0% only" in many.reasons[0]


def test_a_few_more_classes_that_rounding_turns_are_chance() -> None:
    """An image classifier under autocast: 6 of 160 classes turned, 1 where it was only rounded."""

    def classes(wrong: int, rounded: bool = False) -> LaunchAudit:
        def turned(call: int) -> tuple[int, ...]:
            return tuple(row + 8 * (8 * call + row < wrong) for row in range(8))

        shown = trial(off_by(0.004 * bool(wrong), 1 + rounded), rounded=rounded)
        outputs = tuple(
            replace(e, outputs=(replace(e.outputs[0], largest=turned(n)),))
            for n, e in enumerate(shown.outputs)
        )
        return replace(shown, outputs=outputs)

    plain, reference = [classes(0), classes(0)], classes(1, rounded=True)

    def reasons(wrong: int) -> tuple[str, ...]:
        return outputs(plain, [classes(wrong)], Effect.NUMERICS, reference).reasons

    assert reasons(6) == ()
    (many,) = reasons(16)
    assert "agrees in 90.0% only (allowed 94.38%)" in many


def test_an_output_that_the_next_call_overwrites_is_rejected_unless_it_always_was() -> None:
    reused = trial(overwritten=True)
    (reason,) = judged(BASELINES, [reused], Effect.PIPELINE).reasons
    assert "held other numbers after the next call" in reason
    assert judged([reused, reused], [reused], Effect.PIPELINE).accepted


def test_integers_and_largest_numbers_must_agree() -> None:
    def classes(shift: int) -> LaunchAudit:
        listed = tuple(float((place + shift) % 8) for place in range(64))
        return trial(outputs=(figures(1, dtype="int64", values=listed, largest=()),))

    (reason,) = judged([classes(0), classes(0)], [classes(1)], Effect.NUMERICS).reasons
    assert "agrees in 0.0% only" in reason
    same = judged([classes(0), classes(0)], [classes(0)], Effect.NUMERICS)
    assert (same.output_deviation, same.output_agreement) == (None, 1.0)


def trained(change: Change, direction: float, seed: int = 0) -> LaunchAudit:
    """Evaluations of a training that has dropout; its first gradient points in a direction."""
    audits = (first_step(gradient_values=(1.0, direction)),)
    shown = trial(change, trained=21)
    return replace(shown, seed=seed, audits=audits, losses=(1.0,) * 40, forward_only=False)


def first_step(**fields: object) -> AuditEvent:
    usual = AuditEvent(
        step=1, loss=1.0, hyperparameters=(), gradient_norms={}, update_norms={},
        side_update_norms={}, gradient_values=(1.0, 0.0), input_values=(), draws=True,
        modules={},
    )  # fmt: skip
    return replace(usual, **fields)  # type: ignore[arg-type]


TRAINED = [trained(float, 0.0), trained(float, 0.0)]


def test_a_shape_that_depends_on_trained_weights_is_not_compared() -> None:
    """A detector returns as many boxes as it finds."""

    def boxes(found: int, seen: int, counts: tuple[int, ...] = (3, 5)) -> LaunchAudit:
        shown = trained(float, 0.0)
        calls = tuple(
            replace(
                e, trained=seen, outputs=(*e.outputs, figures(e.call, place="boxes", shape=(n, 4)))
            )
            for e, n in zip(shown.outputs, (found, *counts), strict=False)
        )
        return replace(shown, outputs=calls)

    plain = [boxes(4, 21), boxes(4, 21)]
    assert judged(plain, [boxes(6, 21)], Effect.PIPELINE).accepted
    untrained = [boxes(4, 0), boxes(4, 0)]
    (reason,) = judged(untrained, [boxes(6, 0)], Effect.PIPELINE).reasons
    assert "output boxes of Net has the shape [6, 4] instead of [4, 4]" in reason
    wrong = boxes(6, 21)
    for fault in ({"not_finite": 3}, {"dtype": "float16"}, {"values": (0.0,) * 64}):
        calls = tuple(
            replace(e, outputs=(e.outputs[0], replace(e.outputs[1], **fault)))
            for e in wrong.outputs
        )
        faulty = replace(wrong, outputs=calls)
        assert not judged(plain, [faulty], Effect.PIPELINE).accepted
    always = [boxes(4, 21, (4, 4)), boxes(4, 21, (4, 4))]
    assert not judged(always, [boxes(6, 21, (4, 4))], Effect.PIPELINE).accepted


def test_a_training_that_drew_other_numbers_has_other_evaluations() -> None:
    """Where its first gradients show that it drew the same, outputs must be the same."""

    def accepted(part: float, direction: float) -> bool:
        return judged(TRAINED, [trained(off_by(part, 1), direction)], Effect.NUMERICS).accepted

    assert not accepted(0.3, 0.01)
    assert accepted(0.3, 0.5)
    zeros = trained(lambda x: 0.0, 0.5)
    assert not judged(TRAINED, [zeros], Effect.NUMERICS).accepted


@pytest.mark.parametrize("what", ["draws", "moved"])
def test_evaluations_must_not_run_in_training_mode(what: str) -> None:
    plain = [trial(moved=False), trial(moved=False)]
    candidate = trial(**{"moved": False, what: True})  # type: ignore[arg-type]
    verdict = judged(plain, [candidate], Effect.NUMERICS)
    assert any("in calls without gradients" in reason for reason in verdict.reasons)
    assert judged([candidate, candidate], [candidate], Effect.NUMERICS).accepted


def with_a_large_one(part: float, of_the_large: float, seed: int) -> LaunchAudit:
    """Errors grow with the numbers, and one of them is a hundred times as large as the others."""

    def outputs(call: int) -> TensorFigures:
        draw = random.Random(call + seed)
        values = [1 + part * draw.choice((-1, 1)) for _ in range(63)]
        return figures(call, values=(*values, 100 * (1 + of_the_large)))

    plain = trial()
    return replace(
        plain,
        outputs=tuple(replace(e, outputs=(outputs(e.call),)) for e in plain.outputs),
    )


def test_the_error_of_a_single_large_number_decides_nothing() -> None:
    baselines = [with_a_large_one(0, 0, 0)] * 2
    reference = replace(with_a_large_one(0.01, 0.002, 0), rounded=True)

    def accepted(part: float, of_the_large: float) -> bool:
        candidate = with_a_large_one(part, of_the_large, 1000)
        return judged([*baselines, reference], [candidate], Effect.NUMERICS).accepted

    assert accepted(0.01, 0.01)
    assert not accepted(0.05, 0.05)
    assert not accepted(0.01, 0.3)


def test_one_call_may_be_as_far_off_as_the_worst_one_of_the_rounded_script() -> None:
    def once(part: float, number: int, rounded: bool = False) -> LaunchAudit:
        usual, far = trial(off_by(0.003, 7)), trial(off_by(part, 8))
        outputs = [(far if e.call == number else usual).outputs[e.call - 1] for e in usual.outputs]
        return replace(usual, outputs=tuple(outputs), rounded=rounded)

    reference = once(0.04, 3, rounded=True)
    assert judged([*BASELINES, reference], [once(0.06, 5)], Effect.NUMERICS).accepted
    assert not judged([*BASELINES, reference], [once(0.1, 5)], Effect.NUMERICS).accepted


def test_the_rounded_trial_runs_through_the_calls_that_are_looked_at() -> None:
    rule = StopRule(min_steps=64, min_seconds=9, max_steps=999, warmup_steps=4, audit_steps=8)
    assert rounding_rule(rule, BASELINES).max_steps > OUTPUT_CALLS
    training = replace(BASELINES[0], outputs=(), forward_only=False)
    assert rounding_rule(rule, [training]).max_steps == 9
    assert rounding_rule(rule, TRAINED) == rule
    late = trial(trained=1200)
    assert rounding_rule(rule, [late]).min_steps == 1201


def test_a_few_calls_of_many_are_no_comparison() -> None:
    whole = trial()
    few = replace(whole, outputs=whole.outputs[: CALLS // 4])
    pipeline = judged(BASELINES, [few], Effect.PIPELINE)
    assert pipeline.compared == ()
    told = f"gpurun could compare only {CALLS // 4} of {CALLS} calls"
    assert pipeline.outputs_not_compared == told
    assert not judged(BASELINES, [few], Effect.NUMERICS).accepted


def test_calls_take_turns_so_that_each_row_of_a_long_output_is_looked_at() -> None:
    rows, columns = 4096, 10
    seen = {
        place // columns
        for turn in range(ROTATIONS)
        for place in places((rows, columns), MOST_VALUES, turn)
    }
    alone = {place // columns for place in places((rows, columns), MOST_VALUES)}
    assert len(alone) < 0.3 * rows
    assert len(seen) > 0.98 * rows


def test_whole_numbers_that_sampling_passed_over_show_in_their_sum() -> None:
    def returning(total: float) -> LaunchAudit:
        whole = figures(1, dtype="int64", norm=total, largest=())
        return trial(outputs=(whole,))

    same = [returning(4096.0), returning(4096.0)]
    assert judged(same, [returning(4096.0)], Effect.PIPELINE).accepted
    verdict = judged(same, [returning(4090.0)], Effect.PIPELINE)
    assert "adds up to 4090 instead of 4096" in verdict.reasons[0]


def test_a_tensor_that_cannot_be_read_is_not_called_the_same() -> None:
    unread = trial(outputs=(figures(1, values=(), dtype="quint4x2"),))
    verdict = judged([unread, unread], [unread], Effect.PIPELINE)
    assert verdict.compared == ()
    assert "cannot be read" in (verdict.outputs_not_compared or "")
    assert not judged([unread, unread], [unread], Effect.NUMERICS).accepted
