"""Ranks that fail: started again as asked, each attempt recorded, the first cause named."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.launched import write

pytestmark = pytest.mark.forked

ATTEMPTS = """
import os, signal, time
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), os.environ["RANK"]
print("attempt", attempt, "rank", rank, flush=True)
if attempt == 0 and rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if rank == "0":
        open("deaf", "w").close()
    while not os.path.exists("deaf"):  # else the agent ends rank 0 before it has begun
        time.sleep(0.01)
    if rank == "1":
        os.symlink(f"/proc/{os.getpid()}/exe", "lost")  # leads nowhere once this has ended
        raise ValueError("bad sample 17")
    while not os.path.islink("lost") or os.path.exists("lost"):
        time.sleep(0.01)
    raise ConnectionError("closed by peer")  # as a rank does that loses another
"""

REDUCING = """
import os, signal, torch, torch.distributed
torch.distributed.init_process_group("gloo")
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
total = torch.ones(1)
torch.distributed.all_reduce(total)
os.write(1, f"sum {total.item():g}\\n".encode())
"""


def result(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob(".gpurun/runs/*/result.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_each_attempt_is_told_and_recorded_with_its_first_cause(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    words = ("--nproc-per-node=2", "--max-restarts=2", "--log-dir=logs", "--redirects=3")
    done = gpurun(*words, write(tmp_path, ATTEMPTS))
    assert (done.returncode, done.stdout) == (0, b"")
    first, second, third = result(tmp_path)["attempts"]
    assert [a["outcome"] for a in (first, second, third)] == ["failed", "failed", "succeeded"]
    killed = first["failures"][0]
    assert (killed["rank"], killed["signal"], killed["exit_code"]) == (1, "SIGKILL", 137)
    causes = [(f["rank"], f["error"]) for f in second["failures"]]
    assert causes == [(1, "ValueError: bad sample 17"), (0, "ConnectionError: closed by peer")]
    log = tmp_path / second["failures"][0]["log"]
    assert "ValueError: bad sample 17" in log.read_text()
    said = done.stderr.decode()
    assert "attempt 1: rank 1 failed first: signal SIGKILL" in said
    assert "attempt 2: rank 1 failed first: exit code 1" in said
    outputs = sorted(p.read_text() for p in tmp_path.glob("logs/*/attempt_2/*/stdout.log"))
    assert outputs == ["attempt 2 rank 0\n", "attempt 2 rank 1\n"]


def test_without_restarts_left_the_closing_lines_name_cause_and_log(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    words = ("--nproc-per-node=1", "--log-dir=logs", "--tee=3")
    done = gpurun(*words, write(tmp_path, "print('out'); raise KeyError('no such column')"))
    assert done.returncode == 1
    assert b"out" in done.stdout, "teed: in the log and here"
    *_, cause, log, verdict = done.stderr.decode().splitlines()
    assert cause.startswith("gpurun: rank 0 failed first: exit code 1 (process ")
    assert cause.endswith("): KeyError: 'no such column'")
    assert "KeyError" in (tmp_path / log.partition("stderr: ")[2]).read_text()
    assert verdict.startswith("verdict=failed exit=1")


def test_a_process_group_meets_again_after_a_restart(tmp_path: Path, gpurun: Gpurun) -> None:
    done = gpurun("--nproc-per-node=2", "--max-restarts=1", write(tmp_path, REDUCING))
    assert (done.returncode, done.stdout) == (0, b"sum 2\nsum 2\n"), done.stderr.decode()
    record = result(tmp_path)
    assert [attempt["outcome"] for attempt in record["attempts"]] == ["failed", "succeeded"]
    assert sum(record["topology"]["numa_cores"]) == len(os.sched_getaffinity(0))


def test_a_port_in_use_is_one_clear_line_and_standalone_takes_a_free_one(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    step = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}
    script = write(tmp_path, "import os; print(os.environ['MASTER_PORT'])")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ours = ("--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}")
        refused = gpurun(*ours, script)
        free = gpurun(
            "--standalone", "--nproc-per-node=1", script, env={**step, "MASTER_PORT": port}
        )
    assert (refused.returncode, refused.stdout) == (2, b"")
    what, todo, verdict = refused.stderr.decode().splitlines()
    assert port in what
    assert "address already in use" in what.lower()
    assert "--master-port" in todo
    assert verdict == "verdict=error exit=2"
    assert free.returncode == 0
    assert free.stdout.strip().decode() not in ("", port)
    assert b"each of the 2 tasks of this srun runs a job of its own" in free.stderr
