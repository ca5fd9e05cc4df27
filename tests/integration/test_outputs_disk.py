"""What a command is asked to write on a full disk: one clear line, and no half of a file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpurun.arguments import settings_file
from tests.conftest import REPOSITORY
from tests.integration.small_disk import on_a_small_disk
from tests.integration.tunings import lines, training

ENDING = "print('trained')\nraise SystemExit(7)\n"
FULL = "cat /dev/zero > ballast 2> /dev/null\n"
LEFT = "\ncode=$?; find . -type f > ../left; exit $code"
NO_ROOM = "could not be written: No space left on device"
TUNED = """
import subprocess, sys
from pathlib import Path
import gpurun
from gpurun.commands import optimize
from gpurun.rundir import run_folder
from tests.unit.report_records import tuning_report

def tuned(options, interruption):
    folder = run_folder(Path.cwd(), options.out)
    subprocess.run({full!r}, shell=True)
    return optimize.TuningOutcome(tuning_report(), folder, (), (), (), {{}}, None)

optimize._tune = tuned
sys.exit(gpurun.main(sys.argv[1:]))
"""
"""gpurun in whose tuning a gain is proven at once, and then the disk is full."""


def left(folder: Path) -> set[str]:
    """The files on the small disk at the end, without the one that fills it."""
    return {str(Path(name)) for name in (folder / "left").read_text().splitlines()} - {"ballast"}


def ended(
    folder: Path, environment: dict[str, str], command: str, kilobytes: int = 300
) -> subprocess.CompletedProcess[bytes]:
    """A finished command on a small disk; a traceback of ours is a bug."""
    done = on_a_small_disk(folder, environment, command + LEFT, kilobytes)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("--json out.json train.py", 7, f"--json: out.json {NO_ROOM}"),
        ("report --out ../records --html page.html", 2, f"--html: page.html {NO_ROOM}"),
    ],
    ids=["json", "report"],
)
def test_a_document_that_finds_no_room_is_one_line(
    tmp_path: Path, clean_environment: dict[str, str], words: str, code: int, told: str
) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    environment = {**clean_environment, "XDG_STATE_HOME": str(tmp_path / "state")}
    run = '"$0" -m gpurun --quiet --out ../records train.py 2> /dev/null\n'
    done = ended(tmp_path, environment, f'{run}{FULL}"$0" -m gpurun {words}')
    said = lines(done)
    assert done.returncode == code, said
    assert [line for line in said if "written" in line] == [f"gpurun: {told}"]
    assert said[-1].startswith("verdict=")
    assert left(tmp_path) == {"train.py"}


@pytest.mark.parametrize(
    ("words", "code", "told", "whole"),
    [
        (
            "--tune-only --save-settings ../found.json",
            2,
            f"the record {NO_ROOM}; the settings {NO_ROOM}",
            "found.json",
        ),
        (
            "--tune-only --out ../records --save-settings found.json",
            2,
            f"--save-settings {NO_ROOM}",
            "records/tuned/*.json",
        ),
        (
            "--out ../records --save-settings found.json",
            7,
            f"--save-settings {NO_ROOM}",
            "records/tuned/*.json",
        ),
    ],
    ids=["records", "settings", "settings before a training"],
)
def test_settings_that_find_no_room_are_one_line_and_those_elsewhere_are_whole(
    tmp_path: Path,
    clean_environment: dict[str, str],
    words: str,
    code: int,
    told: str,
    whole: str,
) -> None:
    (tmp_path / "train.py").write_text(ENDING)
    (tmp_path / "tuned.py").write_text(TUNED.format(full=FULL))
    environment = {**clean_environment, "PYTHONPATH": str(REPOSITORY)}
    command = f'"$0" tuned.py --optimize --quiet {words} train.py'
    done = ended(tmp_path, environment, command)
    said = lines(done)
    assert done.returncode == code, said
    assert [line for line in said if NO_ROOM in line and "settings" in line] == [f"gpurun: {told}"]
    (kept,) = tmp_path.glob(whole)
    assert settings_file.load(kept).settings
    assert not any(path.endswith(".json") or "json." in path for path in left(tmp_path))


@pytest.mark.slow  # quick twin: the documents above
def test_a_profile_whose_trace_finds_no_room_says_so_and_leaves_no_half_of_it(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    """Kineto itself leaves the part of the trace that it had room for, and says nothing.

    If events were to be written at just that moment, they are what is said to be missing.
    """
    (tmp_path / "train.py").write_text(training(600))
    words = "profile --sources kineto,host --steps 300 --json ../found.json train.py"
    done = ended(tmp_path, clean_environment, f'"$0" -m gpurun {words}', kilobytes=1000)
    said = lines(done)
    assert done.returncode == 0, said
    (told,) = [line for line in said if "its trace" in line or "the record is incomplete" in line]
    assert told in (
        "gpurun: note: kineto: its trace could not be written (is the disk full?)",
        "gpurun: note: the record is incomplete: no room was left for it",
    )
    assert not any("too few steps" in line for line in said), said
    assert not any("kineto" in path for path in left(tmp_path))
    assert json.loads((tmp_path / "found.json").read_text())["findings"]
