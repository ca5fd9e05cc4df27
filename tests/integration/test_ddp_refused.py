"""`--ddp` trains what one process trains, or refuses before anything trains.

The scripts are a few of those that `scripts/ddp_losses.py` and `scripts/ddp_refusals.py` try.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import ddp_loss_cases, ddp_refusal_cases
from scripts.ddp_losses import SAME, alone, difference
from scripts.ddp_refusals import FAILED, REFUSED, verdict, write
from scripts.ddp_runs import Run, ddp, environment

ENVIRONMENT = environment("cpu")


def train(name: str, folder: Path, ranks: int) -> Run:
    """One of the losses under `--ddp`."""
    folder.mkdir()
    (folder / "train.py").write_text(ddp_loss_cases.CASES[name])
    return ddp(folder / "train.py", ranks, ENVIRONMENT)


@pytest.mark.slow  # quick twin: mp.spawn in test_ddp_verified.py
@pytest.mark.parametrize("name", ["mp_spawn", "accelerate"])
def test_what_ranks_cannot_train_is_refused_before_it_trains(tmp_path: Path, name: str) -> None:
    """With the line and the cure, and nowhere does gpurun say that the script failed."""
    case = ddp_refusal_cases.CASES[name]
    if case.needs:
        pytest.importorskip(case.needs)
    run = ddp(write(case, tmp_path / name), 2, ENVIRONMENT)
    assert verdict(case, run) == REFUSED, run.stderr


@pytest.mark.slow  # quick twin: `reshaped` in test_ddp_verified.py
@pytest.mark.parametrize("name", ["reshape_fails", "view_passes"])
def test_a_script_that_uses_its_batch_size_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """Whether a share of the batch fails in it or passes in silence."""
    run = ddp(write(ddp_refusal_cases.CASES[name], tmp_path / name), 2, ENVIRONMENT)
    assert run.refused, run.stderr
    assert not FAILED.search(run.stderr)


@pytest.mark.slow  # quick twin: the losses of test_hidden_ddp.py
@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("gan", 2),
        ("sum_by_16", 2),
        ("custom_sum", 3),
        ("vector_backward", 2),
        ("distance_beside_mean", 2),
        ("warmed_up_sum", 2),
    ],
)
def test_a_loss_that_reduces_over_samples_trains_as_in_one_process(
    tmp_path: Path, name: str, ranks: int
) -> None:
    one = alone(name, tmp_path / "1", None)
    run = train(name, tmp_path / "ranks", ranks)
    assert run.exit_code == 0, run.stderr
    assert run.steps == len((tmp_path / "1" / "steps.csv").read_text().splitlines())
    assert difference(tmp_path / "1" / "start.pt", one, tmp_path / "ranks" / "out.pt") <= SAME


@pytest.mark.slow  # quick twin: unit/test_ddp_rank_verdict.py
@pytest.mark.parametrize(
    "name",
    [
        "small_penalty_beside_sum",
        "distance_beside_sum",
        "warmed_up_mean_beside_sum",
        "auxiliary_from_step_2",
    ],
)
def test_a_loss_that_is_neither_mean_nor_sum_is_refused(tmp_path: Path, name: str) -> None:
    run = train(name, tmp_path / "ranks", 2)
    assert run.refused, run.stderr
    assert "--loss-reduction" in run.stderr
    assert not (tmp_path / "ranks" / "out.pt").exists()
