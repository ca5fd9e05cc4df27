"""Where a command writes what it is asked for, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.forked

Gpurun = Callable[..., subprocess.CompletedProcess[bytes]]
SCRIPT = "print('trained')\n"


def shell(
    folder: Path, environment: dict[str, str], words: str, into: str
) -> subprocess.CompletedProcess[bytes]:
    """gpurun with its stdout led elsewhere by a shell; its own exit code."""
    command = f"{sys.executable} -m gpurun {words} {into}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, check=False
    )


@pytest.fixture
def recorded(tmp_path: Path, gpurun: Gpurun) -> Path:
    """A folder in which a script has run."""
    (tmp_path / "train.py").write_text(SCRIPT)
    assert gpurun("train.py").returncode == 0
    return tmp_path


@pytest.mark.parametrize("words", ["--help", "--version", "monitor --json -"])
def test_a_reader_that_has_left_is_no_error(
    tmp_path: Path, clean_environment: dict[str, str], words: str
) -> None:
    done = shell(tmp_path, clean_environment, words, "| true")
    assert done.returncode == 0
    assert b"rror" not in done.stderr, done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "what"), [("--help", "the help"), ("monitor --json -", "--json: stdout")]
)
def test_a_stdout_without_room_is_one_line(
    tmp_path: Path, clean_environment: dict[str, str], words: str, what: str
) -> None:
    done = shell(tmp_path, clean_environment, words, "> /dev/full")
    assert done.returncode == 2
    told = done.stderr.decode().splitlines()
    assert f"gpurun: {what} could not be written: No space left on device" in told
    assert told[-1] == "verdict=error exit=2"


@pytest.mark.parametrize(
    "words",
    [
        ("--json", "train.py", "other.py"),
        ("--json", "other.py", "other.py"),
        ("monitor", "--json", "train.py"),
        ("bench", "--launches", "1", "--json", "train.py"),
        ("bench", "--compare", "HEAD", "--markdown", "gpurun.toml", "other.py"),
        ("--optimize", "--save-settings", "gpurun.toml", "other.py"),
        ("report", "--html", "train.py"),
        ("report", "--png", "-"),
    ],
)
def test_a_file_that_somebody_wrote_is_not_written_over(
    recorded: Path, gpurun: Gpurun, words: tuple[str, ...]
) -> None:
    """`--json` takes the script's name for its file, if its own file is forgotten."""
    (recorded / "other.py").write_text(SCRIPT)
    settings = '[bench]\nscript = "other.py"\n'
    (recorded / "gpurun.toml").write_text(settings)
    done = gpurun(*words)
    assert done.returncode == 2
    assert b"trained" not in done.stdout
    first = done.stderr.decode().splitlines()[0]
    assert "would be written over" in first or "is no file" in first
    assert (recorded / "train.py").read_text() == SCRIPT == (recorded / "other.py").read_text()
    assert (recorded / "gpurun.toml").read_text() == settings
    assert not (recorded / "-").exists()


def test_a_page_goes_to_stdout_too(recorded: Path, gpurun: Gpurun) -> None:
    page = gpurun("report", "--html", "-")
    assert page.stdout.startswith(b"<!")
    words = gpurun("report", "--html", "page.html", "--markdown", "-")
    assert words.stdout.startswith(b"# ")
    assert sorted(path.name for path in recorded.iterdir()) == [".gpurun", "page.html", "train.py"]


def test_a_stream_that_is_led_into_a_file_keeps_what_the_script_wrote(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    assert (
        shell(tmp_path, clean_environment, "--json /dev/stdout train.py", "> log").returncode == 0
    )
    text = (tmp_path / "log").read_text()
    assert text.startswith("trained\n")
    assert json.loads(text.removeprefix("trained\n"))["exit_code"] == 0


def test_a_run_is_diagnosed_by_its_name(recorded: Path, gpurun: Gpurun) -> None:
    (run,) = (recorded / ".gpurun" / "runs").glob("2*")
    done = gpurun("diagnose", run.name)
    assert "there is no" not in done.stderr.decode()


@pytest.mark.parametrize("inside", ["launches", "."])
def test_the_newest_run_is_neither_a_benchmark_nor_an_empty_folder(
    recorded: Path, gpurun: Gpurun, inside: str
) -> None:
    folder = recorded / ".gpurun" / "runs" / "20990101-000000-aaaaaa"
    (folder / inside).mkdir(parents=True)
    done = gpurun("report", "--quiet")
    assert done.returncode == 0, done.stderr.decode()
    assert b"20990101" not in done.stderr
