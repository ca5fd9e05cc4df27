"""The judge of a tuning: it learns once what rounding alone does, where that decides."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gpurun.knobs.api import Effect
from gpurun.records.messages.training_events import OutputsEvent
from gpurun.records.tuning import TrialPurpose
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import REPEATS, ROUNDING, SEEDS, STILL
from gpurun.same.sameness_table import Kind
from gpurun.same.verdict import Sameness
from gpurun.same.verdict import judge as compared
from gpurun.tuner import training_judge
from gpurun.tuner.phases import Phases
from gpurun.tuner.training_judge import HIDDEN, AuditLaunches, TrainingJudge
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.same_launches import verdict
from tests.unit.tuner_trials import judge_of, trial

SHOWN = trial(100.0).evidence


def shows_what_is_asked(asked: list[TrialRequest]) -> Callable[[TrialRequest], Trial]:
    """A launch that notes what is asked, and shows the script as it is under that seed."""

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        assert SHOWN is not None
        shown = replace(SHOWN, seed=request.seed_offset, rounded=request.rounded)
        return replace(trial(100.0), evidence=shown)

    return launch


@pytest.fixture
def needs_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard that accepts nothing before it has seen a trial that only rounds."""

    def judge(baselines: Sequence[LaunchAudit], _: object, effect: Effect) -> Sameness:
        rounds = effect is Effect.NUMERICS
        return verdict(any(b.rounded for b in baselines), ROUNDING if rounds else "")

    monkeypatch.setattr(training_judge, "judge", judge)


@pytest.mark.usefixtures("needs_rounding")
def test_the_proof_asks_what_rounding_does_too_if_screening_had_no_need() -> None:
    """Seen on a GPU: another algorithm of a convolution was off a little under one seed of two."""
    asked: list[TrialRequest] = []
    launch = shows_what_is_asked(asked)
    assert SHOWN is not None
    judge = judge_of(SHOWN, launch=launch)
    for _ in range(2):
        assert judge.judge([SHOWN, SHOWN], Effect.NUMERICS, repeats=[SHOWN]).accepted
    assert [request.rounded for request in asked] == [True]


def test_it_asks_again_where_a_pair_evaluates_after_more_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seen with an LSTM: the search's trials were over before the first evaluation."""
    monkeypatch.setattr(training_judge, "judge", lambda *_: verdict(False, ROUNDING))
    asked: list[TrialRequest] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        return replace(trial(100.0), evidence=replace(SHOWN, rounded=True))

    assert SHOWN is not None
    output = OutputsEvent(
        call=1, trained=178, module="Net", inputs=(), outputs=(), structure="*", draws=False,
        overwritten=False,
    )  # fmt: skip
    judge = judge_of(SHOWN, launch=launch)
    judge.judge([SHOWN], Effect.NUMERICS)
    for _ in range(2):
        judge.judge([SHOWN], Effect.NUMERICS, repeats=[replace(SHOWN, seed=1, outputs=(output,))])
    assert len(asked) == 2
    assert asked[0].stop.max_steps < 178 < asked[1].stop.min_steps
    assert [request.seed_offset for request in asked] == [0, 1]
    assert len([b for b in judge.baselines if b.rounded]) == 1


def test_a_loss_that_drifts_away_asks_for_rounding_as_long_as_its_curve() -> None:
    """Seen with a trainer: bfloat16 and rounded parameters alike moved the loss by a tenth."""
    steps = 200
    straight = LaunchAudit(seed=0, losses=(1.0,) * steps, microbatches=(1,) * steps)
    drifting = replace(straight, losses=tuple(1 + 0.1 * n / steps for n in range(steps)))
    short = replace(straight, losses=(1.0,) * 40, microbatches=(1,) * 40)
    asked: list[TrialRequest] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        return replace(trial(100.0), evidence=replace(drifting, rounded=True))

    judge = judge_of(short, launch=launch)
    candidates = [drifting, replace(drifting, seed=1)]
    repeats = [straight, replace(straight, seed=1)]
    assert judge.judge(candidates, Effect.NUMERICS, repeats).accepted
    (request,) = asked
    assert request.rounded
    assert request.stop.min_steps == steps
    assert not judge.judge(candidates, Effect.PIPELINE, repeats).accepted


