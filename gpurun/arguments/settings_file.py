"""A file of settings: written by `--save-settings`, by hand, or kept after a tuning."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpurun.arguments.gpurun_toml import parse_toml, without_null
from gpurun.arguments.gpurun_toml_keys import type_in_words
from gpurun.arguments.trusted_files import read_regular
from gpurun.errors import GpurunError
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.parse_json import parse_document
from gpurun.records.tuning import SETTINGS_SCHEMA, SavedSettings
from gpurun.rundir import write_json

DEEPEST = 100
"""Levels of objects and lists; what reads them calls itself for each."""
TOO_DEEP = "it is nested too deeply"


def save(path: Path, saved: SavedSettings) -> None:
    """Write settings; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(saved))


def load(path: Path) -> SavedSettings:
    """Read settings carried by hand; `GpurunError` says what is wrong with the file.

    Only `settings` must be there: who writes a file to try a knob knows nothing of the rest. It is
    TOML where its name ends so and it does not begin with a brace, else JSON.
    """
    try:
        return read(path, UNSAID)
    except ValueError as error:
        form = "a table [settings]" if path.suffix == ".toml" else '{"settings": {"knob": value}}'
        raise GpurunError(
            f"{path} {error}", f"write {form}, or let --optimize --save-settings FILE write it"
        ) from None


def without(saved: SavedSettings, knobs: Iterable[str]) -> tuple[SavedSettings, tuple[str, ...]]:
    """The settings without `knobs` (`--without`), and the names of the others that went with them.

    Settings that were made only for the sake of these knobs are left out too. `GpurunError` if a
    knob is not set.
    """
    asked = tuple(dict.fromkeys(knobs))
    unknown = [name for name in asked if name not in saved.settings]
    if unknown:
        known = ", ".join(saved.settings) or "none"
        raise GpurunError(f"--without {unknown[0]}: it is not set", f"set are: {known}")
    out: set[str] = set()
    left = set(asked)
    while left:
        out |= left
        needed = {other for name in out for other in saved.companions.get(name, ())}
        kept = {x for name, own in saved.companions.items() if name not in out for x in own}
        left = needed - kept - out
    rest = {name: value for name, value in saved.settings.items() if name not in out}
    others = tuple(name for name in saved.settings if name in out and name not in asked)
    return replace(saved, settings=rest, speedup=None), others


UNSAID: Mapping[str, Any] = {
    "training_loaders": [],
    "speedup": None,
    "fingerprint": {},
    "command": [],
}
"""Defaults for a settings file written by hand."""


def read(path: Path, unsaid: Mapping[str, Any] = MappingProxyType({})) -> SavedSettings:
    """The settings in a file; `ValueError` completes a sentence that begins with its name."""
    toml = path.suffix == ".toml"
    try:
        text = read_regular(path).decode("utf-8-sig")
        toml = toml and not text.lstrip().startswith("{")  # --save-settings writes JSON
        document = _of_toml(text) if toml else _of_json(text)
        if _deeper(document, DEEPEST):
            raise ValueError(TOO_DEEP)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"is not valid JSON: {place}") from None
    except UnicodeDecodeError:
        kind = "TOML" if toml else "JSON"
        raise ValueError(f"is not valid {kind}: it is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"cannot be read: {error}") from None
    if isinstance(document, dict):
        document = {**unsaid, **document}
    faults = _faults(document)
    if faults:
        raise ValueError(f"is no settings file: {'; '.join(faults)}")
    return from_json(SavedSettings, document)


def _deeper(value: Any, levels: int) -> bool:
    """True if objects and lists are nested in more levels than these."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(one, levels - 1) for one in inner)


def _of_json(text: str) -> Any:
    without_null(text)  # as `parse_toml` does
    return parse_document(text)


def _of_toml(text: str) -> Any:
    """The document that a TOML text holds; settings are what JSON can hold, too."""
    tables = parse_toml(text)
    try:
        return parse_document(json.dumps(tables, allow_nan=False))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (TypeError, ValueError):
        raise ValueError("a date, nan and inf are no settings") from None


def _faults(document: Any) -> list[str]:
    """Everything that keeps a document from being `SavedSettings`, in words."""
    if not isinstance(document, dict):
        return ['it must be an object such as {"settings": {}}']
    schema = document.get("schema", SETTINGS_SCHEMA)
    if schema != SETTINGS_SCHEMA:
        return [f"its schema is {schema!r}, not {SETTINGS_SCHEMA!r}"]
    hints = typing.get_type_hints(SavedSettings)
    needed = [
        f.name
        for f in fields(SavedSettings)
        if f.default is MISSING and f.default_factory is MISSING
    ]
    missing = [f"{name!r} is missing" for name in needed if name not in document]
    wrong = [
        f"{name!r} takes {type_in_words(hints[name])}"
        for name, value in document.items()
        if name in hints and not _fits(hints[name], value)
    ]
    unknown = [f"{name!r} is unknown" for name in document if name not in hints]
    return [*missing, *wrong, *unknown]


def _fits(kind: Any, value: Any) -> bool:
    try:
        from_json(kind, value)
    except RecordError:
        return False
    return True
