"""Scripts of accelerate, Lightning, the Hugging Face Trainer and FSDP: they run as they are."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Gpurun, unless_aborted

pytestmark = pytest.mark.forked

SCRIPT = Path(__file__).parent / "frameworks.py"
TWO = ("--standalone", "--nproc-per-node", "2")
PRINTED = re.compile(r"([a-z]+) (\d+) (\d+) (\d+\.\d{6})\n")


def told(output: bytes) -> set[tuple[str, int, int, float]]:
    """Framework, ranks as it sees them, steps, and sum of weights, of all that printed them."""
    found = PRINTED.findall(output.decode())
    return {(name, int(ranks), int(steps), float(total)) for name, ranks, steps, total in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(SCRIPT, tmp_path / "train.py")
    return tmp_path


def by_torchrun(folder: Path, name: str, environment: dict[str, str]) -> bytes:
    words = [sys.executable, "-m", "torch.distributed.run", *TWO, "train.py", name]
    done = unless_aborted(
        lambda: subprocess.run(words, cwd=folder, env=environment, capture_output=True),
        codes=(1, -signal.SIGABRT),  # torchrun itself fails with 1
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate", "transformers", "fsdp", "fabric_ranks"])
def test_it_trains_as_under_torchrun_with_and_without_ddp(
    folder: Path, gpurun: Gpurun, clean_environment: dict[str, str], name: str
) -> None:
    (expected,) = told(by_torchrun(folder, name, clean_environment))
    assert expected[1] == 2
    plain = gpurun(*TWO, "train.py", name, cwd=folder)
    hidden = gpurun("--ddp", "--nproc-per-node", "2", "train.py", name, cwd=folder)
    by_itself = name in ("fsdp", "fabric_ranks")
    for done in (plain, hidden)[: 2 if by_itself else 1]:
        assert done.returncode == 0, done.stderr.decode()
        (found,) = told(done.stdout)
        assert found[:3] == expected[:3]
        assert found[3] == pytest.approx(expected[3], rel=1e-5)
    if by_itself:
        assert b"the script is distributed by itself: run it without --ddp" in hidden.stderr
    else:
        assert b"verdict=refused exit=2" in hidden.stderr
        assert b"gpurun --nproc-per-node N without --ddp" in hidden.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lightning", "fabric"])
def test_one_that_takes_the_device_that_it_finds_is_made_to_train_on_two(
    folder: Path, gpurun: Gpurun, name: str
) -> None:
    """It sees one device on each rank, and knows of no other."""
    alone = gpurun("train.py", name, cwd=folder, env={"CUDA_VISIBLE_DEVICES": "0"})
    ranks = gpurun("--ddp", "--nproc-per-node", "2", "train.py", name, cwd=folder)
    assert (alone.returncode, ranks.returncode) == (0, 0), ranks.stderr.decode()
    (expected,), (found,) = told(alone.stdout), told(ranks.stdout)
    assert found[:3] == expected[:3]
    assert found[3] == pytest.approx(expected[3], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by", "said"),
    [
        ("accelerate", "train.py uses accelerate", "the script is distributed by itself"),
        ("lightning", None, "its ranks exchange nothing: gpurun makes them exchange gradients"),
    ],
)
def test_it_is_measured_on_one_and_two_devices(
    folder: Path, gpurun: Gpurun, name: str, by: str | None, said: str
) -> None:
    text = SCRIPT.read_text().replace("LENGTH, BATCH, EPOCHS = 256", "LENGTH, BATCH, EPOCHS = 8192")
    other = {"accelerate": "lightning", "lightning": "accelerate"}[name]
    (folder / "train.py").write_text(re.sub(rf"(from|import) {other}\b.*", "pass", text))
    flags = ("--rounds", "1", "--steps", "40", "--budget", "80s", "--json", "s.json")
    done = gpurun("--scale", "1,2", *flags, "train.py", name, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    assert said in done.stderr.decode()
    report = json.loads((folder / "s.json").read_text())
    assert report["distributed"] == by
    assert [point["gpus"] for point in report["points"]] == [1, 2]
    assert report["points"][1]["efficiency"] > 0
