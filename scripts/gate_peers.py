"""The gate beside asv's `continuous` and pytest-benchmark's `--benchmark-compare-fail`.

    pip install asv virtualenv pytest pytest-benchmark        # beside torch, in any environment
    python scripts/gate_peers.py --work /tmp/peers-gate [--equal 10] [--planted 10]
                                 [--body compute|cores|waiting] [--steps N] [--disturbed]

All compare the same commits: equal ones, and ones that lose 8 % of the throughput, at a threshold
of 5 % and otherwise as each tool comes: gpurun by live pairs, and by launches in turn; asv by its
own number of samples in processes of its own, pytest-benchmark by five or more rounds in one
process for each commit. Both peers call a function of `--steps` training steps. asv has an
environment of its own for each repository, which sees this one's torch; making it is not in its
times. Peers that are not
installed are left out. Results are appended to a file below `--work` at once; a second call goes on
where the first one ended.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.gate_runs import Tool, arguments, compare_all, compare_by_gpurun, compare_in_turn
from scripts.planted_slowdown import git

NEEDED = {"asv": "asv", "virtualenv": "virtualenv", "pytest_benchmark": "pytest-benchmark"}
THRESHOLD = 5
"""Percent of the time, as both peers have it."""


def _packages() -> str:
    """Where the torch lies that is here."""
    torch = importlib.util.find_spec("torch")
    return "" if torch is None or torch.origin is None else str(Path(torch.origin).parents[1])


INSTALLED = """\
import shutil
import sys
import sysconfig
from pathlib import Path

packages = Path(sysconfig.get_path("purelib"))
for name in ("training.py", "work.py"):
    shutil.copy(Path(sys.argv[1]) / name, packages)
(packages / "torch.pth").write_text(sys.argv[2])
"""
"""How asv's environment gets a commit, and sees the torch that is here."""
CONFIGURATION = {
    "version": 1,
    "project": "planted",
    "repo": ".",
    "branches": ["main"],
    "environment_type": "virtualenv",
    "pythons": [f"{sys.version_info[0]}.{sys.version_info[1]}"],
    "benchmark_dir": "benchmarks",
    "env_dir": ".asv/env",
    "results_dir": ".asv/results",
    "build_command": [],
    "install_command": [f"python {{build_dir}}/installed.py {{build_dir}} {_packages()}"],
    "uninstall_command": [],
}
ASV_BENCHMARK = """\
import os

from training import train


def time_train():
    train(int(os.environ["STEPS"]))
"""
PYTEST_BENCHMARK = """\
import os

from training import train


def test_train(benchmark):
    benchmark(train, int(os.environ["STEPS"]))
"""
FILES = {
    "asv.conf.json": json.dumps(CONFIGURATION, indent=1),
    "installed.py": INSTALLED,
    "benchmarks/__init__.py": "",
    "benchmarks/training_time.py": ASV_BENCHMARK,
    "bench_training.py": PYTEST_BENCHMARK,
}


def _prepare_asv(folder: Path) -> None:
    """Its environment, and what it wants to know of the machine."""
    _asv(folder, 1, "machine", "--yes")
    _asv(folder, 1, "setup")


def compare_by_asv(folder: Path, steps: int) -> tuple[str, int | None]:
    """Its exit code is 1 for a slower commit and for an error alike: what it prints decides."""
    factor = f"--factor={1 + THRESHOLD / 100}"
    output = _asv(folder, steps, "continuous", factor, "HEAD~1", "HEAD")
    shutil.rmtree(folder / ".asv" / "results", ignore_errors=True)
    if "PERFORMANCE DECREASED" in output:
        return "regression", None
    if "NOT SIGNIFICANTLY CHANGED" in output or "PERFORMANCE INCREASED" in output:
        return "pass", None
    print(output, file=sys.stderr)
    return "failed", None


def compare_by_pytest(folder: Path, steps: int) -> tuple[str, int | None]:
    """The first commit is measured and kept, the second one is held against it."""
    shutil.rmtree(folder / ".benchmarks", ignore_errors=True)
    git(folder, "checkout", "-q", "HEAD~1")
    try:
        _pytest(folder, steps, "--benchmark-save=first")
    finally:
        git(folder, "checkout", "-q", "main")
    compare = ("--benchmark-compare=0001", f"--benchmark-compare-fail=mean:{THRESHOLD}%")
    done = _pytest(folder, steps, *compare)
    if "Performance has regressed" in done.stdout + done.stderr:
        return "regression", None
    if done.returncode == 0:
        return "pass", None
    print(done.stdout + done.stderr, file=sys.stderr)
    return "failed", None


def _pytest(folder: Path, steps: int, *words: str) -> subprocess.CompletedProcess[str]:
    alone = ("-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *alone, *words, "bench_training.py"],
        cwd=folder,
        env={**os.environ, "STEPS": str(steps), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def _asv(folder: Path, steps: int, *words: str) -> str:
    own = {"HOME": str(folder / ".asv"), "STEPS": str(steps)}
    (folder / ".asv").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "asv", *words],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def _nothing(folder: Path) -> None:
    """There is nothing to prepare."""


def main() -> int:
    """Run and print; peers that are missing are named and left out."""
    here = {module: importlib.util.find_spec(module) is not None for module in NEEDED}
    missing = [name for module, name in NEEDED.items() if not here[module]]
    if missing:
        print(f"missing here, left out: pip install {' '.join(missing)}", file=sys.stderr)
    asv = here["asv"] and here["virtualenv"]
    tools: dict[str, Tool] = {
        "gpurun": compare_by_gpurun,
        "gpurun in turn": compare_in_turn,
    }
    if asv:
        tools["asv continuous"] = compare_by_asv
    if here["pytest_benchmark"]:
        tools["pytest-benchmark"] = compare_by_pytest
    prepare = _prepare_asv if asv else _nothing
    compare_all(arguments(__doc__).parse_args(), tools, FILES, prepare)
    return 0


if __name__ == "__main__":
    sys.exit(main())
