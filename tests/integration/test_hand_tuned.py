"""The scripts tuned by hand train what the scripts as written train: same model, same data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.forked import NURSERY

SCRIPTS = REPOSITORY / "scripts"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
GPT = ("--batch-size", "4", "--length", "16", "--layers", "1", "--width", "64")


def losses(
    folder: str, name: str, where: Path, *words: str, env: Mapping[str, str] = ON_CPU
) -> list[float]:
    """Every loss that a script of `scripts/` prints."""
    script = str(SCRIPTS / folder / f"{name}.py")
    done = NURSERY.run([script, *words], where, {**os.environ, **env})
    assert done.returncode == 0, done.stderr.decode()
    return [float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout.decode())]


def last(values: Sequence[float]) -> float:
    return values[-1]


def mean_of_100(values: Sequence[float]) -> float:
    return sum(values[-100:]) / 100


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(
    ("name", "words", "printed"),
    [
        pytest.param("gpt124m", (*GPT, "--steps", "51"), last, marks=pytest.mark.slow),
        (
            "mingpt",
            (*GPT, "--heads", "2", "--dropout", "0", "--words", "5000", "--steps", "101"),
            mean_of_100,
        ),
        pytest.param(
            *("simplenet", ("--batch-size", "2", "--samples", "12", "--epochs", "1"), mean),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_loss_goes_the_way_of_the_script_as_written(
    name: str, words: tuple[str, ...], printed: Callable[[Sequence[float]], float], tmp_path: Path
) -> None:
    written = losses("workloads", name, tmp_path, *words)[-1]
    by_hand = losses("hand_tuned", name, tmp_path, *words, "--log-every", "1")
    assert printed(by_hand) == pytest.approx(written, abs=2e-3)


@pytest.mark.parametrize("name", ["gpt124m", "mingpt", "resnet50", "simplenet"])
def test_a_workload_stands_by_itself_and_knows_nothing_of_gpurun(name: str) -> None:
    text = (SCRIPTS / "workloads" / f"{name}.py").read_text()
    assert "gpurun" not in text.lower()
    assert not re.search(r"import .*(recipe|workloads|hand_tuned)", text)
    assert f"workloads/{name}.py" in (SCRIPTS / "hand_tuned" / f"{name}.py").read_text()
