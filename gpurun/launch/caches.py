"""What many short launches of one program compile once: torch's kernels, python's bytecode.

A launch in isolation leaves no `__pycache__` behind. Where torch was installed without bytecode
(installers such as uv leave it to the first import, images of containers often forbid it), each
launch would compile a few thousand modules again, for five seconds and more.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

LARGEST_IMPORT = "torch"


def for_short_launches(
    environment: Mapping[str, str], cache: Path, python: str = sys.executable
) -> dict[str, str]:
    """`environment` for one of many launches that share the folder `cache` and hash alike.

    What the user set of this stays. `python`: the interpreter that is launched; bytecode is only
    looked for where it is this one.
    """
    shared = {"TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"), "PYTHONHASHSEED": "0"}
    launched = {**shared, **environment}
    if python == sys.executable and not _has_bytecode(LARGEST_IMPORT):
        launched.setdefault("PYTHONPYCACHEPREFIX", str(cache / "bytecode"))
        launched.pop("PYTHONDONTWRITEBYTECODE", None)
    return launched


def _has_bytecode(package: str) -> bool:
    """Whether python has compiled a package already; True also where there is none to compile."""
    try:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.has_location or spec.origin is None:
            return True
        return Path(importlib.util.cache_from_source(spec.origin)).exists()
    except (ImportError, ValueError, NotImplementedError):  # a stand-in, or no bytecode at all
        return True
