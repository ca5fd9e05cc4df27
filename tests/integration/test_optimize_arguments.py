"""Arguments of the script that the user asks to tune: tried, judged by effect, carried, applied."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.tunings import configure, lines, report_of

pytestmark = [pytest.mark.slow, pytest.mark.forked]

SCRIPT = """
import sys, time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
mode, *words = sys.argv[1:]
given = dict(zip(words[::2], words[1::2]))
pause = float(given["--pause"]) * (4 if mode == "slow" else 1)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=float(given.get("--lr", "0.1")))
for step in range(80):
    time.sleep(pause)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    loss = torch.nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 0, 1]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sys.argv[1:])
"""
ASKED = ("fast", "--lr", "@tune:0.1,0.2", "--pause", "@tune[pipeline]:0.02,0.05,0.01,none")


def tune(folder: Path, gpurun: Gpurun, *words: str) -> tuple[dict[str, Any], list[str], str]:
    """A tuning with its training: the report, what was said, and what the script printed."""
    (folder / "train.py").write_text(SCRIPT)
    done = gpurun("--optimize", *words, cwd=folder, timeout=800)
    return report_of(folder), lines(done), done.stdout.decode()


def test_an_argument_is_tuned_trained_with_and_carried(tmp_path: Path, gpurun: Gpurun) -> None:
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 6\nbudget = '10m'")
    flags = ("--save-settings", "kept.json", "train.py")
    report, said, printed = tune(tmp_path, gpurun, *flags, *ASKED)
    assert report["verdict"] == "faster", said
    assert report["chosen"]["knobs"] == {"--pause": "0.01"}
    assert report["command"] == ["train.py", *ASKED]
    rows = {change: row for row in report["ladder"] for change in row["changes"].items()}
    assert rows["--pause", "0.01"]["kept"]
    assert rows["--pause", "0.01"]["effect"] == "pipeline"
    assert rows["--pause", "0.05"]["reason"].startswith("no gain")
    assert "could not convert string to float" in rows["--pause", "none"]["reason"]
    assert ("--lr", "0.2") not in rows
    assert any(x.startswith("--lr: not tried (training changes not") for x in report["decisions"])
    assert not any("not tried" in line for line in said)
    assert printed == "['fast', '--lr', '0.1', '--pause', '0.01']\n"

    (again,) = [line for line in said if "with these settings, without trials: " in line]
    assert again.endswith(f"train.py fast --lr @tune:0.1,0.2 --pause '{ASKED[-1]}'")
    tuned = gpurun("--tuned", "train.py", *ASKED, cwd=tmp_path)
    assert tuned.stdout.decode() == printed
    assert b"applied --pause" in tuned.stderr
    # kept settings know the effect of each: this one needs no consent
    kept = gpurun("--settings", "kept.json", "train.py", "slow", "--pause", "1", cwd=tmp_path)
    assert kept.stdout == b"['slow', '--pause', '0.01']\n"


def test_a_training_argument_is_applied_by_consent_only(tmp_path: Path, gpurun: Gpurun) -> None:
    configure(tmp_path, "allow = ['training']\nmax_trials = 4\nbudget = '10m'")
    words = ("--save-settings", "kept.json", "train.py", "@tune:slow,fast", "--pause", "0.01")
    report, said, printed = tune(tmp_path, gpurun, *words)
    assert report["chosen"]["knobs"] == {"argument 1": "fast"}, said
    assert any(line.endswith("changes training (argument 1)") for line in said)
    assert printed == "['fast', '--pause', '0.01']\n"
    (tmp_path / "gpurun.toml").unlink()
    refused = gpurun("--settings", "kept.json", "train.py", "slow", "--pause", "0", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"argument 1 is a training change, which is not allowed" in refused.stderr


def test_settings_written_by_hand_set_an_argument(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    (tmp_path / "mine.json").write_text(json.dumps({"settings": {"--lr": "0.2", "depth=": "3"}}))
    flags = ("--allow", "training", "--settings", "mine.json", "train.py")
    done = gpurun(*flags, "--lr=0.1", "x", "depth=2")
    assert done.stdout == b"['--lr=0.2', 'x', 'depth=3']\n", done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("train.py", "@tune:1,2"), b"gpurun: argument 1: @tune:1,2 needs --optimize"),
        (("--optimize", "train.py", "--lr", "@tune:1"), b"gpurun: --lr: @tune:1 has one value"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(
    tmp_path: Path, gpurun: Gpurun, words: tuple[str, ...], what: bytes
) -> None:
    (tmp_path / "train.py").write_text("print('ran')\n")
    done = gpurun(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(what)
    assert done.stderr.endswith(b"verdict=error exit=2\n")
    assert not (tmp_path / ".gpurun").exists()
