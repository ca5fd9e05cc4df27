"""A job of SLURM that goes back into the queue, and the script's own way to resume."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError
from gpurun.launch.slurm_requeue import SlurmRequeue, has_resume_switch, resumed

JOB = {"SLURM_JOB_ID": "7"}
SWITCH = 'parser.add_argument("--resume", action="store_true")\n'


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The words of each call of scontrol, which fails if a file `refuse` is there."""
    words, refuse = tmp_path / "asked", tmp_path / "refuse"
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f"#!/bin/sh\necho $* >> {words}\n"
        f"if [ -e {refuse} ]; then echo no such job >&2; exit 1; fi\n"
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:/usr/bin:/bin")
    return words


def script(folder: Path, source: str) -> Target:
    (folder / "train.py").write_text(source)
    return Target(TargetKind.SCRIPT, str(folder / "train.py"), ("--lr", "1"))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM])
def test_a_warned_job_is_put_back_once_its_script_ends_unfinished(
    asked: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    job = SlurmRequeue(JOB)
    job.heard(number)
    job.conclude(128 + number)
    assert asked.read_text() == "requeue 7\n"
    assert f"{number.name} came: job 7 is back in SLURM's queue" in capsys.readouterr().err


def test_a_job_stays_away_that_was_not_warned_or_is_done_or_is_another_task(asked: Path) -> None:
    SlurmRequeue(JOB).conclude(1)
    for environment, code in ((JOB, 0), ({**JOB, "SLURM_PROCID": "1"}, 143)):
        job = SlurmRequeue(environment)
        job.heard(signal.SIGTERM)
        job.conclude(code)
    winch = SlurmRequeue(JOB)
    winch.heard(signal.SIGHUP)
    winch.conclude(129)
    assert not asked.exists()


def test_a_refusal_of_slurm_is_told_in_one_line(
    asked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (asked.parent / "refuse").touch()
    job = SlurmRequeue(JOB)
    job.heard(signal.SIGTERM)
    job.conclude(143)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("job 7 was not put back into the queue: no such job")


def test_outside_of_slurm_the_flag_is_refused() -> None:
    with pytest.raises(GpurunError, match="SLURM_JOB_ID is not set"):
        SlurmRequeue({})


@pytest.mark.parametrize(
    ("source", "has"),
    [
        (SWITCH, True),
        ('p.add_argument("-r", "--resume", nargs="?", const="last.pt")\n', True),
        ('p.add_argument("--resume", action=argparse.BooleanOptionalAction)\n', True),
        ('p.add_argument("--resume", type=str)\n', False),
        ('print("--resume")\n', False),
        ("def broken(:\n", False),
    ],
)
def test_only_a_resume_that_needs_no_value_is_a_switch(
    tmp_path: Path, source: str, has: bool
) -> None:
    assert has_resume_switch(script(tmp_path, source)) is has


def test_a_job_that_starts_again_resumes_by_the_script_itself(tmp_path: Path) -> None:
    target, again = script(tmp_path, SWITCH), {**JOB, "SLURM_RESTART_COUNT": "1"}
    assert resumed(target, again).args == ("--lr", "1", "--resume")
    assert resumed(resumed(target, again), again).args == ("--lr", "1", "--resume")
    assert resumed(target, JOB) == target
    assert resumed(script(tmp_path, "pass\n"), again).args == ("--lr", "1")


def test_the_grace_of_ranks_is_torchs_own_flag() -> None:
    ranks = parse(["--grace", "90s", "--nproc-per-node", "2", "train.py"], {})
    assert "--shutdown-timeout=90" in ranks.torchrun
    alone = parse(["--grace", "90", "train.py"], {})
    assert (alone.torchrun, alone.elastic, alone.grace_seconds) == ((), False, 90.0)
    with pytest.raises(GpurunError, match="--grace: 'soon' is not a duration"):
        parse(["--grace", "soon", "train.py"], {})
    with pytest.raises(GpurunError, match="--requeue is not for --scale"):
        parse(["--scale", "1,2", "--requeue", "train.py"], {})
