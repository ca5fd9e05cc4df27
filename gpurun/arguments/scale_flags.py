"""The flags of `--scale`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpurun.arguments.flag_parser import filled
from gpurun.arguments.options import ScaleOptions
from gpurun.errors import GpurunError


def scale_options(own: Mapping[str, str]) -> ScaleOptions | None:
    """The options among our own flags; None without `--scale`."""
    if "scale" not in own:
        return None
    return filled(ScaleOptions, own, counts=_counts(own["scale"]))


def check_counts(counts: Sequence[int], ranks: int, nodes: int) -> None:
    """`GpurunError` where a count does not fill nodes of `ranks` each, or needs more of them."""
    for count in counts:
        if count > ranks * nodes:
            raise GpurunError(
                f"--scale: {count} is above the {ranks * nodes} ranks of {nodes} nodes",
                "leave it out",
            )
        if count > ranks and count % ranks:
            raise GpurunError(
                f"--scale: {count} does not fill nodes of {ranks} ranks",
                f"write multiples of {ranks}, or give the ranks of a node with --nproc-per-node",
            )


def _counts(text: str) -> tuple[int, ...]:
    """The counts of `--scale 1,2,4`, rising."""
    words = [word.strip() for word in text.split(",")]
    if "," not in text and any(letter.isalpha() for letter in text):  # the next flag or the script
        raise GpurunError(
            f"--scale needs counts of devices, not {text}",
            "write counts, as in gpurun --scale 1,2,4 train.py; see gpurun --help",
        )
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and int(word))]
    if wrong:
        raise GpurunError(
            f"--scale: {wrong[0]!r} is no count of devices", "write counts from 1: --scale 1,2,4"
        )
    counts = [int(word) for word in words]
    twice = [count for count in counts if counts.count(count) > 1]
    if twice:
        raise GpurunError(f"--scale: {twice[0]} is there twice", "write each count once")
    if len(counts) == 1:
        raise GpurunError(
            f"--scale {text} is one count only",
            f"name another one to compare it with: --scale 1,{max(counts[0], 2)}",
        )
    return tuple(sorted(counts))
