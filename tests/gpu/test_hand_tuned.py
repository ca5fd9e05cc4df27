"""The scripts tuned by hand train on a GPU what the scripts as written train there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_hand_tuned import GPT, last, losses, mean

pytestmark = pytest.mark.gpu

EXACT = ("--log-every", "1", "--precision", "fp32", "--no-tf32")
PICTURES = ("--batch-size", "4", "--samples", "48", "--epochs", "1")


@pytest.mark.parametrize("copies", ["--copy-ahead", "--no-copy-ahead"])
def test_batches_copied_ahead_are_those_of_the_script(copies: str, tmp_path: Path) -> None:
    words = (*GPT, "--steps", "51")
    written = losses("workloads", "gpt124m", tmp_path, *words, env={})[-1]
    by_hand = losses(
        "hand_tuned", "gpt124m", tmp_path, *words, *EXACT, "--mode", "off", copies, env={}
    )
    assert last(by_hand) == pytest.approx(written, abs=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_and_from_bytes_it_trains_alike(mode: str, tmp_path: Path) -> None:
    written = losses("workloads", "simplenet", tmp_path, *PICTURES, env={})[-1]
    by_hand = losses(
        "hand_tuned",
        "simplenet",
        tmp_path,
        *PICTURES,
        *EXACT,
        "--mode",
        mode,
        "--workers",
        "2",
        env={},
    )
    assert mean(by_hand) == pytest.approx(written, abs=2e-2)


@pytest.mark.slow
def test_everything_at_once_runs_and_learns(tmp_path: Path) -> None:
    words = (*GPT, "--heads", "2", "--steps", "200", "--words", "5000", "--log-every", "20")
    by_hand = losses("hand_tuned", "mingpt", tmp_path, *words, env={})
    assert by_hand[-1] < 0.98 * by_hand[0]
