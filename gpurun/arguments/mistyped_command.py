"""Mistyped commands: a word that names no file and is close to a command."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpurun.errors import GpurunError

BELOW_BENCH = ("accept", "bisect", "history", "selftest")
OTHER_WORDS = {
    **{word: f"gpurun bench {word}" for word in BELOW_BENCH},
    "apply": "gpurun --tuned",
    "compare": "gpurun report RUN RUN",
    "cost": "gpurun report",
    "optimize": "gpurun --optimize",
    "run": "gpurun script.py",
    "scale": "gpurun --scale 1,2,4",
    "tune": "gpurun --optimize",
}
"""By a word that is no command of gpurun's, the command that does it."""


def refuse_mistyped(word: str, commands: Iterable[str], above: str = "gpurun") -> None:
    """`GpurunError` if no file has this name and one of the commands (`gpurun profile`) is near.

    `above` is what stands before a command: "gpurun" or "gpurun bench".
    """
    if os.path.exists(word) or not word.isalpha():
        return
    from difflib import get_close_matches

    known = {command: f"{above} {command}" for command in commands}
    if above == "gpurun":
        known = {**OTHER_WORDS, **known}
    near = get_close_matches(word.lower(), known, 1, cutoff=0.7)
    if near:
        raise GpurunError(
            f"there is no file {word!r}; did you mean `{known[near[0]]}`?", f"see {above} --help"
        )