@pytest.mark.parametrize(
    ("moves", "changed", "asked", "accepted"),
    [
        ((0.02, 0.01, 0.05), 0.08, [0, 1, 2], True),
        ((0.02, 0.05, 0.05), 0.08, [0, 1], True),
        ((0.02, 0.01, 0.03), 0.08, [0, 1, 2], False),
        ((0.005, 0.05), 0.08, [0], False),
        ((0.02,), 0.2, [], False),
    ],
    ids=["the third", "the second", "none", "rounding moves nothing", "much too far"],
)
def test_where_rounding_moves_a_loss_far_further_draws_of_it_are_asked(
    moves: tuple[float, ...], changed: float, asked: list[int], accepted: bool
) -> None:
    """Draws of a U-Net's rounding moved its loss by 0.5 to 4.5 % in 150 steps."""
    plain = LaunchAudit(seed=0, losses=(1.0,) * 80, microbatches=(1,) * 80)

    def drifting(move: float) -> LaunchAudit:  # the last part of the curve is off by as much
        return replace(plain, losses=tuple(1 + move * n / 69.5 for n in range(80)))

    drawn: list[int] = []

    def launch(request: TrialRequest) -> Trial:
        drawn.append(request.rounding_draw)
        return replace(
            trial(100.0), evidence=replace(drifting(moves[len(drawn) - 1]), rounded=True)
        )

    judge = judge_of(plain, plain, launch=launch)
    assert judge.judge([drifting(changed)], Effect.NUMERICS).accepted is accepted
    assert drawn == asked
    assert judge.judge([drifting(changed)], Effect.NUMERICS).accepted is accepted
    assert drawn == asked, "they are known"


def test_a_loss_that_scatters_is_not_put_down_to_further_draws() -> None:
    """Rounding moves nothing here; the scatter of the steps alone allows 3.5 %."""
    dice = random.Random(0)
    plain = LaunchAudit(seed=0, losses=(1.0,) * 80, microbatches=(1,) * 80)
    losses = tuple(1.1 + dice.gauss(0, 0.05) for _ in range(80))
    drawn: list[int] = []

    def launch(request: TrialRequest) -> Trial:
        drawn.append(request.rounding_draw)
        return replace(trial(100.0), evidence=replace(plain, rounded=True))

    judge = judge_of(plain, plain, launch=launch)
    assert not judge.judge([replace(plain, losses=losses)], Effect.NUMERICS).accepted
    assert drawn == [0]


def test_a_draw_that_goes_astray_excuses_nothing_whatever_the_others_do() -> None:
    plain = LaunchAudit(seed=0, losses=(1.0,) * 80, microbatches=(1,) * 80)

    def off(move: float) -> LaunchAudit:
        return replace(plain, losses=(1 + move,) * 80)

    def judged(*draws: float) -> Sameness:
        rounded = [replace(off(one), rounded=True) for one in draws]
        return compared([plain, plain, *rounded], [off(0.08)], Effect.NUMERICS)

    assert judged(0.03).failing == {Kind.CURVE}
    assert judged(0.03, 0.05, 0.01).same
    astray = judged(0.03, 0.2, 0.05)
    assert not astray.failing
    assert "loss curve not compared: off by 20.0% from rounding alone" in astray.reasons[0]


def test_no_further_draw_is_asked_without_time_for_it() -> None:
    asked: list[TrialRequest] = []
    launch = shows_what_is_asked(asked)
    launches = AuditLaunches(launch, lambda _: None, {}, PROBE, Phases(0.0, 1e-9))
    assert not launches.rounded([SHOWN], 0, 1)
    assert launches.rounded([SHOWN], 0, 0)
    assert len(asked) == 1


def test_a_trial_that_only_rounds_and_is_cut_short_does_not_replace_a_longer_one() -> None:
    lengths = iter((200, 30))

    def launch(request: TrialRequest) -> Trial:
        steps = next(lengths)
        shown = LaunchAudit(seed=0, losses=(1.0,) * steps, microbatches=(1,) * steps, rounded=True)
        return replace(trial(100.0), evidence=shown)

    judge = judge_of(SHOWN, launch=launch)
    assert judge.learn_rounding(curve_steps=200)
    assert not judge.learn_rounding(curve_steps=260)
    assert [len(b.losses) for b in judge.baselines if b.rounded] == [200]


