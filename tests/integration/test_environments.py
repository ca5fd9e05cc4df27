"""Machines that lack something: a run behaves as under python there, and a tuning ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import without_verdict
from tests.integration import syscalls_refused
from tests.integration.tunings import lines, report_of

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 1200
    def __getitem__(self, index):
        time.sleep(0.002)
        draw = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=draw), index % 2

if __name__ == "__main__":
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(Slow(), batch_size=4, shuffle=True, num_workers=int(sys.argv[1])):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("trained", round(loss.item(), 6))
"""
CGROUPS = Path("/sys/fs/cgroup")
QUOTAS = (
    (CGROUPS / "cpu", "cpu.cfs_quota_us", "50000"),
    (CGROUPS, "cpu.max", "50000 100000"),
)
"""Half a core, in both versions of the kernel's interface."""
CANNOT = syscalls_refused.CANNOT
READ_ONLY_SHM = f'mount -t tmpfs -o ro none /dev/shm || exit {CANNOT}; exec "$@"'
NO_SHM = f"""
mkdir -p ../dev && mount -t tmpfs none ../dev && cd ../dev || exit {CANNOT}
for name in null zero full random urandom tty; do
    touch $name && mount --bind /dev/$name $name || exit {CANNOT}
done
mkdir pts && mount --bind /dev/pts pts && ln -s pts/ptmx ptmx && ln -s /proc/self/fd fd
cd "$OLDPWD" && mount --rbind ../dev /dev || exit {CANNOT}
exec "$@"
"""
"""Device files of the real machine, and no /dev/shm among them."""

Here = Callable[..., "subprocess.CompletedProcess[bytes]"]
"""`run(*words)`: `python words...` in the environment of the test."""


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group whose processes have half a core together."""
    for top, name, limit in QUOTAS:
        group = top / f"gpurun-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(limit)
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no control group for processors can be made here")


@pytest.fixture
def here(request: pytest.FixtureRequest, tmp_path: Path, clean_environment: dict[str, str]) -> Here:
    """Runs python in the environment that is the parameter; the folder has a training."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINING)
    unshare = ["unshare", "-m" if os.geteuid() == 0 else "-rm"]
    shell = ["sh", "-c"]
    prefix = {
        "one core": lambda: ["taskset", "-c", str(min(os.sched_getaffinity(0)))],
        "a quota": lambda: [
            *shell, 'echo $$ > "$0" && exec "$@"',
            str(request.getfixturevalue("quota") / "cgroup.procs"),
        ],
        "read-only /dev/shm": lambda: [*unshare, *shell, READ_ONLY_SHM, "sh"],
        "no /dev/shm": lambda: [*unshare, *shell, NO_SHM, "sh"],
        "no locks": lambda: [sys.executable, syscalls_refused.__file__, "locks"],
    }[request.param]()  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*prefix, sys.executable, *words],
            cwd=folder,
            env=clean_environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=600,
            check=False,
        )
        if done.returncode == CANNOT or done.stderr.startswith(b"unshare:"):
            pytest.skip("this environment cannot be made here")
        return done

    return run


@pytest.mark.parametrize(
    "here",
    [
        pytest.param("read-only /dev/shm", marks=pytest.mark.slow),
        "no locks",
        pytest.param("no /dev/shm", marks=pytest.mark.slow),
        pytest.param("one core", marks=pytest.mark.slow),
        pytest.param("a quota", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_a_run_with_loader_workers_ends_as_under_python(here: Here) -> None:
    plain = here("train.py", "2")
    done = here("-m", "gpurun", "--quiet", "train.py", "2")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    assert without_verdict(done.stderr) == plain.stderr


@pytest.mark.slow  # quick twin: the runs above; test_optimize_proves_speedup.py
@pytest.mark.parametrize(
    ("here", "failure"),
    [
        ("read-only /dev/shm", "Read-only file system"),
        ("no /dev/shm", "No such file or directory"),
        ("no locks", ""),
        ("one core", ""),
        ("a quota", ""),
    ],
    indirect=["here"],
)
def test_a_tuning_proposes_only_what_works_there(tmp_path: Path, here: Here, failure: str) -> None:
    """Workers that cannot be had are a row of the report, and the training follows."""
    flags = ("--optimize", "--allow", "pipeline", "--max-trials", "4", "--budget", "40s")
    done = here("-m", "gpurun", *flags, "train.py", "0")
    said = lines(done)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"trained ")
    assert said[-1].startswith("verdict=ok exit=0")
    if failure:
        ladder = report_of(tmp_path / "work")["ladder"]
        (row,) = (row for row in ladder if "loader_workers" in row["changes"])
        assert not row["kept"]
        assert failure in row["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("here", ["a quota"], indirect=True)
def test_a_quota_of_a_container_counts_as_so_many_cores(tmp_path: Path, here: Here) -> None:
    done = here("-m", "gpurun", "--json", "r.json", "train.py", "0")
    assert json.loads((tmp_path / "work" / "r.json").read_text())["host"]["cores_available"] == 0.5
    assert b" of 0.5 cores" in done.stderr


@pytest.mark.parametrize("here", ["one core"], indirect=True)
def test_two_ranks_on_one_core_take_consent(here: Here) -> None:
    done = here("-m", "gpurun", "--ddp", "--nproc-per-node", "2", "train.py", "0")
    assert done.returncode == 2
    assert b"there is 1 core and no GPU" in done.stderr
    assert b"--oversubscribe" in done.stderr


@pytest.mark.slow  # quick twin: test_hidden_ddp.py
@pytest.mark.parametrize("here", ["one core"], indirect=True)
def test_two_ranks_on_one_core_train(here: Here) -> None:
    flags = ("--ddp", "--oversubscribe", "--nproc-per-node", "2", "--loss-reduction", "mean")
    done = here("-m", "gpurun", *flags, "train.py", "0")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"trained ")
