"""The environment of a launched program: how our start-up hook gets into it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpurun.records.spec import SPEC_VARIABLE

BOOTSTRAP = Path(__file__).resolve().parent.parent / "runtime" / "bootstrap"


def child_environment(spec_path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with our bootstrap folder first on PYTHONPATH and the spec named.

    The current folder is never put on PYTHONPATH: an empty PYTHONPATH stays without empty parts,
    which python would read as the current folder.
    """
    inherited = base.get("PYTHONPATH", "")
    parts = [part for part in (str(BOOTSTRAP), inherited) if part]
    if inherited.split(os.pathsep)[0] == str(BOOTSTRAP):
        parts = [inherited]  # gpurun inside gpurun
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(parts),
        SPEC_VARIABLE: str(spec_path),
    }
