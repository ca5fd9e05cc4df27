"""Scripts of tests, and gpurun itself, run in forks of one process that has imported torch.

Importing torch and what an optimizer makes it import takes seconds, and a test's script hundredths.
The runtime meets the same order of things in a trial whose process was started before its turn
(`gpurun/runtime/boot/activate.py`): torch first, the spec and knobs afterwards. What is about
the environment or the start of a process is tested by launches instead.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpurun.isolation.isolation_mode import SupervisorSpec
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json

REPOSITORY = Path(__file__).resolve().parents[1]
SERVER = Path(__file__).with_name("fork_server.py")
OURS = {"PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": "0"}
COVERAGE = "COVERAGE_PROCESS_CONFIG"
"""Set where coverage is to measure the processes that are started."""
PROCESS = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Variables that begin like this are read when any python starts, or its allocator."""
TORCH = ("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH", "PYTORCH_", "CUDA_")
"""And these when torch and its libraries are imported."""
THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variable to the parameter of `mallopt` that says the same of a process that runs already."""
READ_LATER = {"PYTHONPATH", "PYTHONHASHSEED", "TORCHINDUCTOR_CACHE_DIR", *THREADS, *MALLOPT}
"""Those of them that are compared apart, read when they are needed, or can be set later."""


def read_at_start(
    environment: Mapping[str, str], beginnings: tuple[str, ...] = PROCESS + TORCH
) -> dict[str, str]:
    """The variables that a fork takes over from the process that forks, whatever it is given."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(beginnings) and name not in READ_LATER
    }


class Nursery:
    """The process that forks, started when the first fork is to run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._outputs: tempfile.TemporaryDirectory[str] | None = None
        self._hands_over, self._takes = socket.socketpair()
        self._coverage: dict[str, str] = {}
        self._measure = False

    def take_coverage_over(self, *, measure: bool) -> None:
        """From now on forks are measured, if they are to be, and no process that is started."""
        self._measure = measure
        if COVERAGE in os.environ:
            self._coverage[COVERAGE] = os.environ.pop(COVERAGE)

    def run(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        spec: Path | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a script with its arguments in `folder`, under gpurun's runtime if there is a spec.

        Raises `TimeoutExpired` once the script, and all that it started in its group, is killed.
        """
        order = {"words": list(words), "spec": None if spec is None else str(spec)}
        return self._ordered(order, folder, environment, timeout)

    def launch(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        timeout: float = 600,
    ) -> subprocess.CompletedProcess[bytes]:
        """`python -m gpurun words...`: the launcher, and the scripts that it starts, are forks.

        Each of them is started instead where its environment asks for what only a start can give.
        """
        alike = read_at_start(environment, PROCESS) == read_at_start(os.environ, PROCESS)
        if alike and environment.get("PYTHONPATH") == str(REPOSITORY):
            return self._ordered({"gpurun": list(words)}, folder, environment, timeout)
        return subprocess.run(
            [sys.executable, "-m", "gpurun", *words],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )

    def supervisor(self, spec: SupervisorSpec) -> SandboxSupervisor:
        """In place of `sandbox._supervisor_process`: sandboxed scripts are forks, too."""
        process = self._started()
        assert process.stdin is not None
        lifeline, holds = os.pipe()
        answers, tells = os.pipe()
        numbers = (spec.terminal, spec.report)
        process.stdin.write(json.dumps({"sandbox": numbers}) + "\n")
        process.stdin.flush()
        socket.send_fds(self._hands_over, [b"."], [lifeline, *numbers, tells])
        for descriptor in (lifeline, tells):
            os.close(descriptor)
        return SandboxSupervisor(holds, answers)

    def _ordered(
        self, what: Mapping[str, Any], folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        process = self._started()
        assert self._outputs is not None
        assert process.stdin is not None
        assert process.stdout is not None
        outputs = Path(self._outputs.name)
        order = {
            **what, "folder": str(folder), "environment": dict(environment), "timeout": timeout,
            "outputs": str(outputs), "measure": self._measure,
        }  # fmt: skip
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, "the process that forks has died"
        code = json.loads(answer)
        words = what.get("words") or what["gpurun"]
        if code is None:
            raise subprocess.TimeoutExpired(words, timeout)
        out, err = ((outputs / name).read_bytes() for name in ("out", "err"))
        return subprocess.CompletedProcess(words, code, out, err)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._outputs = tempfile.TemporaryDirectory(prefix="gpurun-forked-")
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(self._takes.fileno())],
                pass_fds=(self._takes.fileno(),),
                env={**os.environ, **self._coverage, **OURS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            atexit.register(self._process.kill)
        return self._process


class SandboxSupervisor(subprocess.Popen[bytes]):
    """The supervisor of a sandbox, whose parent tells its process id and its exit code."""

    def __init__(self, stdin: int, answers: int) -> None:
        self._answers = os.fdopen(answers)
        self.args, self.returncode, self._child_created = (), None, False
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), None, None
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


NURSERY = Nursery()


def run_recorded(
    words: Sequence[str], folder: Path, spec: RunSpec
) -> subprocess.CompletedProcess[bytes]:
    """Run a script in `folder` under gpurun's runtime; its record goes where `spec` says."""
    path = Path(spec.run_dir) / "spec.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(spec))
    return NURSERY.run(words, folder, os.environ, path)


def as_text(done: subprocess.CompletedProcess[bytes]) -> subprocess.CompletedProcess[str]:
    """The same, its output decoded."""
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )
