"""A run outlives the room for its record: the script goes on, and one line says what is lost."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.small_disk import on_a_small_disk
from tests.integration.tunings import training

ENDING = "print('trained')\nraise SystemExit(7)\n"


def incompleteness(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """The lines that say that something of the record is missing; a traceback of ours is a bug."""
    text = done.stderr.decode()
    assert "Traceback" not in text, text
    return [line for line in text.splitlines() if "record" in line and "record:" not in line]


def limited(
    folder: Path, environment: dict[str, str], limit_bytes: int, *words: str
) -> subprocess.CompletedProcess[bytes]:
    """gpurun and all of its children where no file may grow larger than that.

    No bytecode either: python keeps what it could write of it, and fails on that from then on.
    """
    return subprocess.run(
        [sys.executable, "-m", "gpurun", *words, "train.py"],
        cwd=folder,
        # neither bytecode nor coverage figures would get past the limit
        env={k: v for k, v in environment.items() if not k.startswith("COVERAGE_")}
        | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
        timeout=300,
        check=False,
    )


def recorded(folder: Path) -> dict[str, Any]:
    (result,) = folder.glob(".gpurun/runs/*/result.json")
    return dict(json.loads(result.read_text()))


def test_a_limit_on_file_sizes_ends_the_record_and_not_the_script(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(1000) + ENDING)
    done = limited(tmp_path, clean_environment, 8000)
    assert (done.stdout, done.returncode) == (b"trained\n", 7)
    assert incompleteness(done) == ["gpurun: note: the record is incomplete: File too large"]
    (events,) = tmp_path.glob(".gpurun/runs/*/events-*.jsonl")
    assert events.stat().st_size == 8000
    result = recorded(tmp_path)
    assert 0 < result["steps"] < 1000
    assert result["notes"][0] == "the record is incomplete: File too large"
    assert not any("torn" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("limit_bytes", "told"),
    [
        pytest.param(
            *(800, "gpurun: the record is incomplete: File too large"), marks=pytest.mark.slow
        ),
        (100, "gpurun: this run is not recorded: [Errno 27] File too large"),
    ],
)
def test_quiet_runs_too_say_what_is_not_recorded(
    tmp_path: Path, clean_environment: dict[str, str], limit_bytes: int, told: str
) -> None:
    (tmp_path / "train.py").write_text(training(100) + ENDING)
    done = limited(tmp_path, clean_environment, limit_bytes, "--quiet")
    assert (done.stdout, done.returncode) == (b"trained\n", 7)
    line, verdict = done.stderr.decode().splitlines()
    assert line == told
    assert verdict.startswith("verdict=failed exit=7")


@pytest.mark.parametrize("flag", ["--emergency-checkpoint", "--on-nonfinite=stop"])
def test_a_flag_that_lives_by_the_record_is_refused_without_one(
    tmp_path: Path, clean_environment: dict[str, str], flag: str
) -> None:
    """Better a refusal now than no checkpoint when the script dies."""
    (tmp_path / "train.py").write_text(ENDING)
    done = limited(tmp_path, clean_environment, 100, flag)
    assert (done.stdout, done.returncode) == (b"", 2)
    line = done.stderr.decode().splitlines()[0]
    assert line.startswith(f"gpurun: {flag.partition('=')[0]} needs a record of this run: ")


def test_a_script_without_torch_whose_result_finds_no_room_says_so(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    done = limited(tmp_path, clean_environment, 800)
    assert (done.stdout, done.returncode) == (b"trained\n", 7)
    assert incompleteness(done) == ["gpurun: the record is incomplete: File too large"]


# -- a disk that fills -----------------------------------------------------------------------------

FILLS = """
    left -= 1
    if left == 1:
        time.sleep(0.6)  # longer than the record may lag behind: what was until here is written
    if left == 0:
        try:
            open("ballast", "wb").write(bytes(1 << 20))
        except OSError:
            print("full")
"""


def test_a_disk_that_the_script_fills_ends_the_record_and_not_the_script(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    source = "left = 500\n" + training(1000).rstrip("\n") + FILLS + ENDING
    (tmp_path / "train.py").write_text(source)
    words = "-m gpurun --json /dev/fd/3 train.py"
    done = on_a_small_disk(tmp_path, clean_environment, f'"$0" {words} 3> ../result.json')
    assert (done.stdout, done.returncode) == (b"full\ntrained\n", 7), done.stderr.decode()
    (told,) = incompleteness(done)
    assert told.startswith("gpurun: note: the record is incomplete: ")
    result = json.loads((tmp_path / "result.json").read_text())
    assert 400 < result["steps"] < 1000
    assert result["samples_per_second"] > 0


PRINTS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(800, 4)), batch_size=8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    print("." * 8000)
"""


@pytest.mark.slow  # quick twin: a disk that the script fills, above
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_hidden_rank_whose_log_fills_the_disk_trains_on(
    tmp_path: Path, clean_environment: dict[str, str], unbuffered: str
) -> None:
    """Rank 0 prints to the terminal. Only gpurun writes the output of rank 1 to a file."""
    (tmp_path / "train.py").write_text(PRINTS + ENDING.splitlines()[0])
    flags = "--ddp --nproc-per-node 2 --loss-reduction mean --shared-writes"
    environment = clean_environment | {"PYTHONUNBUFFERED": unbuffered}
    done = on_a_small_disk(tmp_path, environment, f'"$0" -m gpurun {flags} train.py')
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == ["." * 8000] * 100 + ["trained"]
    (told,) = incompleteness(done)
    assert told.startswith("gpurun: note: the record is incomplete: ")
