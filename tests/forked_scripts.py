"""Forks become scripts: as python's start-up with our hook would make a process one."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import posix
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.forked import MALLOPT, THREADS

REALLY = os.execvpe
_REPLACED: list[Any] = []
"""Streams of before a fork, kept: what they hold back is written by the process that forked."""


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
    new_streams()
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


def new_streams() -> None:
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        _REPLACED.append(getattr(sys, name))
        lines = name == "stderr" or (name == "stdout" and os.isatty(1))
        file = open(  # noqa: SIM115 - as long as the process
            number, mode, buffering=1 if lines else -1, closefd=False,
            errors="backslashreplace" if name == "stderr" else None,
        )  # fmt: skip
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)


def become_fresh(environment: Mapping[str, str]) -> None:
    """Leave what an exec would: no descriptor of the launcher's, no handler and no module.

    What still names a descriptor is never collected: the number may soon be another file's.
    """
    from gpurun.knobs import USER_PACKAGE as users_knobs

    os.execvpe = REALLY
    gc.freeze()
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number > 2 and not os.get_inheritable(number):
                os.close(number)
        except OSError:  # the listing's own
            pass
    forget_handlers()
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    for name in list(sys.modules):
        if name.partition(".")[0] in ("gpurun", users_knobs):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_measuring() -> None:
    """Coverage goes on in a fork, and writes what it has seen at its end, unless it is told."""
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    if current is not None:
        current.stop()
        current._auto_save = False
    os._exit = posix._exit
