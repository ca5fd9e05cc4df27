"""Scripts of tests run in forks of one process that has imported torch, and used nothing of it.

Importing torch and what an optimizer makes it import takes seconds, and a test's script hundredths.
The runtime meets the same order of things in a trial whose process was started before its turn
(`gpurun/runtime/boot/prestart_wait.py`): torch first, the spec and knobs afterwards. What is about
the launcher, the environment or the start of a process is tested by launches instead.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json

IMPORTED = ("torch", "torch._dynamo", "torch.utils.data")


class Nursery:
    """The process that forks, started when the first script is to run."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

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
        order = {
            "words": list(words), "folder": str(folder), "environment": dict(environment),
            "spec": None if spec is None else str(spec), "timeout": timeout,
        }  # fmt: skip
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        assert answer, "the process that forks has died"
        code = json.loads(answer)
        if code is None:
            raise subprocess.TimeoutExpired(list(words), timeout)
        out, err = (_output(folder, name).read_bytes() for name in ("out", "err"))
        return subprocess.CompletedProcess(list(words), code, out, err)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            repository = Path(__file__).resolve().parents[1]
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                env={**os.environ, "PYTHONPATH": str(repository)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            atexit.register(self._process.kill)
        return self._process


NURSERY = Nursery()


def run_recorded(
    words: Sequence[str], folder: Path, spec: RunSpec
) -> subprocess.CompletedProcess[bytes]:
    """Run a script in `folder` under gpurun's runtime; its record goes where `spec` says."""
    path = Path(spec.run_dir) / "spec.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(spec))
    return NURSERY.run(words, folder, os.environ, path)


def _output(folder: Path, name: str) -> Path:
    return folder / f".forked-{name}"


def serve() -> dict[str, Any]:
    """Fork a child for each order on stdin and tell its exit code; in the child, its order."""
    import importlib
    import signal
    import time

    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return order
        end = time.monotonic() + order["timeout"]
        ended, status = os.waitpid(child, os.WNOHANG)
        while not ended and time.monotonic() < end:
            time.sleep(0.005)
            ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
    os._exit(0)  # the tests are over


def become(order: Mapping[str, Any]) -> tuple[CodeType, ModuleType]:
    """Make this process that of the script, as python's start-up with our hook would."""
    from multiprocessing import process

    os.setpgid(0, 0)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, name in enumerate(("in", "out", "err")):
        path = os.devnull if name == "in" else _output(Path(), name)
        flags = os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags), number)
    process.ORIGINAL_DIR = os.getcwd()  # where spawned children look for the script
    script = order["words"][0]
    sys.argv = order["words"]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[0] = str(Path(script).absolute().parent)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    if order["spec"] is not None:
        from gpurun.launch.child_environment import child_environment
        from gpurun.runtime.boot.activate import activate

        os.environ.update(child_environment(Path(order["spec"]), os.environ))
        activate(order["spec"])
    return compile(Path(script).read_bytes(), script, "exec"), main


def run(code: CodeType, main: ModuleType) -> int:
    """Run the script to its end and return its exit code, with all that python does at its end but
    to take every module apart, which takes a second.
    """
    import threading
    import traceback

    status = 0
    try:
        exec(code, main.__dict__)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    os._exit(run(*become(serve())))
