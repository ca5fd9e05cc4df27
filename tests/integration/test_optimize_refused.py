"""What cannot be tuned ends with one clear line, an honest exit code and nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpurun.measure.nvml import tells_energy
from tests.conftest import Gpurun
from tests.integration.isolation_launcher import tree, without_namespaces
from tests.integration.launched import obey_permissions
from tests.integration.tunings import configure, lines, report_of, training

pytestmark = pytest.mark.forked

GENEROUS = """
import sys, gpurun
from gpurun.tuner import tuning_run
tuning_run.LEAST_PROBE_SECONDS = tuning_run.LEAST_TRIAL_SECONDS = 300.0
sys.exit(gpurun.main(sys.argv[1:]))
"""
"""gpurun whose first trials come to their end on a slow machine, too, however small the budget."""
FULL_DISK = """
mount -t tmpfs -o size=100k none full && cp -r work/. full && cd full &&
dd if=/dev/zero of=ballast bs=1k count={ballast} status=none
"$0" -m gpurun --optimize --tune-only --out records train.py
"""


def tune(gpurun: Gpurun, folder: Path, source: str, *words: str) -> tuple[int, list[str], str]:
    """Tune `source` as train.py: exit code, stderr's lines, and all of stderr."""
    (folder / "train.py").write_text(source)
    done = gpurun("--optimize", "--tune-only", *words, "train.py", cwd=folder)
    assert done.stdout == b""
    return done.returncode, lines(done), done.stderr.decode()


# -- the command line ------------------------------------------------------------------------------


def test_a_missing_script_is_named_before_anything_is_written(
    tmp_path: Path, in_process: Gpurun
) -> None:
    done = in_process("--optimize", "nowhere.py")
    assert done.returncode == 2
    assert lines(done)[0] == "gpurun: there is no script nowhere.py"
    assert lines(done)[-1] == "verdict=error exit=2"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(tells_energy(), reason="a GPU here counts its joules")
