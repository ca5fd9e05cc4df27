"""Caches that many short launches of one program share: torch's kernels, python's bytecode.

An isolated launch loses its compiled code with all its other files. torch may be installed without
bytecode: installers such as uv leave it to the first import, images of containers often forbid it.
Then each launch would compile a few thousand modules again, for five seconds and more.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = "torch"
MODULES = ("__init__.py", "_inductor/compile_fx.py")
"""Files of it whose bytecode is looked for: a run that never compiled has not imported the last."""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
ELSEWHERE = "PYTHONPYCACHEPREFIX"
KERNELS = "TORCHINDUCTOR_CACHE_DIR"


def shared_cache_environment(
    environment: Mapping[str, str],
    cache: Path,
    program: str = sys.executable,
    *,
    isolated: bool = True,
) -> dict[str, str]:
    """`environment` for one of many launches that share the folder `cache` and hash alike.

    What the user set stays. Only a folder for torch's kernels is replaced if it is empty: what an
    `isolated` launch writes into it is lost to the next. `program`: what is launched; bytecode is
    only taken care of where that is this interpreter.
    """
    launched = {"PYTHONHASHSEED": "0", **environment}
    own = environment.get(KERNELS)
    if not own or (isolated and not _holds_files(own)):
        launched[KERNELS] = str(kernels_in(cache))
    ours = program == sys.executable and ELSEWHERE not in environment
    if ours and not _never_written() and not _has_bytecode():
        launched[ELSEWHERE] = str(cache / "bytecode")
        launched.pop(NO_BYTECODE, None)
    return launched


def kernels_in(cache: Path) -> Path:
    """The folder of torch's kernels in a shared cache."""
    return cache / "inductor"


def _holds_files(folder: str) -> bool:
    """True if the folder has something in it; True also where that cannot be told."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _never_written() -> bool:
    """True if python was given `-B`, which the launched one is given as well."""
    return bool(sys.flags.dont_write_bytecode) and not os.environ.get(NO_BYTECODE)


def _has_bytecode() -> bool:
    """True if python has compiled torch already; True also where there is none to compile."""
    try:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.has_location or spec.origin is None:
            return True
        sources = [Path(spec.origin).parent / name for name in MODULES]
        compiled = [importlib.util.cache_from_source(str(x)) for x in sources if x.is_file()]
        return all(Path(path).exists() for path in compiled)
    except OSError:  # what we may not read the launched one may not either
        return False
    except (ImportError, ValueError, NotImplementedError):  # a stand-in, or no bytecode at all
        return True
