"""What Nsight Compute itself says of a recording that failed, and the cure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

OPEN_COUNTERS = (
    "run as root (a container: `--cap-add SYS_ADMIN`), or load the nvidia module with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
"""Against ERR_NVGPUCTRPERM: NVIDIA's drivers keep the GPU's counters for administrators."""
MOST = 5
_MESSAGE = re.compile(r"==(ERROR|WARNING)==\s*(?:Error:\s*)?(\S.*)")


def messages(lines: Iterable[str]) -> tuple[str, ...]:
    """Errors among the lines that it printed, then warnings; each once, at most `MOST`."""
    said = [found.groups() for line in lines if (found := _MESSAGE.match(line))]
    ordered = sorted(said, key=lambda message: message[0] != "ERROR")
    return tuple(dict.fromkeys(text.strip().rstrip(".") for _, text in ordered))[:MOST]


def cure(said: Sequence[str]) -> str:
    """What to do about these messages."""
    if any("ERR_NVGPUCTRPERM" in text for text in said):
        return OPEN_COUNTERS
    return "mend what these messages name, and profile again"
