"""The kernels that one fused kernel makes needless: it moves the bytes of a chain once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from gpurun.timeline.model import Copy, Group, Kernel
from gpurun.timeline.weighty_kernels import SHORT_NS

FUSABLE = (Group.ELEMENTWISE, Group.NORM, Group.REDUCTION)
"""Kinds of kernels that a compiler joins, as long as no other kernel comes between them."""


def is_long(kernel: Kernel) -> bool:
    """It takes so long that it is more than a matter of launches."""
    return kernel.end_ns - kernel.begin_ns >= SHORT_NS


def needless_if_fused(
    work: Iterable[Kernel | Copy], of: Callable[[Kernel], bool] = is_long
) -> Iterator[tuple[int, int]]:
    """Place and length in nanoseconds of each kernel whose work a fused one would do in passing.

    `work` is in ascending order of its begin; `of`: the kernels to look at. Of the kernels of a
    chain that visit as many elements in the same way (same grid, block and template) the longest
    stays. Kernels of other sizes may work on other tensors: they stay, too.
    """
    chains: dict[tuple[int, int], dict[Hashable, tuple[int, int]]] = {}
    for place, record in enumerate(work):
        chain = chains.setdefault((record.device, record.stream), {})
        if isinstance(record, Copy) or record.group not in FUSABLE:
            chain.clear()
        elif record.kind.grid is not None and of(record):
            shape = (record.kind.grid, record.kind.block, record.name.partition(",")[0])
            own = (record.end_ns - record.begin_ns, place)
            if shape in chain:
                length, needless = min(chain[shape], own)
                yield needless, length
                own = max(chain[shape], own)
            chain[shape] = own
