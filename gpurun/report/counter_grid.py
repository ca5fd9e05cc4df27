"""The counters of Nsight Compute as a table, a row for each kernel."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.formatting.number_text import byte_size, number, percent
from gpurun.records.profile_figures import KernelCounters
from gpurun.report.terminal_table import Column, Grid

TITLE = "Nsight Compute, percent of the device's peak (n/a: not measured)"
NOT_MEASURED = "n/a"
_COLUMNS = (
    "time", "launches", "SM", "DRAM", "occupancy", "warps", "registers", "shared memory", "grid",
    "block",
)  # fmt: skip


def counter_grid(kernels: Sequence[KernelCounters]) -> Grid:
    """The kernels in their order."""
    columns = (*(Column(name, right=True) for name in _COLUMNS), Column("kernel"))
    return Grid(columns, tuple(map(_row, kernels)))


def _row(kernel: KernelCounters) -> tuple[str, ...]:
    cells = (
        None if kernel.mean_us is None else f"{number(kernel.mean_us)} µs",
        str(kernel.launches),
        _percent(kernel.sm_percent),
        _percent(kernel.dram_percent),
        _percent(kernel.occupancy_percent),
        _percent(kernel.warp_efficiency_percent),
        None if kernel.registers is None else str(kernel.registers),
        None if kernel.shared_memory_bytes is None else byte_size(kernel.shared_memory_bytes),
        _dimensions(kernel.grid),
        _dimensions(kernel.block),
        short_kernel_name(kernel.name),
    )
    return tuple(NOT_MEASURED if cell is None else cell for cell in cells)


def _percent(value: float | None) -> str | None:
    return None if value is None else percent(value / 100)


def _dimensions(size: tuple[int, int, int] | None) -> str | None:
    """Trailing ones say nothing: 64, 16×8, 16×1×8."""
    if size is None:
        return None
    kept = [*size]
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return "×".join(map(str, kept))
