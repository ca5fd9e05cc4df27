"""Settings that come from a file or the cache, and flags that would say nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.forked

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]
BATCH = {"batch_size": 8, "from": 4, "via": "--batch-size", "learning_rate": "keep"}


def settings(folder: Path, chosen: dict[str, Any]) -> None:
    (folder / "script.py").write_text("import sys\nprint(sys.argv[1:])\n")
    document = {
        "settings": chosen, "training_loaders": [], "speedup": None, "fingerprint": {},
        "command": ["script.py"], "schema": "gpurun/settings@1",
    }  # fmt: skip
    (folder / "kept.json").write_text(json.dumps(document))


def test_a_training_change_needs_consent(tmp_path: Path, gpurun: Gpurun) -> None:
    settings(tmp_path, {"batch_size": BATCH})
    refused = gpurun("--settings", "kept.json", "script.py")
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert b"batch_size" in refused.stderr
    assert b"--allow pipeline,numerics,training" in refused.stderr
    agreed = gpurun("--allow", "training", "--settings", "kept.json", "script.py")
    assert agreed.stdout == b"['--batch-size', '8']\n"


@pytest.mark.parametrize("chosen", [{"batch_size": 5}, {"no_such_knob": 1}])
def test_a_wrong_settings_file_is_named(
    tmp_path: Path, in_process: Gpurun, chosen: dict[str, Any]
) -> None:
    settings(tmp_path, chosen)
    done = in_process("--allow", "training", "--settings", "kept.json", "script.py")
    assert done.returncode == 2
    assert done.stderr.startswith(b"gpurun: kept.json: ")
    assert next(iter(chosen)).encode() in done.stderr.splitlines()[0]


def test_quiet_keeps_the_closing_line(tmp_path: Path, gpurun: Gpurun) -> None:
    settings(tmp_path, {})
    (line,) = gpurun("--quiet", "script.py").stderr.splitlines()
    assert line.startswith(b"verdict=ok exit=0 run=")


@pytest.mark.parametrize(
    "flag",
    [["--budget", "5m"], ["--max-trials", "3"], ["--trials-in-place"], ["--save-settings", "f"]],
)
def test_a_flag_of_tuning_alone_is_refused(
    tmp_path: Path, in_process: Gpurun, flag: list[str]
) -> None:
    settings(tmp_path, {})
    done = in_process(*flag, "script.py")
    assert done.returncode == 2
    assert f"{flag[0]} needs --optimize".encode() in done.stderr


def test_a_folder_of_the_users_stays_under_version_control(tmp_path: Path, gpurun: Gpurun) -> None:
    settings(tmp_path, {})
    gpurun("--out", ".", "script.py")
    assert not (tmp_path / ".gitignore").exists()
    assert (tmp_path / "runs" / ".gitignore").read_text() == "*\n"


def test_tuning_on_several_nodes_is_refused_by_name(tmp_path: Path, in_process: Gpurun) -> None:
    settings(tmp_path, {})
    flag = in_process("--optimize", "--nnodes", "2", "script.py")
    variable = in_process("--optimize", "script.py", env={"PET_NNODES": "1:2"})
    for done, word in ((flag, b"--nnodes=2"), (variable, b"PET_NNODES=1:2")):
        assert done.returncode == 2
        assert done.stderr.splitlines()[:2] == [
            b"gpurun: --optimize tunes on one node, not " + word,
            b"gpurun: drop it, or set it to 1",
        ]


@pytest.mark.parametrize("flags", [["--settings", "kept.json"], ["--tune-only"]])
@pytest.mark.parametrize(
    ("knob", "message"),
    [
        (None, b"there is no knob file or folder"),
        ("def broken(:\n", b"cannot be imported: SyntaxError"),
        (
            "from gpurun.knobs.api import Knob\n"
            "class Mine(Knob):\n"
            "    name = 'mine'\n"
            "    effect = 'numerics'\n"
            "    def candidates(self, facts): return [1]\n"
            "    def apply(self, value, hooks): hooks.applied()\n",
            b"mine.py: the knob Mine has the `effect` 'numerics'",
        ),
    ],
)
def test_a_broken_knob_is_the_fault_of_the_file_that_names_it(
    tmp_path: Path, gpurun: Gpurun, flags: list[str], knob: str | None, message: bytes
) -> None:
    settings(tmp_path, {"mine": 1})
    (tmp_path / "gpurun.toml").write_text("knobs = ['mine.py']\n")
    if knob is not None:
        (tmp_path / "mine.py").write_text(knob)
    done = gpurun(*flags, "script.py")
    assert (done.returncode, done.stdout) == (2, b"")
    line = done.stderr.splitlines()[-3]
    assert line.startswith(b"gpurun: `knobs` in gpurun.toml")
    assert message in line
    assert done.stderr.endswith(b"verdict=error exit=2\n")


def test_settings_written_by_hand_say_in_one_line_that_nothing_checked_them(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    settings(tmp_path, {})
    (tmp_path / "kept.json").write_text('{"settings": {}}')
    done = gpurun("--settings", "kept.json", "script.py")
    assert done.returncode == 0
    assert done.stderr.count(b"kept.json has no fingerprint: not checked") == 1
    assert b"fingerprint" not in gpurun("--quiet", "--settings", "kept.json", "script.py").stderr


@pytest.mark.parametrize(
    ("knobs", "said"),
    [({"accumulation": 2}, 1), ({"batch_size": BATCH}, 1), ({"cpu_threads": 1}, 0)],
)
def test_settings_that_change_the_number_of_steps_say_that_no_schedule_is_adapted(
    tmp_path: Path, gpurun: Gpurun, knobs: dict[str, object], said: int
) -> None:
    settings(tmp_path, knobs)
    words = ("--settings", "kept.json", "--allow", "pipeline,numerics,training", "script.py")
    done = gpurun(*words)
    assert done.returncode == 0
    line = b" changes the number of optimizer steps; a schedule that the script builds for a fixed"
    assert done.stderr.count(line) == said
    assert line not in gpurun("--quiet", *words).stderr


@pytest.mark.parametrize("flags", [[], ["--settings", "kept.json"], ["--tune-only"]])
def test_a_result_that_cannot_be_written_is_told_before_the_script_starts(
    tmp_path: Path, in_process: Gpurun, flags: list[str]
) -> None:
    settings(tmp_path, {})
    done = in_process(*flags, "--json", "nowhere/result.json", "script.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--json: there is no folder nowhere" in done.stderr.splitlines()[0]
    assert not (tmp_path / ".gpurun").exists()


def test_stored_settings_apply_without_the_named_knobs(tmp_path: Path, gpurun: Gpurun) -> None:
    settings(tmp_path, {"batch_size": BATCH, "tf32": True, "cpu_threads": 1})
    done = gpurun(
        "--settings", "kept.json", "--without", "batch_size,tf32", "--json", "r.json", "script.py"
    )
    assert done.returncode == 0
    assert done.stdout == b"[]\n"  # the batch size would have come as an argument, and by consent
    assert b"gpurun: without batch_size, tf32; settings applied: cpu_threads\n" in done.stderr


def test_a_knob_to_leave_out_must_be_set(tmp_path: Path, in_process: Gpurun) -> None:
    settings(tmp_path, {"tf32": True})
    done = in_process("--settings", "kept.json", "--without", "compile", "script.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[:2] == [
        b"gpurun: --without compile: it is not set",
        b"gpurun: set are: tf32",
    ]
    alone = in_process("--without", "tf32", "script.py")
    assert alone.returncode == 2
    assert b"--without needs --tuned or --settings" in alone.stderr