def test_energy_that_is_not_counted_here_is_no_aim(tmp_path: Path, in_process: Gpurun) -> None:
    (tmp_path / "train.py").write_text("")
    done = in_process("--optimize", "--objective", "energy", "train.py")
    assert done.returncode == 2
    assert lines(done)[0].startswith("gpurun: --objective energy: the GPUs here do not all count")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--json", "no/such/t.json"), "--json: there is no folder no/such"),
        (("--json", "."), "--json: . is a folder"),
        (("--save-settings", "no/s.json"), "--save-settings: there is no folder no"),
        (("--json", "-"), "--json - would mix with the script's own stdout"),
        (("--tuned",), "--tuned applies settings without trials"),
        (("--settings", "s.json"), "--settings applies settings without trials"),
        (("-I",), "unknown flag -I"),
    ],
)
def test_what_could_only_fail_after_the_trials_is_refused_before_them(
    tmp_path: Path, in_process: Gpurun, words: tuple[str, ...], named: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    done = in_process("--optimize", *words, "train.py")
    assert done.returncode == 2
    assert lines(done)[0] == f"gpurun: {named}"
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[optimize]\nbudget = \n", "line 2"),
        ("[optimize]\npatient = 3\n", "optimize.patient"),
        ("[optimize]\npatience = 'long'\n", "optimize.patience"),
    ],
)
def test_a_malformed_configuration_is_one_line_with_its_place(
    tmp_path: Path, in_process: Gpurun, text: str, named: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    (tmp_path / "gpurun.toml").write_text(text)
    done = in_process("--optimize", "train.py")
    assert done.returncode == 2
    assert "gpurun.toml" in lines(done)[0]
    assert named in lines(done)[0]


def test_a_broken_knob_file_is_told_before_any_trial(tmp_path: Path, gpurun: Gpurun) -> None:
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    (tmp_path / "gpurun.toml").write_text("knobs = ['mine.py']\n")
    done = gpurun("--optimize", "train.py")
    assert done.returncode == 2
    assert "mine.py cannot be imported" in lines(done)[0]
    assert not list(tmp_path.glob(".gpurun/runs/*"))


# -- the script ------------------------------------------------------------------------------------


def test_a_syntax_error_is_shown_as_pythons_own(tmp_path: Path, gpurun: Gpurun) -> None:
    code, said, text = tune(gpurun, tmp_path, "def broken(:\n")
    assert code == 5
    assert "the script fails by itself" in text
    assert 'train.py", line 1' in text
    assert sum("SyntaxError: invalid syntax" in line for line in said) >= 1
    assert said[-1].startswith("verdict=script_failed exit=5")


def test_too_few_steps_are_counted_against_those_needed(tmp_path: Path, gpurun: Gpurun) -> None:
    code, said, text = tune(gpurun, tmp_path, training(10))
    assert code == 5
    assert "it ended after 10 steps; 24 are needed" in text
    assert said[-1].startswith("verdict=too_few_steps exit=5")
    assert report_of(tmp_path)["trials"][0]["status"] == "completed"


@pytest.mark.slow  # quick twin: quiet, below
def test_a_script_without_a_step_is_no_training(tmp_path: Path, gpurun: Gpurun) -> None:
    code, said, text = tune(gpurun, tmp_path, "import torch\nprint(torch.ones(2).sum())\n")
    assert code == 5
    assert "no training step was seen" in text
    assert said[-1].startswith("verdict=no_training exit=5")


def test_quiet_still_says_why_nothing_was_tuned(tmp_path: Path, gpurun: Gpurun) -> None:
    code, said, _ = tune(gpurun, tmp_path, "print('nothing of torch')\n", "--quiet")
    assert code == 5
    assert said[0] == "gpurun: no training step was seen in it"
    assert len(said) == 2


def test_a_bare_failure_is_the_scripts_own(tmp_path: Path, gpurun: Gpurun) -> None:
    source = "raise ValueError('no such folder of images')\n"
    code, said, text = tune(gpurun, tmp_path, source)
    assert code == 5
    assert "the script fails by itself (failed): ValueError: no such folder of images" in text
    assert f'File "{tmp_path}/train.py", line 1' in text  # the traceback, not only its last line
    assert said[-1].startswith("verdict=script_failed exit=5")


def test_a_training_that_ends_with_a_code_of_its_own_says_what_to_do(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    code, said, text = tune(gpurun, tmp_path, training(40) + "print('done')\nraise SystemExit(3)\n")
    told = "exit code 3, after it printed: done; it took 40 steps: let it end with exit code 0"
    assert code == 5
    assert any(told in line for line in said if "nothing was tuned" in line), text


@pytest.mark.slow  # quick twin: a bare failure, above
def test_where_it_would_train_a_bare_failure_ends_with_the_scripts_code(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('mine')\nsys.exit(9)\n")
    done = gpurun("--optimize", "train.py")
    assert (done.returncode, done.stdout) == (9, b"mine\n")
    assert any("the script fails by itself" in line for line in lines(done))
    assert report_of(tmp_path)["verdict"] == "script_failed"


@pytest.mark.slow  # quick twin: a bare failure, above
def test_a_script_that_asks_a_question_finds_no_answer(tmp_path: Path, gpurun: Gpurun) -> None:
    code, _, text = tune(gpurun, tmp_path, "name = input('which model? ')\n" + training(40))
    assert code == 5
    assert "Nothing was tuned: the script calls input(), and a trial has no standard input" in text


@pytest.mark.slow  # quick twin: unit/test_tuner_unusable_baseline.py
def test_a_script_that_steps_too_slowly_for_the_budget_says_how_far_it_came(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = training(40).replace("    optimizer.step()", "    optimizer.step(); time.sleep(40)")
    configure(tmp_path, 'budget = "30s"')
    (tmp_path / "train.py").write_text(source)
    done = gpurun("--optimize", "--tune-only", "train.py")
    assert done.returncode == 3
    assert any("of the 24 needed" in line and "--budget" in line for line in lines(done))
    assert lines(done)[-1].startswith("verdict=inconclusive exit=3")


def test_interpreter_flags_that_switch_the_hook_off_are_refused(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(10))
    done = subprocess.run(
        [sys.executable, "-S", "-m", "gpurun", "--optimize", "--tune-only", "train.py"],
        cwd=tmp_path,
        env={**clean_environment, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert any("with -I, -E or -S" in line for line in lines(done))
    assert not any("trial 1" in line and "samples/s" in line for line in lines(done))


# -- the machine -----------------------------------------------------------------------------------


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(training(10))
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)


def test_records_of_a_read_only_folder_go_to_the_state_folder(
    read_only: Path, clean_environment: dict[str, str]
) -> None:
    state = read_only.parent / "state"
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", "--optimize", "--tune-only", "train.py"],
        cwd=read_only,
        env={**clean_environment, "XDG_STATE_HOME": str(state)},
        capture_output=True,
        preexec_fn=obey_permissions,
        timeout=300,
        check=False,
    )
    assert lines(done)[-1].startswith("verdict=too_few_steps exit=5")
    recorded = list(state.glob("gpurun/runs/*/tuning.json"))
    assert json.loads(recorded[0].read_text())["verdict"] == "too_few_steps"


@pytest.mark.parametrize("ballast", [96, pytest.param(80, marks=pytest.mark.slow)])
def test_a_full_disk_is_one_line(
    tmp_path: Path, clean_environment: dict[str, str], ballast: int
) -> None:
    """Full from the start, and full with the first trial."""
    for name in ("work", "full"):
        (tmp_path / name).mkdir()
    (tmp_path / "work" / "train.py").write_text(training(10))
    command = FULL_DISK.format(ballast=ballast)
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command, sys.executable],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    if b"unshare:" in done.stderr or b"mount:" in done.stderr:
        pytest.skip("a small file system cannot be mounted here")
    assert done.returncode == 2, done.stderr.decode()
    told = [line for line in lines(done) if "records cannot be written" in line]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert lines(done)[-1] == "verdict=error exit=2"


@pytest.mark.slow  # quick twin: its line, in unit/test_tuner_phases.py
def test_a_budget_too_small_to_try_anything_is_told_with_one_that_is_not(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(100_000))
    words = ("--optimize", "--tune-only", "--budget", "4s", "train.py")
    done = subprocess.run(
        [sys.executable, "-c", GENEROUS, *words],
        cwd=tmp_path,
        env=clean_environment,
        capture_output=True,
        timeout=600,
        check=False,
    )
    said, text = lines(done), done.stderr.decode()
    assert (done.returncode, done.stdout) == (3, b""), text
    assert any("left no time to try anything" in x and "--budget" in x for x in said), text
    assert said[-1].startswith("verdict=inconclusive"), text


def test_without_any_isolation_trials_are_refused_with_what_to_do(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(training(10))
    words = ("-m", "gpurun", "--optimize", "--tune-only", "train.py")
    forced = {**clean_environment, "GPURUN_ISOLATION": "overlay"}
    done = without_namespaces(tmp_path, forced, *words)
    said = lines(done)
    assert done.returncode == 2
    assert said[0].startswith("gpurun: trials cannot be isolated here: overlay mounts: ")
    assert "--trials-in-place" in said[1]
    assert len(said) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_by_consent_trials_run_on_the_real_files_and_say_what_they_changed(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    source = "open('left.txt', 'w').write('x')\n" + training(10)
    code, said, text = tune(gpurun, tmp_path, source, "--trials-in-place")
    assert code == 5
    assert any("as you allowed" in line and "left.txt" in line for line in said), text
    assert (tmp_path / "left.txt").exists()


@pytest.mark.slow  # quick twin: trials in place, above
def test_output_redirected_into_the_working_folder_is_no_change_of_a_trial(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text("print('x' * 10_000)\n" + training(10))
    (tmp_path / "kept.txt").write_text("kept")
    before = tree(tmp_path / "kept.txt")
    command = (
        '{ "$0" -m gpurun --optimize --tune-only train.py 2> err.txt; echo $? > code.txt; } '
        "| tee out.txt; tail -c 3 code.txt"
    )
    done = subprocess.run(
        ["sh", "-c", "exec > all.txt; " + command, sys.executable],
        cwd=tmp_path,
        env=clean_environment,
        timeout=300,
        check=True,
    )
    assert done.returncode == 0
    assert (tmp_path / "code.txt").read_text() == "5\n", (tmp_path / "err.txt").read_text()
    assert "files changed" not in (tmp_path / "err.txt").read_text()
    assert tree(tmp_path / "kept.txt") == before
