"""More tunings of an H200: graphs among the first changes, a larger batch, exploding gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.knobs.api import Effect
from gpurun.records.tuning import PAIR_SIDES, Proof, TrialPurpose
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import ROUNDING
from gpurun.same.sameness_table import Kind
from gpurun.same.verdict import judge
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.tuning_trial import Trial
from tests.recordings import assert_close, unpacked
from tests.unit.recorded_tunings import concluded, report_of


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("gpt124m_tuning", tmp_path_factory.mktemp("gpt"))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> list[LaunchAudit]:
    """What the first four trials showed: as it is twice, all at once, parameters rounded."""
    recorded = unpacked("resnet50_tuning", tmp_path_factory.mktemp("resnet"))
    told = report_of(recorded)
    assert [t.purpose.value for t in told.trials[:4]] == ["probe", "screen", "screen", "rounding"]
    shown = [trial.evidence for trial in concluded(recorded, told)[:4]]
    return [evidence for evidence in shown if evidence is not None]


def test_one_trial_of_all_likely_changes_found_what_was_proven(gpt: Path) -> None:
    told = report_of(gpt)
    trials = concluded(gpt, told)
    assert told.chosen is not None
    assert told.proof is not None
    searched = [t for t in trials if t.record.purpose is TrialPurpose.SCREEN and t.record.knobs]
    assert searched[0].record.knobs == told.chosen.knobs
    left_out = [len(searched[0].record.knobs) - len(t.record.knobs) for t in searched[1:]]
    assert left_out == [1] * len(left_out), "then only what each of the set is worth"
    assert proven_again(told.chosen.knobs, trials, told.proof) > 9.0


def proven_again(knobs: dict[str, Any], trials: list[Trial], proof: Proof) -> float:
    """The speedup of these settings, from the launches of the proof alone."""
    paired = [t for t in trials if t.record.purpose in PAIR_SIDES]
    sides = [[t.throughput for t in paired if t.record.knobs == side] for side in ({}, knobs)]
    pairs = [(ours, theirs) for ours, theirs in zip(*sides, strict=True) if ours and theirs]
    assert pairs == [tuple(pair) for pair in proof.pairs]
    again = Finalist("again", knobs, pairs=pairs).look()
    assert again.significant
    assert again.speedup is not None
    assert_close(again.speedup, proof.speedup)
    assert again.interval is not None
    assert again.interval[0] > 0.8 * again.speedup, "two pairs say it within about 20 %"
    return again.speedup


def test_by_consent_a_larger_batch_was_proven_beside_the_same_training(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Four times the batch, through the script's own flag, is what it was told to train with."""
    recorded = unpacked("gpt124m_larger_batch", tmp_path_factory.mktemp("larger"))
    told = report_of(recorded)
    trials = concluded(recorded, told)
    larger = told.larger_batch
    assert larger is not None
    assert larger.proof is not None
    assert told.chosen is not None
    assert told.chosen.knobs == larger.knobs
    batch = larger.knobs["batch_size"]
    assert (batch["batch_size"], batch["from"], batch["via"]) == (32, 8, "--batch-size")
    assert proven_again(larger.knobs, trials, larger.proof) > 10.0
    same = {name: value for name, value in larger.knobs.items() if name != "batch_size"}
    rates = [t.throughput for t in trials if t.record.knobs == same and t.throughput]
    assert max(rates) < (larger.samples_per_second or 0.0)
    sizes = {t.result.batch_size for t in trials if t.result and t.record.knobs == larger.knobs}
    assert sizes == {32.0}


def test_the_guard_accepts_the_recorded_training_in_bfloat16(gpt: Path) -> None:
    told = report_of(gpt)
    shown = [(t.record.purpose, t.evidence) for t in concluded(gpt, told)]
    plain = [
        e
        for purpose, e in shown
        if e and purpose in (TrialPurpose.PROBE, TrialPurpose.PAIR_BASELINE)
    ]
    chosen = [e for purpose, e in shown if e and purpose is TrialPurpose.PAIR_CANDIDATE]
    assert judge(plain, chosen, Effect.NUMERICS).same


def test_exploding_gradients_pass_where_rounding_alone_turns_them(
    resnet: list[LaunchAudit],
) -> None:
    first, second, candidate, rounded = resnet
    assert rounded.rounded
    without = judge([first, second], [candidate], Effect.NUMERICS)
    assert Kind.DIRECTIONS in without.failing
    assert ROUNDING in without.missing
    verdict = judge([first, second, rounded], [candidate], Effect.NUMERICS)
    assert verdict.same, verdict.reasons


def test_but_not_where_they_are_wrong_near_the_loss(resnet: list[LaunchAudit]) -> None:
    first, second, candidate, rounded = resnet
    audit = candidate.audits[0]
    turned = replace(audit, gradient_values=tuple(-x for x in audit.gradient_values))
    wrong = replace(candidate, audits=(turned, *candidate.audits[1:]))
    verdict = judge([first, second, rounded], [wrong], Effect.NUMERICS)
    assert any("point elsewhere in step 1 (cosine -1.00)" in reason for reason in verdict.reasons)


def test_a_script_that_did_not_fit_was_made_to_fit_at_its_own_batch(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """72 sequences of GPT-124M: 126 GiB were not enough, and half of that was."""
    recorded = unpacked("gpt124m_out_of_memory", tmp_path_factory.mktemp("memory"))
    told = report_of(recorded)
    assert told.verdict == "fits"
    assert told.chosen is not None
    assert dict(told.chosen.knobs) == {"checkpointing": "blocks"}
    as_it_is, fitted, *others = concluded(recorded, told)
    assert (as_it_is.record.knobs, as_it_is.record.status) == ({}, "oom")
    assert "CUDA out of memory" in as_it_is.record.reason
    for trial in (fitted, *others):
        assert trial.record.status == "stopped"
        assert trial.record.knobs["checkpointing"] == "blocks"
        assert trial.result is not None
        assert trial.result.batch_size == 72.0
    most, together = fitted.record.peak_memory_bytes or 0, others[1].record.peak_memory_bytes or 0
    assert together < most < 70 * 2**30
    assert (others[1].throughput or 0) > 10 * (fitted.throughput or 0)
