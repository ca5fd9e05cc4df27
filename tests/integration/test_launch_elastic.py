"""Several ranks: torchrun's twin, with the failing rank's own code and no orphans."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.launched import (
    DEADLINE_SECONDS,
    alive,
    assert_nothing_outlives_a_kill,
    pids,
    start,
    wait_for,
    write,
)

Gpurun = Callable[..., "subprocess.CompletedProcess[bytes]"]

RANK = """import os; os.write(1, os.environ["RANK"].encode() + b"\\n")"""

ENVIRONMENT = """
import json, os, pathlib, sys
mine = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN") and k != "PYTHONPATH"}
seen = {"environment": mine, "argv": sys.argv, "path": sys.path, "flags": str(sys.flags)}
pathlib.Path(os.environ["VIEW"] + os.environ["RANK"]).write_text(json.dumps(seen))
os.write(1, f"rank {os.environ['RANK']}\\n".encode())  # one write: ranks share the pipe
"""

PATIENT = """
import os, pathlib, signal, sys, time
pathlib.Path(f"{os.getpid()}.pid").touch()
while len(list(pathlib.Path(".").glob("*.pid"))) < 2:
    time.sleep(0.01)
if sys.argv[1:] == [os.environ["RANK"]]:
    sys.exit(7)
if sys.argv[1:] == ["-" + os.environ["RANK"]]:
    os.kill(os.getpid(), signal.SIGSEGV)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
while True:
    time.sleep(0.05)
"""

LATE = """
import sys
import torch.distributed

sys.setswitchinterval(100)  # threads of gloo get Python's lock late, as on busy cores
torch.distributed.init_process_group("gloo")
for _ in range(300):
    torch.distributed.all_reduce(torch.ones(1), async_op=True)
"""

CHANGING = re.compile(r"PORT|RUN_ID|ERROR_FILE|^_$|^VIEW$")


def views(folder: Path, name: str) -> list[dict[str, object]]:
    """What each of two ranks saw, without what differs from launch to launch."""
    found = [json.loads((folder / f"{name}{rank}").read_text()) for rank in range(2)]
    for view in found:
        for key in [k for k in view["environment"] if CHANGING.search(k)]:
            view["environment"][key] = "changes"
    return found


def test_ranks_see_the_same_as_under_torchrun(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str]
) -> None:
    words = ["--nproc_per_node=2", write(tmp_path, ENVIRONMENT), "--", "-m", "--nnodes", "a b"]
    ours = gpurun("--quiet", *words, env={"VIEW": "ours"})
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=tmp_path,
        env={**clean_environment, "VIEW": "theirs"},
        capture_output=True,
        check=True,
    )
    assert ours.returncode == 0
    assert sorted(ours.stdout.splitlines()) == [b"rank 0", b"rank 1"]
    mine, theirs = views(tmp_path, "ours"), views(tmp_path, "theirs")
    for view in theirs:  # torchrun's parser drops a `--`; python and we keep it
        view["argv"].insert(1, "--") if "--" not in view["argv"] else None
    assert mine == theirs
    assert len(list(tmp_path.glob(".gpurun/runs/*/events-rank*.jsonl"))) == 2


@pytest.mark.forked
def test_pet_variables_ask_for_ranks(tmp_path: Path, gpurun: Gpurun) -> None:
    result = gpurun(write(tmp_path, RANK), env={"PET_NPROC_PER_NODE": "2"})
    assert sorted(result.stdout.split()) == [b"0", b"1"]
    assert result.stderr.splitlines()[-1].startswith(b"verdict=ok exit=0")


@pytest.mark.parametrize(
    ("who", "code", "how"),
    [
        ("1", 7, "exit code 7"),
        pytest.param("-0", 139, "signal SIGSEGV", marks=pytest.mark.slow),
    ],
)
@pytest.mark.forked
def test_first_failing_rank_gives_the_exit_code_in_one_line(
    tmp_path: Path, gpurun: Gpurun, who: str, code: int, how: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    result = gpurun("--nproc-per-node", "2", write(tmp_path, PATIENT), who, env=environment)
    assert result.returncode == code
    assert list(temporary.iterdir()) == []
    lines = result.stderr.decode().splitlines()
    assert lines[0].startswith(f"gpurun: rank {who.lstrip('-')} failed first: {how}")
    assert lines[1].startswith(f"verdict={'killed' if code > 128 else 'failed'} exit={code}")
    assert len(lines) == 2
    assert not any(alive(pid) for pid in pids(tmp_path, 2))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_ends_the_ranks_and_is_the_exit_code(
    tmp_path: Path, clean_environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    launcher = start(
        tmp_path, clean_environment, "--nproc-per-node=2", write(tmp_path, PATIENT), "wait"
    )
    ranks = pids(tmp_path, 2)
    launcher.send_signal(number)
    _, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == code
    assert b"SignalException" not in errors, "no traceback of the agent"
    assert not any(alive(pid) for pid in ranks)


HANDLES = """
import os, pathlib, signal, time
def note(number, frame):
    name = f"{signal.Signals(number).name}.{os.environ['RANK']}.{time.monotonic_ns()}.seen"
    pathlib.Path(name).touch()
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
pathlib.Path(f"{os.getpid()}.pid").touch()
while True:
    time.sleep(0.05)