@pytest.mark.usefixtures("needs_rounding")
def test_a_trial_that_only_rounds_and_fails_is_not_repeated() -> None:
    asked: list[TrialRequest] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        return replace(trial(None), evidence=None)

    assert SHOWN is not None
    judge = judge_of(SHOWN, launch=launch)
    for _ in range(2):
        assert not judge.judge([SHOWN], Effect.NUMERICS).accepted
    assert len(asked) == 1


@pytest.mark.usefixtures("needs_rounding")
def test_a_change_of_the_pipeline_never_rounds() -> None:
    assert SHOWN is not None
    assert not judge_of(SHOWN).judge([SHOWN], Effect.PIPELINE).accepted


@pytest.mark.parametrize(("room", "launched"), [(8.1, [1, 2]), (7.9, [])])
def test_other_seeds_are_asked_once_if_other_draws_may_explain_a_loss(
    monkeypatch: pytest.MonkeyPatch, room: float, launched: list[int]
) -> None:
    def judged(baselines: Sequence[LaunchAudit], _: object, effect: Effect) -> Sameness:
        return verdict(len({b.seed for b in baselines}) == 3, SEEDS)

    monkeypatch.setattr(training_judge, "judge", judged)
    asked: list[TrialRequest] = []
    launch = shows_what_is_asked(asked)
    assert SHOWN is not None
    judge = judge_of(SHOWN, launch=launch, base={"a": 1}, room=room)
    for _ in range(2):
        assert judge.judge([SHOWN], Effect.PIPELINE).accepted is bool(launched)
    assert [request.seed_offset for request in asked] == launched
    assert all(request.settings == {"a": 1} for request in asked)
    assert [b.seed for b in judge.baselines] == [0, *launched]


def test_repeats_that_differ_are_launched_three_times() -> None:
    """Two say little of how far repeats are apart; a change of rounding is not called the same."""
    plain = LaunchAudit(seed=0, losses=(1.0,) * 80, microbatches=(1,) * 80)

    def off(move: float) -> LaunchAudit:
        return replace(plain, losses=(1 + move,) * 80)

    asked: list[TrialRequest] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        return replace(trial(100.0), evidence=off(0.01))

    def judge(*known: LaunchAudit) -> TrainingJudge:
        return judge_of(*known, launch=launch, base={"a": 1})

    two, three = judge(plain, off(0.03)), judge(plain, off(0.03), off(0.02))
    for known, launched in ((three, []), (two, [TrialPurpose.REPEAT])):
        assert known.judge([off(0.05)], Effect.NUMERICS).accepted
        assert [request.purpose for request in asked] == launched
    assert not compared([plain, off(0.03)], [off(0.05)], Effect.NUMERICS).same
    assert compared([plain, off(0.03)], [off(0.05)], Effect.NUMERICS).missing == {REPEATS}
    assert compared([plain, off(0.03)], [off(0.05)], Effect.PIPELINE).same


def test_what_dropout_hides_is_launched_without_it_once_a_verdict_is_final(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[TrialRequest] = []
    hides = True

    def judged(known: Sequence[LaunchAudit], shown: Sequence[LaunchAudit], _: object) -> Sameness:
        seen = any(b.still for b in known) and any(c.still for c in shown)
        return Sameness((), (), frozenset() if seen and not hides else frozenset({STILL}))

    def launch(request: TrialRequest) -> Trial:
        asked.append(request)
        return replace(trial(100.0), evidence=replace(plain, still=request.still))

    plain = LaunchAudit(seed=0, losses=(1.0,) * 80, microbatches=(1,) * 80)
    monkeypatch.setattr(training_judge, "judge", judged)
    judge = judge_of(plain, launch=launch)
    assert judge.judge([plain], Effect.NUMERICS).accepted, "in the search"
    assert not asked
    found = judge.judge([plain], Effect.NUMERICS, (), {"tf32": True})
    assert found.reasons == (HIDDEN,)
    hides = False
    assert judge.judge([plain], Effect.NUMERICS, (), {"compile": "default"}).accepted
    assert [request.settings for request in asked] == [{}, {"tf32": True}, {"compile": "default"}]
    assert judge.judge([plain, plain], Effect.NUMERICS, (), {"compile": "default"}).accepted
    assert len(asked) == 3, "further launches of the same settings need no other"
    assert all(r.still and r.stop.max_steps == PROBE.audit_steps + 1 for r in asked)
