"""Import what Nsight Compute prints as CSV: the raw page or the details page."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.timeline.kernel_groups import kernel_group
from gpurun.timeline.limits import LONGEST_TEXT, too_long
from gpurun.timeline.model import MALFORMED, KernelMetrics, Timeline, launch_dimensions, malformed
from gpurun.timeline.report_exports import cure, messages

_COLUMNS = {"ID", "Kernel Name"}
_DECIMAL_COMMA = re.compile(r"^-?(0,\d+|\d+,(\d{1,2}|\d{4,})|\d{1,3}(\.\d{3})+,\d+)$")
_NUMBER = re.compile(r"^-?[\d.,]+(e[+-]?\d+)?$", re.IGNORECASE)
_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared_memory": "launch__occupancy_limit_shared_mem",
    "block_size": "launch__occupancy_limit_warps",
    "barriers": "launch__occupancy_limit_barriers",
    "blocks": "launch__occupancy_limit_blocks",
}
_SHARED = "launch__shared_mem_per_block"
_DETAILS = {
    "Duration": "gpu__time_duration.sum",
    "Compute (SM) Throughput": "sm__throughput" + _PEAK,
    "DRAM Throughput": "dram__throughput" + _PEAK,
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Registers Per Thread": "launch__registers_per_thread",
    "Dynamic Shared Memory Per Block": _SHARED + "_dynamic",
    "Static Shared Memory Per Block": _SHARED + "_static",
    "Driver Shared Memory Per Block": _SHARED + "_driver",
    "Block Limit Registers": _LIMITS["registers"],
    "Block Limit Shared Mem": _LIMITS["shared_memory"],
    "Block Limit Warps": _LIMITS["block_size"],
    "Block Limit Barriers": _LIMITS["barriers"],
    "Block Limit SM": _LIMITS["blocks"],
    "# SMs": "launch__sm_count",
}
"""Names on the details page, and the metrics that they stand for."""
_UNITS = {
    **dict.fromkeys(("us", "usecond", "Kbyte"), 1e3),
    **dict.fromkeys(("ms", "msecond", "Mbyte"), 1e6),
    **dict.fromkeys(("s", "second", "Gbyte"), 1e9),
}
"""Base units (ns, byte) in one of these; ncu scales them unless `--print-units base` is given."""
SECTIONS = "profile with --section SpeedOfLight --section Occupancy --section WarpStateStats"
Row = Mapping[str, str]


def read(page: Path) -> Timeline:
    """The launches of a page, in its order; they have no place in time.

    The notes are what Nsight Compute said beside them.
    """
    try:
        rows, units, said = _page(page)
        kernels = tuple(_metrics(row, numbers) for row, numbers in _launches(rows, units))
    except (csv.Error, *MALFORMED) as error:
        raise malformed(page, f"{type(error).__name__}: {error}") from None
    notes = [f"Nsight Compute: {text}" for text in said]
    if not any(kernel.is_measured for kernel in kernels):
        notes.append(f"{page.name} has none of the counters that gpurun reads: {SECTIONS}")
    return Timeline(("ncu",), 0, 0, kernel_metrics=kernels, notes=tuple(notes))


def _page(path: Path) -> tuple[Sequence[Row], Row, tuple[str, ...]]:
    """The table that ncu printed among lines of its own ("==PROF== …") and of the script.

    Rows by header, the units of the raw page, and what ncu said beside its table.
    """
    lines = list(_lines(path))
    said = messages(lines)
    lines = [line for line in lines if not line.startswith("==")]
    table = list(csv.reader(lines))
    start = next((i for i, row in enumerate(table) if set(row) >= _COLUMNS), len(table))
    header, *rows = table[start:] or [[]]
    if rows and rows[-1] and _is_cut(lines[-1], rows[-1], header):
        raise GpurunError(f"{path} ends in the middle of a row", "export it again")
    # rows of the details page leave out trailing columns that are empty
    found = [defaultdict(str, zip(header, row, strict=False)) for row in rows]
    launches = [row for row in found if row["ID"].isdigit() and row["Kernel Name"]]
    if launches:
        return launches, found[0] if not found[0]["ID"] else {}, said
    if said:
        why = "; ".join(said)
        raise GpurunError(f"{path} holds no launch of a kernel. Nsight Compute: {why}", cure(said))
    if header:
        raise GpurunError(f"{path} holds no launch of a kernel", "profile some launches")
    raise GpurunError(
        f"{path} is no CSV of Nsight Compute",
        "make one: ncu --import REPORT.ncu-rep --csv --page raw --print-units base",
    )


def _lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        for number in count(1):
            line = file.readline(LONGEST_TEXT)
            if len(line) == LONGEST_TEXT:
                raise too_long(path, f"line {number:,}")
            if not line:
                return
            yield line


def _is_cut(line: str, row: list[str], header: list[str]) -> bool:
    """The last line of a table lacks its end."""
    if line.endswith("\n") or not row[0].isdigit():
        return False
    return not line.endswith('"') or ("Metric Name" not in header and len(row) < len(header))


def _launches(rows: Sequence[Row], units: Row) -> Iterable[tuple[Row, Mapping[str, float]]]:
    """In their order, each with its metrics in base units: the raw page has a row a launch, the
    details page a row a metric.
    """
    details = "Metric Name" in rows[0]
    found: dict[object, tuple[Row, dict[str, float]]] = {}
    values = (t for row in rows for k, t in row.items() if "__" in k or k == "Metric Value")
    comma = any(map(_DECIMAL_COMMA.match, values))
    for number, row in enumerate(rows):
        cells = [(key, text, units.get(key, "")) for key, text in row.items() if "__" in key]
        if details:
            name = row["Metric Name"]
            cells = [(_DETAILS.get(name, name), row["Metric Value"], row["Metric Unit"])]
        key = (row.get("Process ID", ""), row["ID"]) if details else number
        numbers = found.setdefault(key, (row, {}))[1]
        for name, text, unit in cells:
            value = parse_number(text, comma)
            if value is not None:
                numbers.setdefault(name, value * _UNITS.get(unit.partition("/")[0], 1.0))
    return found.values()


def _metrics(row: Row, numbers: Mapping[str, float]) -> KernelMetrics:
    def get(*names: str) -> float | None:
        return next((numbers[name] for name in names if name in numbers), None)

    def whole(value: float | None) -> int | None:
        return None if value is None else int(value)

    name, threads = row["Kernel Name"], get("smsp__thread_inst_executed_per_inst_executed.ratio")
    parts = [numbers.get(f"{_SHARED}_{part}") for part in ("dynamic", "static", "driver")]
    known = [part for part in parts if part is not None]  # of the details page
    return KernelMetrics(
        name=name,
        group=kernel_group(name),
        duration_ns=get("gpu__time_duration.sum"),
        grid=_dimensions(row.get("Grid Size", "")),
        block=_dimensions(row.get("Block Size", "")),
        registers=whole(get("launch__registers_per_thread")),
        shared_memory_bytes=whole(numbers.get(_SHARED, sum(known) if known else None)),
        sm_percent=get("sm__throughput" + _PEAK),
        dram_percent=get("dram__throughput" + _PEAK, "gpu__dram_throughput" + _PEAK),
        occupancy_percent=get("sm__warps_active.avg.pct_of_peak_sustained_active"),
        theoretical_occupancy_percent=get("sm__maximum_warps_per_active_cycle_pct"),
        branch_efficiency_percent=None if threads is None else threads / 32 * 100,
        occupancy_limits={what: numbers[key] for what, key in _LIMITS.items() if key in numbers},
        multiprocessors=whole(get("launch__sm_count")),
    )


def parse_number(text: str, decimal_comma: bool = False) -> float | None:
    """A number as ncu prints it ("1,234.5", or "1.234,5" in other locales); None for a word."""
    text = text.strip()
    plain = text.replace(".", "").replace(",", ".") if decimal_comma else text.replace(",", "")
    try:
        number = float(plain) if _NUMBER.match(text) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _dimensions(text: str) -> tuple[int, int, int] | None:
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    return launch_dimensions(*numbers) if len(numbers) == 3 else None
