"""`gpurun.toml`: the nearest one upward, or `[tool.gpurun]` of a pyproject.toml. Flags win over it.

The known keys are the flags of `Options` that have one, and the fields of the dataclasses below: a
new section is a new dataclass and a field of `Config`.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpurun.arguments.gpurun_toml_keys import (
    FLAG_KEYS,
    FRACTIONS,
    NOT_A_KEY,
    POSITIVE,
    checked_table,
    flag_values,
    keys_of,
)
from gpurun.arguments.options import DEFAULT_EFFECTS
from gpurun.arguments.trusted_files import read_with_status, require_trusted
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import from_json


@dataclass(frozen=True)
class BenchmarkConfig:
    """`[[bench.benchmark]]`: one benchmark; what it leaves out, `[bench]` says.

    `script` and `needed` are relative to the file, in whose folder launches start.
    """

    name: str | None = None
    """The name of its records; by default the script's name without suffix."""
    script: str | None = None
    args: tuple[str, ...] | None = None
    steps: int | None = field(default=None, metadata=POSITIVE)
    """Training steps that a launch is measured for; by default as many as it takes."""
    setup: str | None = None
    """A shell command, run on both sides, each with a python environment of its own."""
    env: dict[str, str] | None = None
    """Variables of setup and launches, added to those of `[bench]`."""
    needed: tuple[str, ...] | None = None
    """Globs of untracked files that are copied to the baseline's side."""
    metrics: tuple[Metric, ...] | None = None
    """Metrics that can fail the comparison; by default throughput and peak memory."""
    thresholds: dict[str, float] | None = field(default=None, metadata=FRACTIONS)
    """By metric, the fraction by which it may get worse, added to those of `[bench]`. Defaults:
    0.01 for the peak memory, 0.05 for the others."""


@dataclass(frozen=True)
class BenchConfig(BenchmarkConfig):
    """`[bench]`: what holds for every benchmark, or the only one where it lists none."""

    benchmark: tuple[BenchmarkConfig, ...] = ()


@dataclass(frozen=True)
class ReportConfig:
    """`[report]`: what a page needs to speak of money and CO₂. None: it does not.

    `price_per_hour`: of one GPU; of the machine where there is none.
    """

    price_per_hour: float | None = field(default=None, metadata=POSITIVE)
    currency: str = "$"
    grams_co2_per_kwh: float | None = field(default=None, metadata=POSITIVE)


@dataclass(frozen=True)
class Config:
    """The values of the configuration file, else the defaults.

    `knobs` and `out` are written relative to the file and are absolute here. `source` is the
    file itself, not a link to it; None if there is none.
    """

    optimize: dict[str, Any] = field(default_factory=dict, metadata=FLAG_KEYS)
    """`[optimize]`: how `--optimize` searches. A trial that shows no sign of life for `patience` is
    given up; by default after four times what the script took before, at least a minute."""
    run: dict[str, Any] = field(default_factory=dict, metadata=FLAG_KEYS)
    """`[run]`: what holds for every launch."""
    bench: BenchConfig = BenchConfig()
    report: ReportConfig = ReportConfig()
    diagnose: dict[str, tuple[float, float]] = field(default_factory=dict)
    """`[diagnose]`: thresholds by name, each as [warning, critical]."""
    knobs: tuple[str, ...] = ()
    flags: dict[str, Any] = field(default_factory=dict, metadata=NOT_A_KEY)
    """The values of `[optimize]` and `[run]`, by the option of `Options` that each sets."""
    source: Path | None = field(default=None, metadata=NOT_A_KEY)

    @property
    def out(self) -> str | None:
        """Where records go; None for the default."""
        out: str | None = self.flags.get("out")
        return out

    @property
    def allowed(self) -> tuple[str, ...]:
        """The effects that may be applied."""
        return self.flags.get("allow") or DEFAULT_EFFECTS


def load_config(start: Path) -> Config:
    """The configuration that holds in folder `start`; `GpurunError` names what is wrong in it."""
    start = start.absolute()
    for folder in (start, *start.parents):
        for name, table in (("gpurun.toml", ()), ("pyproject.toml", ("tool", "gpurun"))):
            path = folder / name
            found = _read(path, table) if is_configuration(path) else None
            if found is not None:
                return _decode(*found, path, ".".join(table))
    return Config()


def is_configuration(path: Path) -> bool:
    """False where there is none. A folder or a dead link of our own name is an error to report."""
    return path.is_file() or (path.name == "gpurun.toml" and os.path.lexists(path))


def _read(path: Path, table: tuple[str, ...]) -> tuple[dict[str, Any], os.stat_result] | None:
    """gpurun's table in the file, and whose file was read; None if the file has none."""
    try:
        content, status = read_with_status(path)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GpurunError(f"{path} cannot be read: {error}", f"Mend or move {path}.") from None
    if table and "gpurun" not in text:
        return None
    document: Any = _parse(text, path)
    for name in table:
        document = document.get(name) if isinstance(document, dict) else None
    if document is not None and not isinstance(document, dict):
        raise GpurunError(
            f"{path}: {'.'.join(table)} is not a table", f"Write it as [{'.'.join(table)}]."
        )
    return None if document is None else (document, status)


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise GpurunError(
            f"{path}, {error}", f"Correct that line, or move {path.name} away to run without it."
        ) from None


def _decode(document: dict[str, Any], status: os.stat_result, path: Path, prefix: str) -> Config:
    document = checked_table(keys_of(Config), document, path, prefix)
    config = from_json(Config, document)
    flags = flag_values({"optimize": config.optimize, "run": config.run})
    source = path.resolve()
    knobs = [source.parent / knob for knob in config.knobs]
    if document:
        require_trusted(path, status, *knobs)
    if "out" in flags:
        flags["out"] = str(source.parent / flags["out"])
    return replace(config, flags=flags, knobs=tuple(map(str, knobs)), source=source)


def without_null(text: str) -> None:
    """`ValueError` for a null character, which no argument, path or variable can hold."""
    if "\0" in text or "\\u0000" in text:
        raise ValueError("a null character is no part of a setting")


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; `ValueError` says in which line it is none, and why."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    without_null(text)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line \d+)", str(error))
        line = place[1] if place else f"line {text.count(chr(10)) + 1} (the end)"
        what = re.sub(r" \(at [^)]*\)$", "", str(error))
        raise ValueError(f"{line}: not valid TOML: {what}") from None
    except RecursionError:
        raise ValueError("not valid TOML: it is nested too deeply") from None
