"""Run a script in a fresh `__main__`, where python's start-up hook is switched off (`-I -E -S`).

Started as `python -I in_main.py [-m] target args...`; does by hand what sitecustomize and python do
otherwise, and leaves no frame of its own in a traceback.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, TracebackType
from typing import Any, NoReturn

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def main() -> None:
    """Activate the runtime, then become the target."""
    words = sys.argv[1:]
    sys.orig_argv[:] = [word for word in sys.orig_argv if word != __file__]
    adds_folder = bool(sys.path) and sys.path[0] == HERE  # python did not under -I and -P
    if adds_folder:
        del sys.path[0]
    bootstrap = os.path.join(HERE, "bootstrap")  # -S leaves PYTHONPATH on
    sys.path[:] = [folder for folder in sys.path if folder != bootstrap]
    _activate()
    del sys.modules["__main__"]
    try:
        if words[0] == "-m":
            _run_module(words[1:], adds_folder)
        else:
            _run_script(words, adds_folder)
    except SystemExit:
        raise
    except BaseException as error:
        _end(error)


def _activate() -> None:
    spec = os.environ.get("GPURUN_SPEC")
    if not spec:
        return
    sys.path.insert(0, ROOT)
    try:
        from gpurun.runtime import activate

        activate.activate(spec)
    except Exception as error:
        try:
            with open(spec + ".error", "w") as file:
                file.write(f"{type(error).__name__}: {error}\n")
        except OSError:
            pass  # as in sitecustomize: an unwritable folder must not stop the script
    finally:
        sys.path.remove(ROOT)


def _run_module(words: list[str], adds_folder: bool) -> None:
    import runpy

    sys.argv[:] = ["-m", *words[1:]]
    if adds_folder:
        sys.path.insert(0, os.getcwd())
    sys.modules["__main__"] = ModuleType("__main__")
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]


def _run_script(words: list[str], adds_folder: bool) -> None:
    path = words[0]
    sys.argv[:] = words
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        import runpy

        sys.path.insert(0, path)
        sys.modules["__main__"] = ModuleType("__main__")
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if adds_folder:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)) if path != "-" else "")
    source = _source(path)
    main_module = _fresh_main(path)
    sys.modules["__main__"] = main_module
    name = "<stdin>" if path == "-" else main_module.__file__ or path
    code = compile(source, name, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)


def _source(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        where = os.path.join(os.getcwd(), path)
        reason = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {where!r}: {reason}\n")
        sys.exit(2)


def _fresh_main(path: str) -> ModuleType:
    import builtins
    from importlib.machinery import SourceFileLoader

    module: Any = ModuleType("__main__")
    module.__builtins__ = builtins
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    if path != "-":
        module.__file__ = os.path.abspath(path)
        module.__cached__ = None
        module.__loader__ = SourceFileLoader("__main__", module.__file__)
    return module


def _end(error: BaseException) -> NoReturn:
    """End as python ends on an uncaught exception, without our frames."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        import signal

        sys.stdout.flush()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


main()
