"""Python's own start-up hook: the launcher puts this folder first on PYTHONPATH.

It reaches `python script.py`, `-m module`, spawned ranks and inner launchers alike and leaves no
frame in a traceback. It does three things and gets out of the way: takes this folder off
`sys.path`, lets the user's own sitecustomize run, and activates the runtime if a spec is named.
Nothing that fails here may reach the user's program.

A child may be another python, as old as 2: this file is valid there, and does the first two.
"""


def _leave_path(here):  # type: (str) -> None
    import os
    import sys

    sys.path[:] = [p for p in sys.path if not p or os.path.abspath(p) != here]
    sys.path_importer_cache.pop(here, None)


def _run_users_own():  # type: () -> None
    """Import the sitecustomize that python would have imported without us."""
    import sys

    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        # python's import machinery looks for the name again after this module has run
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


def _activate(here):  # type: (str) -> None
    import os
    import signal
    import sys

    spec = os.environ.get("GPURUN_SPEC")
    if not spec or sys.version_info < (3, 10):
        return
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    sys.path.insert(0, root)
    asked = signal.getsignal(signal.SIGINT)
    if asked is signal.default_int_handler:  # Ctrl-C shows no traceback of our imports
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from gpurun.runtime.boot import activate
    finally:
        sys.path.remove(root)
        if asked is signal.default_int_handler:
            signal.signal(signal.SIGINT, asked)
    activate.activate(spec)


def _main():  # type: () -> None
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    _leave_path(here)
    try:
        _activate(here)
    except Exception as error:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
            mark = os.open(os.environ["GPURUN_SPEC"] + ".error", flags, 0o644)
            with os.fdopen(mark, "w") as file:
                file.write("{}: {}\n".format(type(error).__name__, error))  # noqa: UP032
        except OSError:
            pass  # an unwritable folder must not stop the script; the launcher notes the silence
    _run_users_own()


_main()
del _main, _activate, _leave_path, _run_users_own
