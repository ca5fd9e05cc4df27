"""What the pairs of a finalist say, and when they have said enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from gpurun.pairs.estimate import IN_TURN_SD, LIVE_SD, Reading
from gpurun.pairs.gain import look
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.proof.finalist import Finalist, proof_of, told
from tests.unit.tuner_trials import trial

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())
BROKEN = GuardVerdict(
    accepted=False, loss_deviation=0.3, noise=0.0, reasons=("the loss deviates by 30 %",)
)


def paired(*gains: float, error: float | None = 0.005) -> Finalist:
    """A finalist with these live pairs; `error` None: launched in turn."""
    found = Finalist("chosen", {"a": 1})
    for gain in gains:
        take(found, gain, error)
    return found


def take(finalist: Finalist, gain: float | None, error: float | None) -> None:
    finalist.paired(100.0, gain, error)


def test_live_pairs_are_judged_by_their_prior_and_their_own_errors() -> None:
    one = paired(1.3, 1.31)
    readings = [Reading(math.log(gain), 0.005, LIVE_SD) for gain in (1.3, 1.31)]
    assert one.look() == look(readings)
    proof = proof_of(one)
    assert proof is not None
    assert (proof.live, proof.errors) == (True, (0.005, 0.005))
    assert proof.speedup == pytest.approx(1.305, rel=0.01)


def test_a_pair_after_the_latest_look_is_in_none_of_its_figures() -> None:
    """The last row of the ladder shows the speedup of the look, and an interval of these pairs."""
    six = paired(*[1.3, 1.2] * 3)
    seven = paired(*[1.3, 1.2] * 3, 3.0)
    assert six.estimate() == seven.estimate()
    assert math.exp(seven.estimate().log) == pytest.approx(seven.look().speedup)


def test_launches_in_turn_have_their_own_prior() -> None:
    one = paired(3.0, 3.1, error=None)
    assert one.look() == look([Reading(math.log(gain), 0.0, IN_TURN_SD) for gain in (3.0, 3.1)])
    proof = proof_of(one)
    assert proof is not None
    assert (proof.live, proof.errors) == (False, ())


def test_one_pair_is_told_by_its_gain_and_claims_nothing() -> None:
    one = paired(3.0)
    assert told(one) == "chosen: ×3 in 1 pair"
    assert proof_of(one) is None
    two = told(paired(1.3, 1.31))
    assert two.startswith("chosen: ×1.3 (1.")
    assert two.endswith(") after 2 pairs, settled")


@pytest.mark.parametrize(("gains", "over"), [((1.0, 1.01, 0.99), True), ((1.2, 0.8, 1.0), False)])
def test_pairs_without_a_gain_end_the_proof_unless_they_leave_room_for_one(
    gains: Sequence[float], over: bool
) -> None:
    one = paired(*gains)
    assert one.done is over


def test_live_pairs_and_launches_in_turn_count_together_each_by_its_kind() -> None:
    one = paired(1.04, 1.05)
    take(one, 1.06, None)
    kinds = [(1.04, 0.005, LIVE_SD), (1.05, 0.005, LIVE_SD), (1.06, 0.0, IN_TURN_SD)]
    assert one.look() == look([Reading(math.log(gain), *rest) for gain, *rest in kinds])
    assert not one.live


def test_a_pair_without_a_gain_counts_for_nothing() -> None:
    one = paired(1.04)
    take(one, None, None)
    assert len(one.pairs) == 1


def test_a_launch_that_fails_puts_it_out_with_the_reason() -> None:
    one = paired()
    assert one.launched(trial(120.0))
    assert not one.launched(trial(None, reason="out of memory"))
    assert (one.failure, one.done, one.rates) == ("out of memory", True, [120.0])


# -- what may be claimed ---------------------------------------------------------------------------


def test_a_proven_and_accepted_finalist_wins() -> None:
    one = paired(2.0, 2.01)
    assert one.verdict == "no_gain", "it was not judged"
    one.guard = SOUND
    assert one.verdict == "faster"


@pytest.mark.parametrize(
    ("gains", "guard", "failure", "verdict", "reason"),
    [
        ((2.0, 2.01), BROKEN, None, "no_gain",
         "rejected by the loss guard: the loss deviates by 30 %"),
        ((2.0, 2.01), SOUND, "out of memory", "no_gain", "out of memory"),
        ((1.2, 1.5), SOUND, None, "inconclusive", "not proven: the budget ended first"),
        ((1.0, 1.0, 1.0), SOUND, None, "no_gain", "the proof does not confirm it"),
    ],
)  # fmt: skip
def test_what_does_not_win_has_its_own_reason(
    gains: Sequence[float], guard: GuardVerdict, failure: str | None, verdict: str, reason: str
) -> None:
    one = paired(*gains, error=None)
    one.guard, one.failure = guard, failure
    assert (one.verdict, one.objection) == (verdict, reason)
