"""The examples train, know nothing of gpurun and train alike under it; so does the guide's knob."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, Gpurun

pytestmark = pytest.mark.forked

EXAMPLES = REPOSITORY / "examples"

SHORT = {
    "slow_vision.py": ("--samples", "224", "--epochs", "4", "--image-size", "32", "--lr", "0.1"),
    "char_gpt.py": ("--steps", "101", "--block_size", "32", "--width", "64"),
    "tabular_mlp.py": ("--rows", "4096", "--width", "64", "-e", "3"),
}
"""Arguments with which each example runs for a few seconds."""

SAVED = {
    "slow_vision.py": "checkpoints/slow_vision.pt",
    "char_gpt.py": "char_gpt.pt",
    "tabular_mlp.py": "tabular_mlp.pt",
}

LOSS = {
    "slow_vision.py": r"mean loss ([\d.]+)",
    "char_gpt.py": r"loss ([\d.]+)",
    "tabular_mlp.py": r"train ([\d.]+)",
}


def losses(name: str, output: bytes) -> list[float]:
    return [float(value) for value in re.findall(LOSS[name], output.decode())]


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHORT)


@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_example_knows_nothing_of_gpurun(name: str) -> None:
    assert "gpurun" not in (EXAMPLES / name).read_text().lower()


@pytest.mark.parametrize(
    "name",
    [
        "tabular_mlp.py",
        pytest.param("char_gpt.py", marks=pytest.mark.slow),
        pytest.param("slow_vision.py", marks=pytest.mark.slow),
    ],
)
def test_an_example_learns_saves_and_trains_alike_under_gpurun(
    name: str, gpurun: Gpurun, tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    ours, bare = tmp_path / "ours", tmp_path / "bare"
    ours.mkdir()
    bare.mkdir()
    done = gpurun(EXAMPLES / name, *SHORT[name], cwd=ours)
    assert done.returncode == 0, done.stderr.decode()
    twin = subprocess.run(
        [sys.executable, EXAMPLES / name, *SHORT[name]],
        cwd=bare,
        env=clean_environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    seen = losses(name, done.stdout)
    assert seen[-1] < 0.9 * seen[0]
    assert seen == losses(name, twin.stdout)
    assert (ours / SAVED[name]).stat().st_size == (bare / SAVED[name]).stat().st_size


def test_the_knob_of_the_guide_works_as_a_users_own(gpurun: Gpurun, tmp_path: Path) -> None:
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    named = 'name: ClassVar[str] = "flush_denormal"'
    assert named in code
    (tmp_path / "knobs").mkdir()  # under another name: who follows the guide has one of that name
    copy = code.replace(named, 'name: ClassVar[str] = "copy_from_the_guide"')
    (tmp_path / "knobs" / "copy_from_the_guide.py").write_text(copy)
    (tmp_path / "gpurun.toml").write_text('knobs = ["knobs"]\n')
    (tmp_path / "train.py").write_text(
        "import torch\nprint(torch.tensor([1e-40]).mul(1.0).item() == 0.0)\n"
    )
    (tmp_path / "settings.json").write_text('{"settings": {"copy_from_the_guide": true}}')
    assert gpurun("train.py").stdout == b"False\n"
    done = gpurun("--settings", "settings.json", "--json", "result.json", "train.py")
    assert done.stdout == b"True\n", done.stderr.decode()
    knobs = json.loads((tmp_path / "result.json").read_bytes())["knobs"]
    assert [(k["knob"], k["outcome"]) for k in knobs] == [("copy_from_the_guide", "applied")]
