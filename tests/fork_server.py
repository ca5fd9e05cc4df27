"""The process of `tests/forked.py` that forks: it has imported torch, and used nothing of it.

A fork becomes a script, as python's start-up with our hook would make it one, or gpurun's launcher.
Where the launcher executes python for a script, and where it starts the process that makes a
trial's sandbox, the process that it has forked goes on instead: torch is there already.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import posix
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.forked import MALLOPT, REPOSITORY, THREADS, read_at_start

IMPORTED = ("torch", "torch._dynamo", "torch.utils.data")
LAUNCHER = ("gpurun.cli", "gpurun.commands.run", "gpurun.commands.optimize")
"""What launchers import; imported before the first one is forked."""
START = read_at_start(os.environ)
HASHES = (None, "0")
"""This process hashes texts like python with the second; without the variable any way will do."""
_REPLACED: list[Any] = []
"""Streams of before a fork, kept: what they hold back is written by the process that forked."""


def serve() -> dict[str, Any]:
    """Fork a child for each order on stdin and tell its exit code; in the child, its order."""
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        for name in LAUNCHER if "gpurun" in order else ():
            importlib.import_module(name)
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


def obey(order: Mapping[str, Any]) -> NoReturn:
    """Carry out an order, and end."""
    os.setpgid(0, 0)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, name in enumerate(("in", "out", "err")):
        path = os.devnull if name == "in" else os.path.join(order["outputs"], name)
        flags = os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(path, flags), number)
    if not order["measure"]:
        _stop_measuring()
    if "gpurun" in order:
        end(lambda: launch(order["gpurun"]))
    if order["spec"] is not None:
        from gpurun.launch.launch_command import child_environment

        os.environ.update(child_environment(Path(order["spec"]), os.environ))
    run_script(order["words"])


def _stop_measuring() -> None:
    """Coverage goes on in a fork, and writes what it has seen at its end, unless it is told."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        current.stop()
        current._auto_save = False
    os._exit = posix._exit


# -- a script --------------------------------------------------------------------------------------


def run_script(words: Sequence[str]) -> NoReturn:
    """Become `python words...` in the environment of this process, and end as it would."""
    from multiprocessing import process

    path = os.path.abspath(words[0])
    # where spawned children look for the script
    process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    sys.argv = list(words)
    sys.orig_argv = [sys.executable, *words]
    sys.path[0] = os.path.dirname(path)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __builtins__=__builtins__, __cached__=None, __annotations__={}
    )
    sys.modules["__main__"] = main
    _new_streams()
    _set_what_starts_read()
    if "GPURUN_SPEC" in os.environ:
        from gpurun.runtime.boot.activate import activate

        activate(os.environ["GPURUN_SPEC"])

    def body() -> None:
        exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)

    end(body)


def _set_what_starts_read() -> None:
    """Threads and thresholds of malloc, which OpenMP and glibc read when a process starts."""
    import torch

    threads = next((os.environ[name] for name in THREADS if os.environ.get(name)), "")
    if threads.isdigit():
        torch.set_num_threads(int(threads))
    for name, parameter in MALLOPT.items():
        if os.environ.get(name, "").isdigit():
            most = 2**31 - 1  # it takes an int
            ctypes.CDLL(None).mallopt(parameter, min(int(os.environ[name]), most))


def end(body: Callable[[], object]) -> NoReturn:
    """Run `body` and end as python does after it, but for taking every module apart, which takes a
    second.
    """
    status, interrupted = 0, False
    try:
        body()
    except SystemExit as ended:
        status = _status(ended)
    except BaseException as error:
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
        _show(error)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _status(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    print(ended.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """As python shows it: from the script's first frame on."""
    trace = error.__traceback__
    here = Path(__file__)
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) == here:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        traceback.print_exc()


def _new_streams() -> None:
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        _REPLACED.append(getattr(sys, name))
        lines = name == "stderr" or (name == "stdout" and os.isatty(1))
        file = open(  # noqa: SIM115 - as long as the process
            number, mode, buffering=1 if lines else -1, closefd=False,
            errors="backslashreplace" if name == "stderr" else None,
        )  # fmt: skip
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


# -- gpurun ----------------------------------------------------------------------------------------


def launch(words: Sequence[str]) -> None:
    """Run gpurun's command line; its scripts go on in the processes that it forks for them."""
    from gpurun.__main__ import entry
    from gpurun.isolation import sandbox
    from gpurun.launch.launch_command import BOOTSTRAP

    places = (str(REPOSITORY), os.pathsep.join((str(BOOTSTRAP), str(REPOSITORY))))
    really = os.execvpe

    def execute(file: str, args: list[str], environment: dict[str, str]) -> None:
        if (
            file == sys.executable
            and len(args) > 1
            and args[1].endswith(".py")
            and os.path.isfile(args[1])
            and read_at_start(environment) == START
            and environment.get("PYTHONPATH") in places
            and environment.get("PYTHONHASHSEED") in HASHES
        ):
            os.execvpe = really
            become_fresh(environment)
            run_script(args[1:])
        really(file, args, environment)

    os.execvpe = execute  # type: ignore[assignment]
    sandbox._supervisor_process = fork_supervisor
    sys.argv = [str(REPOSITORY / "gpurun" / "__main__.py"), *words]
    sys.orig_argv = [sys.executable, "-m", "gpurun", *words]
    sys.path[0] = os.getcwd()
    _new_streams()
    entry()


def become_fresh(environment: Mapping[str, str]) -> None:
    """Leave what an exec would: no descriptor of the launcher's, no handler and no module.

    What still names a descriptor is never collected: the number may soon be another file's.
    """
    from gpurun.knobs import USER_PACKAGE as users_knobs

    gc.freeze()
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number > 2 and not os.get_inheritable(number):
                os.close(number)
        except OSError:  # the listing's own
            pass
    _forget_handlers()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("gpurun", users_knobs):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Supervisor(subprocess.Popen[bytes]):
    """A forked child in place of one that was started."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.args, self.pid, self.returncode = (), pid, None
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), None, None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._communication_started, self._input = False, None
        self._sigint_wait_secs = 0.25


def fork_supervisor(spec: Any) -> Supervisor:
    """The process that `sandbox._supervisor_process` starts, as a fork."""
    from gpurun.isolation import sandbox_supervisor

    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.chdir("/")
            nothing = os.open(os.devnull, os.O_RDWR)
            for number, place in ((reads, 0), (nothing, 1), (nothing, 2)):
                os.dup2(number, place)
            kept = sorted((spec.terminal, spec.report))
            for first, after in zip((2, *kept), (*kept, os.sysconf("SC_OPEN_MAX")), strict=True):
                os.closerange(first + 1, after)
            _forget_handlers()
            _stop_measuring()  # python starts it without coverage
            sandbox_supervisor.main()
        finally:
            os._exit(sandbox_supervisor.NOT_SET_UP)
    os.close(reads)
    return Supervisor(pid, writes)


if __name__ == "__main__":
    obey(serve())
