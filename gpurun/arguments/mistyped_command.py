"""Mistyped commands: a word that names no file and is close to a command."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpurun.errors import GpurunError

BELOW_BENCH = ("accept", "bisect", "history", "selftest")


def refuse_mistyped(word: str, commands: Iterable[str], above: str = "gpurun") -> None:
    """`GpurunError` if no file has this name and one of the commands (`gpurun profile`) is near.

    `above` is what stands before a command: "gpurun" or "gpurun bench".
    """
    if os.path.exists(word) or not word.isalpha():
        return
    if above == "gpurun" and word in BELOW_BENCH:
        raise GpurunError(
            f"there is no file {word!r}; did you mean `gpurun bench {word}`?", "see gpurun --help"
        )
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), list(commands), 1, cutoff=0.7)
    if near:
        raise GpurunError(
            f"there is no file {word!r}; did you mean `{above} {near[0]}`?", f"see {above} --help"
        )
