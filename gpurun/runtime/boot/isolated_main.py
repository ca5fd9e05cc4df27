"""Run a script in a fresh `__main__`, where python's start-up hook is switched off (`-I -E -S`).

Started as `python -I isolated_main.py [-m] target args...`. It does the work of sitecustomize and
of python's own start, and leaves no frame of its own in a traceback.
"""

from __future__ import annotations

import builtins
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType, TracebackType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


def main() -> None:
    """Activate the runtime, then become the target."""
    words = sys.argv[1:]
    sys.orig_argv[:] = [word for word in sys.orig_argv if word != __file__]
    adds_folder = bool(sys.path) and sys.path[0] == HERE  # python did not under -I and -P
    if adds_folder:
        del sys.path[0]
    bootstrap = os.path.join(os.path.dirname(HERE), "bootstrap")  # -S leaves PYTHONPATH on
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
    except BaseException:
        _hide_frames()
        raise


def _activate() -> None:
    spec = os.environ.get("GPURUN_SPEC")
    if not spec:
        return
    sys.path.insert(0, ROOT)
    try:
        from gpurun.runtime.boot import activate

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
    sys.modules["__main__"] = _fresh_main()
    runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]


def _run_script(words: list[str], adds_folder: bool) -> None:
    path = words[0]
    sys.argv[:] = words
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        import runpy

        sys.path.insert(0, path)
        sys.modules["__main__"] = _fresh_main()
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    if adds_folder:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)) if path != "-" else "")
    source = _source(path)
    main_module: Any = _fresh_main()
    name = "<stdin>"
    if path != "-":
        name = os.path.abspath(path)
        main_module.__file__ = name
        main_module.__cached__ = None
        main_module.__loader__ = SourceFileLoader("__main__", name)
    sys.modules["__main__"] = main_module
    exec(compile(source, name, "exec", dont_inherit=True), main_module.__dict__)


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


def _fresh_main() -> Any:
    module: Any = ModuleType("__main__")
    module.__builtins__ = builtins
    if sys.version_info < (3, 14):
        module.__annotations__ = {}
    return module


def _hide_frames() -> None:
    """Have python end as on any uncaught exception, but show the traceback without our frames."""
    shown = sys.excepthook

    def excepthook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.excepthook = shown
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.last_traceback = trace
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = excepthook


main()