"""


def test_ranks_that_do_not_end_when_asked_to_are_killed_with_a_line_that_names_them(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    words = ("--nproc-per-node=2", "--shutdown-timeout=2", write(tmp_path, HANDLES))
    launcher = start(tmp_path, clean_environment, *words)
    pids(tmp_path, 2)
    launcher.send_signal(signal.SIGTERM)
    _, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    said = [line for line in errors.decode().splitlines() if line.startswith("gpurun: ")]
    assert said == [
        "gpurun: the job ends; gpurun kills ranks 0 and 1, which did not end within 2 s of SIGTERM"
    ]


@pytest.mark.parametrize(
    ("flags", "goes_on"),
    [((), True), (("--signals-to-handle=SIGTERM,SIGUSR1", "--shutdown-timeout=1"), False)],
)
def test_sigusr1_reaches_each_rank_and_ends_the_job_only_where_that_is_asked_for(
    tmp_path: Path, clean_environment: dict[str, str], flags: tuple[str, ...], goes_on: bool
) -> None:
    words = ("--nproc-per-node=2", *flags, write(tmp_path, HANDLES))
    launcher = start(tmp_path, clean_environment, *words)
    pids(tmp_path, 2)
    launcher.send_signal(signal.SIGUSR1)
    assert wait_for(lambda: len(list(tmp_path.glob("SIGUSR1.*.seen"))) == 2)
    if goes_on:
        launcher.send_signal(signal.SIGUSR2)
        assert wait_for(lambda: len(list(tmp_path.glob("SIGUSR2.*.seen"))) == 2)
        assert launcher.poll() is None
        launcher.kill()
    launcher.communicate(timeout=DEADLINE_SECONDS)
    assert launcher.returncode == (-signal.SIGKILL if goes_on else 128 + signal.SIGUSR1)


def test_sigusr1_to_all_processes_reaches_each_rank_once(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    launcher = start(tmp_path, clean_environment, "--nproc-per-node=2", write(tmp_path, HANDLES))
    pids(tmp_path, 2)
    for often in (1, 2):
        for process in psutil.Process(launcher.pid).children(recursive=True):
            process.send_signal(signal.SIGUSR1)
        launcher.send_signal(signal.SIGUSR1)
        assert wait_for(lambda often=often: len(list(tmp_path.glob("*.seen"))) >= 2 * often)
        time.sleep(0.5)  # a second one would have come by now
        ranks = [path.name.split(".")[1] for path in tmp_path.glob("SIGUSR1.*.seen")]
        assert sorted(ranks) == sorted(["0", "1"] * often)
    launcher.kill()
    launcher.communicate(timeout=DEADLINE_SECONDS)


def test_killing_the_launcher_kills_the_ranks_and_leaves_no_temporary_folder(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    words = ("--nproc-per-node=2", write(tmp_path, PATIENT), "deaf")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    launcher = start(tmp_path, {**clean_environment, "TMPDIR": str(temporary)}, *words)
    assert_nothing_outlives_a_kill(launcher, pids(tmp_path, 2))
    assert not list(temporary.glob("gpurun-*"))


@pytest.mark.forked
def test_torchrun_s_own_errors_are_two_lines(tmp_path: Path, gpurun: Gpurun) -> None:
    result = gpurun("--max-restarts=often", write(tmp_path, ""))
    assert result.returncode == 2
    assert [line.split(b":")[0] for line in result.stderr.splitlines()] == [
        b"gpurun",
        b"gpurun",
        b"verdict=error exit=2",
    ]
    assert not list(tmp_path.glob(".gpurun/runs/*")), "a run that never began leaves no folder"


def test_agent_in_a_process_of_its_own_runs_the_ranks(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    from gpurun.arguments.options import Target, TargetKind
    from gpurun.launch.launch_command import agent_command_line

    target = Target(TargetKind.SCRIPT, write(tmp_path, RANK))
    words = agent_command_line(("--nproc-per-node=2",), target)
    environment = {k: v for k, v in clean_environment.items() if k != "PYTHONPATH"}
    output = subprocess.check_output(words, cwd=tmp_path, env=environment)
    assert sorted(output.split()) == [b"0", b"1"]


def test_environment_of_a_calling_program_is_left_as_it_was(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    write(tmp_path, "")
    call = """
import os, signal, gpurun
before = dict(os.environ), signal.getsignal(signal.SIGTERM)
codes = [gpurun.main(["--nproc-per-node=2", "script.py"]) for _ in range(2)]
print(codes, before == (dict(os.environ), signal.getsignal(signal.SIGTERM)))
"""
    output = subprocess.check_output(
        [sys.executable, "-c", call], cwd=tmp_path, env=clean_environment, stderr=subprocess.DEVNULL
    )
    assert output.split() == b"[0, 0] True".split()


@pytest.mark.forked
def test_ranks_whose_gloo_threads_finish_late_are_not_aborted(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    """The same script under python ends by SIGABRT after its work is done, every time."""
    done = gpurun("--nproc-per-node=2", write(tmp_path, LATE))
    assert done.returncode == 0, done.stderr.decode()
