"""A table of the configuration file, checked against the dataclass or the flags that say its keys.

An error names file, key and cure: a typing error in a key must not read as a default.
"""

from __future__ import annotations

import enum
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.flag_values import duration_of, parse_duration, parse_fraction
from gpurun.arguments.options import Options
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import GATEABLE, Metric
from gpurun.records.codec import RecordError, from_json

FLAG_KEYS = {"flags": True}
"""Metadata of a table whose keys are those of flags."""
FRACTIONS = {"fractions": GATEABLE}
"""Metadata of a table of fractions by metric, which the file may also write as "5%"."""
POSITIVE = {"positive": True}
"""Metadata of a number that is above zero."""
NOT_A_KEY = {"key": False}
"""Metadata of a field that the file cannot set."""


@dataclass(frozen=True)
class Key:
    """A key of the file. `duration`: seconds that the file may also write as "5m". `keys`: those of
    a table that is no dataclass."""

    kind: Any
    metadata: Mapping[str, Any]
    duration: bool = False
    keys: Mapping[str, Key] = field(default_factory=dict)


def keys_of(cls: Any) -> dict[str, Key]:
    """The keys of a dataclass that says what a table may hold."""
    hints = typing.get_type_hints(cls)
    return {
        one.name: Key(
            hints[one.name],
            one.metadata,
            keys=_flag_keys(one.name) if one.metadata.get("flags") else {},
        )
        for one in fields(cls)
        if one.metadata.get("key", True)
    }


def _flag_keys(table: str) -> dict[str, Key]:
    """The keys of a table that flags have."""
    hints = typing.get_type_hints(Options)
    return {
        one.key.partition(".")[2]: Key(
            one.kind or hints[one.option], {}, duration=one.read is duration_of
        )
        for one in flags_of(Options).values()
        if one.key.startswith(f"{table}.")
    }


def flag_values(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The values of checked tables, by the option that the flag of each key sets."""
    hints = typing.get_type_hints(Options)
    found = {}
    for one in flags_of(Options).values():
        table, _, key = one.key.partition(".")
        if key in tables.get(table, {}):
            found[one.option] = from_json(hints[one.option], tables[table][key])
    return found


def checked_table(
    keys: Mapping[str, Key], document: dict[str, Any], path: Path, prefix: str
) -> dict[str, Any]:
    """The table `prefix` of file `path` with its keys and values checked against those known.

    Durations are in seconds then, percentages fractions. `GpurunError` names what is wrong.
    """
    checked = {}
    for key, value in document.items():
        name = f"{prefix}.{key}" if prefix else key
        if key not in keys:
            raise _unknown("key", name, key, sorted(keys), path)
        known = keys[key]
        kind, metadata = known.kind, known.metadata
        if known.keys and isinstance(value, dict):
            value = checked_table(known.keys, value, path, name)
        elif is_dataclass(kind) and isinstance(value, dict):
            value = checked_table(keys_of(kind), value, path, name)
        elif is_dataclass(_item(kind)) and isinstance(value, list):
            value = _checked_tables(_item(kind), value, path, name)
        elif known.duration and not isinstance(value, bool):
            value = _parsed(parse_duration, value, path, name)
        elif metadata.get("fractions") and isinstance(value, dict):
            value = _fractions(value, metadata["fractions"], path, name)
        _check_choices(_item(kind), value, path, name)
        _check_type(known, value, path, name)
        if metadata.get("positive") and not 0 < value < math.inf:
            raise GpurunError(
                f"{path}: {name}: {value} is no finite number above 0", "Write a number above 0."
            )
        checked[key] = value
    return checked


def _checked_tables(cls: Any, items: list[Any], path: Path, name: str) -> list[Any]:
    """A list of tables, `[[name]]` in the file."""
    keys = keys_of(cls)
    numbered = ((f"{name}[{number}]", item) for number, item in enumerate(items))
    return [
        checked_table(keys, item, path, where) if isinstance(item, dict) else item
        for where, item in numbered
    ]


def _fractions(table: dict[str, Any], keys: Any, path: Path, name: str) -> dict[str, Any]:
    known = [str(key.value) for key in keys]
    for key in table:
        if key not in known:
            raise _unknown("key", f"{name}.{key}", key, known, path)
    return {k: _parsed(parse_fraction, v, path, f"{name}.{k}") for k, v in table.items()}


def _item(kind: Any) -> Any:
    """The type of a list's items, also of an optional list; None for other types."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return next((_item(k) for k in typing.get_args(kind) if k is not type(None)), None)
    return typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None


def _check_type(key: Key, value: Any, path: Path, name: str) -> None:
    try:
        from_json(key.kind, value, name)
    except RecordError as error:
        takes = 'a duration, as in 90 or "5m"' if key.duration else type_in_words(key.kind)
        if is_dataclass(_item(key.kind)):
            takes = f"tables, each headed [[{name}]]"
        raise GpurunError(f"{path}: {error}", f"{name} takes {takes}.") from None


def type_in_words(kind: Any) -> str:
    """The type of a field in words: "a whole number", "a list of texts"."""
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_in_words(k) for k in arguments if k is not type(None))
    if origin is tuple:
        inner = arguments[0]
        if isinstance(inner, enum.EnumMeta):
            return f"a list of {', '.join(_values(inner))}"
        if is_dataclass(inner):
            return "a list of tables of keys and values"
        return f"a list of {type_in_words(inner).removeprefix('a ')}s"
    return words.get(kind, "a table of keys and values")


def _check_choices(inner: Any, value: Any, path: Path, name: str) -> None:
    """A list of an enum's values: name the one that is none of them, and the near one."""
    if not (isinstance(inner, enum.EnumMeta) and isinstance(value, list)):
        return
    known = _values(inner)
    for item in value:
        if item not in known:
            raise _unknown(f"{name} value", str(item), str(item), known, path)


def _values(kind: enum.EnumMeta) -> list[str]:
    """All that the file may write for an enum; of metrics those that can fail a comparison."""
    members: dict[str, Any] = dict(kind.__members__)
    return [str(one.value) for one in (GATEABLE if kind is Metric else members.values())]


def _unknown(what: str, name: str, word: str, known: list[str], path: Path) -> GpurunError:
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.5)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return GpurunError(f"{path}: unknown {what} {name!r}", f"{guess}Known: {', '.join(known)}.")


def _parsed(parse: Callable[[str], float], value: Any, path: Path, name: str) -> float:
    try:
        return parse(str(value))
    except GpurunError as error:
        raise GpurunError(f"{path}: {name}: {error.what}", error.todo) from None
