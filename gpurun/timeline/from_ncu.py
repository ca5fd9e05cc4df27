"""Import what Nsight Compute prints as CSV: the raw page, and the rules of the details page."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.timeline.kernel_groups import kernel_group, uses_tensor_cores
from gpurun.timeline.model import MALFORMED, KernelMetrics, launch_dimensions, malformed

Rule = tuple[str, str, float | None]
_RAW_COLUMNS = {"ID", "Kernel Name", "Device"}
_DETAILS_COLUMNS = {"ID", "Rule Name", "Rule Description"}
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


def read(raw: Path, details: Path | None = None) -> tuple[KernelMetrics, ...]:
    """The launches of the raw page, in its order, with the rules of the details page."""
    try:
        return _read(raw, details)
    except (csv.Error, *MALFORMED) as error:
        raise malformed(raw, f"{type(error).__name__}: {error}") from None


def _read(raw: Path, details: Path | None) -> tuple[KernelMetrics, ...]:
    rows = _table(raw, _RAW_COLUMNS)
    if rows and not rows[0]["ID"]:
        rows = rows[1:]  # the units; ncu prints base units
    if not rows:
        raise GpurunError(f"{raw} holds no launch of a kernel", "profile some launches")
    comma = _has_decimal_commas(rows)
    rules = _rules(details, comma) if details is not None else {}
    return tuple(_metrics(row, rules.get(row["ID"], ()), comma) for row in rows)


def _table(path: Path, needed: set[str]) -> list[dict[str, str]]:
    """Rows by header. Lines before the header (ncu's own, "==PROF== …") are passed over."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        lines = [line for line in file if not line.startswith("==")]
    rows = list(csv.reader(lines))
    start = next((i for i, row in enumerate(rows) if needed <= set(row)), None)
    if start is None:
        raise GpurunError(
            f"{path} is no CSV of Nsight Compute",
            "make one: ncu --import REPORT.ncu-rep --csv --page raw --print-units base",
        )
    header = rows[start]
    if not lines[-1].endswith("\n"):
        raise GpurunError(f"{path} ends in the middle of a row", "export it again")
    # rows of the details page leave out trailing columns that are empty
    return [
        dict(zip_longest(header, row[: len(header)], fillvalue="")) for row in rows[start + 1 :]
    ]


def _metrics(row: Mapping[str, str], rules: tuple[Rule, ...], comma: bool) -> KernelMetrics:
    name = row["Kernel Name"]
    numbers = {
        key: number
        for key, text in row.items()
        if "__" in key and (number := parse_number(text, comma)) is not None
    }
    get = numbers.get
    threads = get("smsp__thread_inst_executed_per_inst_executed.ratio")
    return KernelMetrics(
        name=name,
        group=kernel_group(name),
        tensor_core=uses_tensor_cores(name),
        device=int(row["Device"]) if row["Device"].isdigit() else 0,
        duration_ns=get("gpu__time_duration.sum"),
        grid=_dimensions(row.get("Grid Size", "")),
        block=_dimensions(row.get("Block Size", "")),
        registers=_whole(get("launch__registers_per_thread")),
        shared_memory_bytes=_whole(get("launch__shared_mem_per_block")),
        sm_percent=get("sm__throughput" + _PEAK),
        dram_percent=_first(numbers, "dram__throughput" + _PEAK, "gpu__dram_throughput" + _PEAK),
        occupancy_percent=get("sm__warps_active.avg.pct_of_peak_sustained_active"),
        theoretical_occupancy_percent=get("sm__maximum_warps_per_active_cycle_pct"),
        branch_efficiency_percent=None if threads is None else threads / 32 * 100,
        tensor_pipe_percent=_tensor_pipe(numbers),
        occupancy_limits={what: numbers[key] for what, key in _LIMITS.items() if key in numbers},
        rules=rules,
        others=numbers,
    )


def _tensor_pipe(numbers: Mapping[str, float]) -> float | None:
    return _first(
        numbers,
        "sm__pipe_tensor_cycles_active" + _PEAK,
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor" + _PEAK,
    )


def _first(numbers: Mapping[str, float], *names: str) -> float | None:
    return next((numbers[name] for name in names if name in numbers), None)


def _rules(path: Path, comma: bool) -> dict[str, tuple[Rule, ...]]:
    """The rules that Nsight Compute itself applied, by the launch's ID."""
    found: dict[str, list[Rule]] = defaultdict(list)
    for row in _table(path, _DETAILS_COLUMNS):
        if row["Rule Name"]:
            gain = parse_number(row.get("Estimated Speedup", ""), comma)
            found[row["ID"]].append((row["Rule Name"], row["Rule Description"], gain))
    return {launch: tuple(rules) for launch, rules in found.items()}


def _has_decimal_commas(rows: list[dict[str, str]]) -> bool:
    return any(
        _DECIMAL_COMMA.match(text) for row in rows for key, text in row.items() if "__" in key
    )


def parse_number(text: str, decimal_comma: bool = False) -> float | None:
    """A number as ncu prints it ("1,234.5", or "1.234,5" in other locales); None for a word."""
    text = text.strip()
    if not _NUMBER.match(text):
        return None
    text = text.replace(".", "").replace(",", ".") if decimal_comma else text.replace(",", "")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _dimensions(text: str) -> tuple[int, int, int] | None:
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    return launch_dimensions(*numbers) if len(numbers) == 3 else None
