"""`gpurun.toml`: the nearest one upward, or `[tool.gpurun]` of a pyproject.toml. Flags win over it.

The known keys are the fields of the dataclasses below, and nothing else: a new section is a new
dataclass and a field of `Config`.
"""

from __future__ import annotations

import enum
import math
import re
import sys
import types
import typing
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from gpurun.errors import GpurunError
from gpurun.knobs.api import Effect
from gpurun.options import Objective
from gpurun.records.codec import RecordError, from_json

DURATION = {"duration": True}
"""Metadata of a field in seconds that the file may also write as "5m"."""
NOT_A_KEY = {"key": False}
"""Metadata of a field that the file cannot set."""

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class OptimizeConfig:
    """`[optimize]`: how `--optimize` searches. `budget` and `patience` are in seconds.

    A trial that shows no sign of life for `patience` is given up; None: four times what the script
    took before, at least a minute.
    """

    budget: float = field(default=300.0, metadata=DURATION)
    allow: tuple[Effect, ...] = (Effect.PIPELINE, Effect.NUMERICS)
    max_trials: int | None = None
    objective: Objective = Objective.THROUGHPUT
    patience: float | None = field(default=None, metadata=DURATION)


@dataclass(frozen=True)
class RunConfig:
    """`[run]`: what holds for every launch. `out`: where `.gpurun/` goes, None for the default."""

    out: str | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Config:
    """What the configuration file says; the defaults where it says nothing.

    `knobs` and `run.out` are written relative to the file and are absolute here. `source` is the
    file, None if there is none.
    """

    optimize: OptimizeConfig = OptimizeConfig()
    run: RunConfig = RunConfig()
    knobs: tuple[str, ...] = ()
    source: Path | None = field(default=None, metadata=NOT_A_KEY)


def load_config(start: Path) -> Config:
    """The configuration that holds in folder `start`; `GpurunError` names what is wrong in it."""
    start = start.absolute()
    for folder in (start, *start.parents):
        for name, table in (("gpurun.toml", ()), ("pyproject.toml", ("tool", "gpurun"))):
            path = folder / name
            document = _read(path, table) if path.is_file() else None
            if document is not None:
                return _decode(document, path, ".".join(table))
    return Config()


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "5m", "1h30m" or "500ms"; `GpurunError` for anything else."""
    units = "|".join(UNIT_SECONDS)
    number = r"\d+(?:\.\d+)?"
    compact = text.replace(" ", "").lower()
    if re.fullmatch(number, compact):
        seconds = float(compact)
    elif re.fullmatch(f"(?:{number}(?:{units}))+", compact):
        parts = re.findall(f"({number})({units})", compact)
        seconds = sum(float(count) * UNIT_SECONDS[unit] for count, unit in parts)
    else:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise GpurunError(
            f"{text!r} is not a duration", "Write seconds or a number with ms, s, m or h, as in 5m."
        )
    return seconds


def _read(path: Path, table: tuple[str, ...]) -> dict[str, Any] | None:
    """The table of the file that is ours, None if the file has none."""
    try:
        text = path.read_text(encoding="utf-8")
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
    return document


def _parse(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at (line \d+)", str(error))
        line = place[1] if place else f"line {text.count(chr(10)) + 1} (the end)"
        what = re.sub(r" \(at [^)]*\)$", "", str(error))
        raise GpurunError(
            f"{path}, {line}: not valid TOML: {what}",
            f"Mend that line, or move {path.name} away to go on without it.",
        ) from None


def _decode(document: dict[str, Any], path: Path, prefix: str) -> Config:
    document = _section(Config, document, path, prefix)
    config = from_json(Config, document)
    out = None if config.run.out is None else str(path.parent / config.run.out)
    return replace(
        config,
        run=replace(config.run, out=out),
        knobs=tuple(str(path.parent / knob) for knob in config.knobs),
        source=path,
    )


def _section(cls: Any, document: dict[str, Any], path: Path, prefix: str) -> dict[str, Any]:
    """The table with its keys checked against the fields of `cls` and its durations in seconds."""
    known = {f.name: f for f in fields(cls) if f.metadata.get("key", True)}
    hints = typing.get_type_hints(cls)
    checked = {}
    for key, value in document.items():
        name = f"{prefix}.{key}" if prefix else key
        if key not in known:
            raise _unknown("key", name, key, sorted(known), path)
        if is_dataclass(hints[key]) and isinstance(value, dict):
            value = _section(hints[key], value, path, name)
        elif known[key].metadata.get("duration") and not isinstance(value, bool):
            value = _duration(value, path, name)
        _check_choices(hints[key], value, path, name)
        _check_type(known[key], hints[key], value, path, name)
        checked[key] = value
    return checked


def _check_type(key: Field[Any], kind: Any, value: Any, path: Path, name: str) -> None:
    try:
        from_json(kind, value, name)
    except RecordError as error:
        duration = key.metadata.get("duration")
        takes = 'a duration, as in 90 or "5m"' if duration else type_in_words(kind)
        raise GpurunError(f"{path}: {error}", f"{name} takes {takes}.") from None


def type_in_words(kind: Any) -> str:
    """The type of a field as people say it: "a whole number", "a list of texts"."""
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_in_words(k) for k in arguments if k is not type(None))
    if origin is tuple:
        inner = arguments[0]
        if isinstance(inner, enum.EnumMeta):
            choices: dict[str, Any] = dict(inner.__members__)
            return f"a list of {', '.join(choice.value for choice in choices.values())}"
        if is_dataclass(inner):
            return "a list of tables of keys and values"
        return f"a list of {type_in_words(inner).removeprefix('a ')}s"
    return words.get(kind, "a table of keys and values")


def _check_choices(kind: Any, value: Any, path: Path, name: str) -> None:
    """A list of an enum's values: name the one that is none of them, and the near one."""
    inner: Any = next(iter(typing.get_args(kind)), None)
    if not (isinstance(inner, enum.EnumMeta) and isinstance(value, list)):
        return
    choices: dict[str, Any] = dict(inner.__members__)
    known = [str(choice.value) for choice in choices.values()]
    for item in value:
        if item not in known:
            raise _unknown(f"{name} value", str(item), str(item), known, path)


def _unknown(what: str, name: str, word: str, known: list[str], path: Path) -> GpurunError:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return GpurunError(f"{path}: unknown {what} {name!r}", f"{guess}Known: {', '.join(known)}.")


def _duration(value: Any, path: Path, name: str) -> float:
    try:
        return parse_duration(str(value))
    except GpurunError as error:
        raise GpurunError(f"{path}: {name}: {error.what}", error.todo) from None
