"""Two launchers of one job: they meet, finish together, and one does not outlive the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.launched import (
    DEADLINE_SECONDS,
    ORPHAN_SECONDS,
    alive,
    pids,
    start,
    wait_for,
)

RANK = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK")
line = " ".join(os.environ[name] for name in names)
os.write(1, f"{line}\\n".encode())  # one write: ranks share the pipe
"""

TRAINING = """
import os, pathlib, time
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        pathlib.Path(f"{os.getpid()}.pid").touch()
        return index

for batch in DataLoader(Samples(), num_workers=1):
    pathlib.Path(f"{os.getpid()}.pid").touch()
    time.sleep(0.05)
"""

WAITING = """
import os, pathlib, time
pathlib.Path(f"{os.getpid()}.pid").touch()
time.sleep(600)
"""

SCRIPT = "script.py"
HEARTBEATS = "keep_alive_interval=2,keep_alive_max_attempt=5"
ADDRESSES = ("10.213.0.1", "10.213.0.2")


def write(folder: Path, name: str, source: str) -> Path:
    """A node's own folder with a script in it."""
    (folder / name).mkdir()
    (folder / name / "script.py").write_text(source)
    return folder / name


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def finish(launcher: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    output, errors = launcher.communicate(timeout=DEADLINE_SECONDS)
    return launcher.returncode, output.decode(), errors.decode()


def test_tasks_of_a_slurm_step_become_the_nodes_of_one_job(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "127.0.0.[2-3]",
        "MASTER_PORT": str(free_port()),
    }
    tasks = [
        start(
            write(tmp_path, f"node{task}", RANK),
            {**clean_environment, **step, "SLURM_PROCID": str(task), "OMP_NUM_THREADS": "1"},
            *("--nnodes", "auto", "--nproc-per-node", "2", "script.py"),
        )
        for task in range(2)
    ]
    ended = [finish(task) for task in tasks]
    assert [code for code, _, _ in ended] == [0, 0], ended
    places = sorted(line.split() for _, output, _ in ended for line in output.splitlines())
    assert [rank for rank, *_ in places] == ["0", "1", "2", "3"]
    assert {world for _, world, *_ in places} == {"4"}
    assert [local for _, _, local, _ in places] == ["0", "1", "0", "1"]


def test_the_launcher_that_keeps_the_rendezvous_is_killed_and_the_other_ends(
    tmp_path: Path, clean_environment: dict[str, str]
) -> None:
    endpoint = f"--rdzv-endpoint=localhost:{free_port()}"
    words = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", endpoint, "--rdzv-id=x")
    folders = [write(tmp_path, name, WAITING) for name in ("host", "other")]
    host, other = (
        start(folder, clean_environment, *words, f"--rdzv-conf=is_host={is_host}", "script.py")
        for folder, is_host in zip(folders, (1, 0), strict=True)
    )
    ranks = [*pids(folders[0], 1), *pids(folders[1], 1)]
    host.kill()
    code, _, errors = finish(other)
    assert code == 1
    first, second, verdict = errors.splitlines()
    assert first.startswith("gpurun: the rendezvous is gone")
    assert "ranks here were stopped" in second
    assert verdict.startswith("verdict=failed exit=1")
    assert wait_for(lambda: not any(map(alive, ranks)), ORPHAN_SECONDS)
    host.communicate()


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two hosts: network namespaces with a cable between them."""
    names = [f"gpurun-{os.getpid()}-{side}" for side in "ab"]
    cables = [f"gr{os.getpid() % 10**7}{side}" for side in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    with ExitStack() as stack:
        try:
            for name in names:
                ip("netns", "add", name)
                stack.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
            for name, cable, address in zip(names, cables, ADDRESSES, strict=True):
                ip("link", "set", cable, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", cable)
                ip("-n", name, "link", "set", cable, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except FileNotFoundError:
            pytest.skip("two hosts need network namespaces: iproute2 is not installed")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two hosts need network namespaces: {error.stderr.strip()}")
        yield names[0], names[1]


@pytest.mark.slow  # quick twin: the launcher that keeps the rendezvous, above
def test_a_host_whose_launcher_is_killed_is_missed_by_the_other_and_leaves_no_orphan(
    tmp_path: Path, clean_environment: dict[str, str], namespaces: tuple[str, str]
) -> None:
    launchers, folders = [], []
    for rank, (name, address) in enumerate(zip(namespaces, ADDRESSES, strict=True)):
        folders.append(write(tmp_path, name, TRAINING))
        meeting = (f"--rdzv-endpoint={ADDRESSES[0]}:29500", "--rdzv-id=x", "--rdzv-backend=c10d")
        conf = f"--rdzv-conf=is_host={int(rank == 0)},{HEARTBEATS}"
        gpurun = [sys.executable, "-m", "gpurun", "--nnodes=2", "--nproc-per-node=1", *meeting]
        launchers.append(
            subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    name,
                    *gpurun,
                    conf,
                    f"--local-addr={address}",
                    "script.py",
                ],
                cwd=folders[-1],
                env=clean_environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    # a rank and its loader's worker each
    trainings = [pids(folder, 2) for folder in folders]
    launchers[1].send_signal(signal.SIGKILL)
    code, _, errors = finish(launchers[0])
    assert code == 1, errors
    assert f"node {ADDRESSES[1]} is gone" in errors.splitlines()[0]
    everyone = [pid for both in trainings for pid in both]
    assert wait_for(lambda: not any(map(alive, everyone)), ORPHAN_SECONDS)
    launchers[1].communicate()
