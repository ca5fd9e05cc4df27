"""What is made of a proof: settings that the guard rejects leave, the rest is proven again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.proof.final_selection import FinalSelection
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.training_judge import TrainingJudge
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from tests.unit.tuner_runs import BATCH_64, Rates, StandIn, steady, tuning_of

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())
BROKEN = GuardVerdict(accepted=False, loss_deviation=0.3, noise=0.0, reasons=("the loss is off",))
WORKERS = {"loader_workers": 4}


@dataclass
class Proven:
    """A proof that is over, and the selection that made it."""

    found: TuningFindings
    selection: FinalSelection

    @property
    def chosen(self) -> Mapping[str, Any]:
        assert self.found.chosen is not None
        return self.found.chosen.settings


def proven(
    monkeypatch: pytest.MonkeyPatch,
    rates: Rates,
    settings: dict[str, Any],
    batch: dict[str, Any] | None = None,
    *,
    rejected: str = "",
    seconds: float = 1e6,
) -> Proven:
    """The proof of `settings` (and `batch` on top); the guard rejects the knob `rejected`."""

    def judge(_: Any, candidates: Any, *others: Any) -> GuardVerdict:
        return BROKEN if rejected and any(rejected in one for one in candidates) else SOUND

    monkeypatch.setattr(TrainingJudge, "judge", judge)
    tuning, state = tuning_of(StandIn(rates, shows=True), seconds=seconds)
    state.settings = settings
    selection = FinalSelection(
        tuning.findings, state.judge, tuning._effect_of, tuning._prove, tuning._note
    )
    selection.settle(state)
    if batch is not None:
        side = state.branch()
        side.settings["batch_size"] = batch
        selection.settle_larger(side)
    return Proven(tuning.findings, selection)


def test_rejected_numerics_leave_and_the_pipeline_changes_are_proven_by_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = proven(
        monkeypatch,
        steady(loader_workers=2.0, autocast=1.5),
        {**WORKERS, "autocast": "bf16"},
        rejected="autocast",
    )
    assert done.found.verdict == "faster"
    assert done.chosen == WORKERS
    assert done.found.left_out == {"autocast": "bf16"}
    assert "the loss is off" in done.found.objections["autocast"]
    assert done.found.rejections[0].knobs == {**WORKERS, "autocast": "bf16"}


def test_by_consent_the_batch_size_is_chosen_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    rates, both = steady(loader_workers=2.0, batch_size=1.5), {**WORKERS, "batch_size": BATCH_64}
    done = proven(monkeypatch, rates, both)
    assert done.found.verdict == "faster"
    assert done.chosen == both
    assert done.found.larger is done.found.chosen


def test_what_changes_the_training_is_the_first_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """By consent: what was rejected with it is proven without it before the rest goes, too."""
    same = {**WORKERS, "autocast": "bf16"}
    rates = steady(loader_workers=2.0, autocast=1.5, batch_size=1.5)
    both = {**same, "batch_size": BATCH_64}
    done = proven(monkeypatch, rates, both, rejected="batch_size")
    assert done.chosen == same
    assert done.found.objections == {"batch_size": "rejected by the loss guard: the loss is off"}
    assert done.found.larger is None


def test_a_rejected_finalist_with_nothing_to_save_leaves_the_script_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = proven(monkeypatch, steady(autocast=2.0), {"autocast": "bf16"}, rejected="autocast")
    assert done.found.verdict == "no_gain"
    assert done.found.left_out == {"autocast": "bf16"}
    assert "loss guard" in done.found.objections["autocast"]


@pytest.mark.parametrize("rejected", ["", "loader_workers"])
def test_pairs_that_narrow_a_proof_are_judged_like_those_before_them(
    monkeypatch: pytest.MonkeyPatch, rejected: str
) -> None:
    done = proven(monkeypatch, steady(loader_workers=2.0), WORKERS)
    found = done.found
    asked: list[str] = []

    def further(finalist: Finalist, rungs: bool) -> Finalist:
        assert not rungs
        assert finalist.against is not None
        finalist.paired(100.0, 2.0, None)
        return finalist.against

    def judge(*_: Any) -> GuardVerdict:
        asked.append(rejected)
        return BROKEN if rejected else SOUND

    monkeypatch.setattr(Finalist, "done", False)
    monkeypatch.setattr(TrainingJudge, "judge", judge)
    done.selection.prove = further
    done.selection.narrow()
    assert len(asked) == 1
    assert found.verdict == ("no_gain" if rejected else "faster")
    assert found.left_out == (WORKERS if rejected else {})


def test_where_further_pairs_are_rejected_the_pipeline_changes_are_proven_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = steady(loader_workers=2.0, autocast=1.5)
    done = proven(monkeypatch, rates, {**WORKERS, "autocast": "bf16"})
    assert done.found.verdict == "faster"
    wanted = done.selection.prove

    def further(finalist: Finalist, rungs: bool) -> Finalist:
        if finalist.against is None:
            return wanted(finalist, rungs)
        finalist.paired(100.0, 3.0, None)
        return finalist.against

    def judge(_: Any, candidates: Any, *others: Any) -> GuardVerdict:
        return BROKEN if any("autocast" in one for one in candidates) else SOUND

    monkeypatch.setattr(Finalist, "done", False)
    monkeypatch.setattr(TrainingJudge, "judge", judge)
    done.selection.prove = further
    done.selection.narrow()
    assert done.found.verdict == "faster"
    assert done.chosen == WORKERS
    assert done.found.left_out == {"autocast": "bf16"}
    assert "the loss is off" in done.found.objections["autocast"]


def test_a_proof_that_took_no_further_pair_is_not_judged_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = proven(monkeypatch, steady(loader_workers=2.0), WORKERS)
    monkeypatch.setattr(Finalist, "done", False)
    monkeypatch.setattr(TrainingJudge, "judge", lambda *_: pytest.fail("it was judged"))
    done.selection.prove = lambda finalist, rungs: finalist
    done.selection.narrow()
    assert done.found.verdict == "faster"


def test_a_baseline_that_fails_before_anything_is_proven_ends_the_tuning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rates(settings: Mapping[str, Any], number: int) -> float | None:
        return 200.0 if settings or not number else None

    with pytest.raises(TuningEnded) as ended:
        proven(monkeypatch, rates, WORKERS)
    assert ended.value.verdict == "script_failed"


@pytest.mark.parametrize(
    ("gain", "rejected", "note", "objections"),
    [
        (0.8, "", "batch_size 64: no faster in the proof", {}),
        (1.5, "batch_size", "", {"batch_size": "rejected by the loss guard: the loss is off"}),
    ],
)
def test_a_batch_that_is_no_find_says_why(
    monkeypatch: pytest.MonkeyPatch,
    gain: float,
    rejected: str,
    note: str,
    objections: dict[str, str],
) -> None:
    rates = steady(loader_workers=2.0, batch_size=gain)
    done = proven(monkeypatch, rates, WORKERS, BATCH_64, rejected=rejected)
    assert done.chosen == WORKERS
    assert done.found.objections == objections
    assert (note in done.found.decisions) is bool(note)
    larger = done.found.larger
    assert (larger is not None and larger.guard == BROKEN) is bool(rejected)


# -- a stage that loses in its rung ----------------------------------------------------------------

BOTH = {**WORKERS, "fused_optimizer": True}
FUSED = {"fused_optimizer": True}


def test_settings_that_lose_leave_if_the_rest_is_proven_to_be_no_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = proven(monkeypatch, steady(loader_workers=2.0, fused_optimizer=0.8), BOTH)
    baseline = done.found.baseline
    assert done.chosen == BOTH
    assert done.selection.without(FUSED, "it loses in its rung")
    assert done.chosen == WORKERS
    assert done.found.chosen is not None
    assert done.found.chosen.look().proven
    assert done.found.left_out == FUSED
    assert done.found.objections == {"fused_optimizer": "it loses in its rung"}
    assert done.found.baseline is not baseline, "its figures are of the same pairs"


def test_all_stay_if_the_rest_is_slower_or_there_is_no_time_to_prove_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = proven(monkeypatch, steady(loader_workers=2.0, fused_optimizer=1.3), BOTH)
    assert not done.selection.without(FUSED, "it loses in its rung")
    assert done.chosen == BOTH
    late = proven(monkeypatch, steady(loader_workers=2.0, fused_optimizer=0.8), BOTH)
    late.selection.prove = lambda finalist, rungs: Finalist("baseline", {})
    assert not late.selection.without(FUSED, "it loses in its rung")
    assert (late.chosen, late.found.left_out) == (BOTH, {})
    assert late.found.decisions[-1] == "there was no time: all stay"
