"""Interpreters that were set up in other ways: uv, conda, and forkserver as python 3.14 has it."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Gpurun, without_verdict
from tests.integration.tunings import run_folder

SHOW = """
import sys, torch
print(sys.executable, sys.prefix)
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(60):
    parameter.square().sum().backward()
    optimizer.step()
"""
FORKSERVER_FIRST = """
import multiprocessing
from multiprocessing import context
default = context._default_context
default._default_context = context._concrete_contexts["forkserver"]
context.DefaultContext.get_all_start_methods = lambda self: ["forkserver", "fork", "spawn"]
multiprocessing.get_all_start_methods = default.get_all_start_methods
"""
"""A sitecustomize: what python 3.14 does on Linux."""
WORKERS = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((4,), index / 400), torch.utils.data.get_worker_info() is None

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, alone in DataLoader(Slow(), batch_size=4, num_workers=int(sys.argv[1])):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    print(torch.multiprocessing.get_start_method(), bool(alone.all()), round(loss.item(), 6))

GUARD
    main()
"""


def uv_environment(folder: Path) -> Path:
    """The python of an environment that uv makes, which sees this one's packages."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    words = ["--offline", "--quiet", "--system-site-packages", "--python", sys.executable]
    subprocess.run([uv, "venv", *words, folder], check=True, stdin=subprocess.DEVNULL)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "packages.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def conda_environment(folder: Path) -> Path:
    """The python of a prefix as conda lays it out: a file with the version, and a link to it."""
    (folder / "bin").mkdir(parents=True)
    (folder / "conda-meta").mkdir()
    (folder / "conda-meta" / "history").touch()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copy(os.path.realpath(sys.executable), folder / "bin" / version)
    (folder / "bin" / "python").symlink_to(version)
    (folder / "lib").symlink_to(Path(sys.base_prefix) / "lib")
    return folder / "bin" / "python"


def launched(
    folder: Path, python: Path, environment: Mapping[str, str], *words: str
) -> subprocess.CompletedProcess[bytes]:
    """gpurun by this interpreter, which is first on the path."""
    path = os.pathsep.join((str(python.parent), environment["PATH"]))
    packages = os.pathsep.join((environment["PYTHONPATH"], *site.getsitepackages()))
    return subprocess.run(
        ["python", "-m", "gpurun", *words],
        cwd=folder,
        env={**environment, "PATH": path, "PYTHONPATH": packages},
        executable=python,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow  # quick twin: test_launch_process.py
@pytest.mark.parametrize(
    ("make", "variable"),
    [
        pytest.param(uv_environment, "VIRTUAL_ENV", id="uv"),
        pytest.param(conda_environment, "CONDA_PREFIX", id="conda"),
    ],
)
def test_the_script_runs_by_the_interpreter_of_gpurun(
    tmp_path: Path,
    clean_environment: dict[str, str],
    make: Callable[[Path], Path],
    variable: str,
) -> None:
    """So does a trial."""
    python = make(tmp_path / "env")
    (tmp_path / "show.py").write_text(SHOW)
    environment = {**clean_environment, variable: str(tmp_path / "env")}
    done = launched(tmp_path, python, environment, "show.py")
    assert done.returncode == 0, done.stderr.decode()
    expected = f"{python} {tmp_path / 'env'}"
    assert done.stdout.decode().strip() == expected
    trial = launched(tmp_path, python, environment, "--optimize", "--dry-run", "show.py")
    assert trial.returncode == 0, trial.stderr.decode()
    output = run_folder(tmp_path / ".gpurun") / "trials" / "01" / "output.log"
    assert output.read_text().splitlines()[0] == expected


@pytest.fixture
def forkserver(tmp_path: Path, clean_environment: dict[str, str]) -> dict[str, str]:
    """Variables under which forkserver is the default, and two scripts in the folder."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FORKSERVER_FIRST)
    for name, guard in (("train", 'if __name__ == "__main__":'), ("unguarded", "if True:")):
        (tmp_path / f"{name}.py").write_text(WORKERS.replace("GUARD", guard))
    paths = (str(tmp_path / "site"), clean_environment["PYTHONPATH"])
    return {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.mark.slow  # quick twin: the next test
def test_forked_servers_workers_load_as_under_python(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str], forkserver: dict[str, str]
) -> None:
    plain = subprocess.run(
        [sys.executable, "train.py", "2"],
        cwd=tmp_path,
        env={**clean_environment, **forkserver},
        capture_output=True,
        check=True,
    )
    done = gpurun("--quiet", "train.py", "2", env=forkserver)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == plain.stdout
    assert without_verdict(done.stderr) == plain.stderr
    assert done.stdout.startswith(b"forkserver False ")
    (tmp_path / "set.json").write_text('{"settings": {"loader_workers": 2}}')
    tuned = gpurun("--settings", "set.json", "train.py", "0", env=forkserver)
    assert tuned.stdout == plain.stdout
    assert b"applied loader_workers" in tuned.stderr


def test_workers_that_would_rerun_the_script_are_not_tried(
    gpurun: Gpurun, forkserver: dict[str, str]
) -> None:
    done = gpurun("--optimize", "--dry-run", "unguarded.py", "0", env=forkserver)
    assert done.returncode == 0, done.stderr.decode()
    reason = b"no __main__ guard: a worker started by forkserver would rerun"
    assert b"would not try loader_workers: " + reason in done.stderr
