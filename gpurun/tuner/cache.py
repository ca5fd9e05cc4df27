"""Chosen settings, kept by fingerprint (`.gpurun/tuned/`) or by hand (`--save-settings`)."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpurun.arguments.ddp_options import flag_of
from gpurun.arguments.gpurun_toml import load_config, parse_toml
from gpurun.arguments.gpurun_toml_keys import type_in_words
from gpurun.arguments.options import Options, TargetKind
from gpurun.errors import GpurunError
from gpurun.launch.command_line import typed_words
from gpurun.measure.fingerprint import differences, fingerprint, module_file
from gpurun.records.codec import RecordError, from_json, to_json
from gpurun.records.tuning import APPLICABLE, SETTINGS_SCHEMA, SavedSettings, Unproven
from gpurun.rundir import write_json
from gpurun.tuner.settled import settled


def fingerprint_of(options: Options) -> dict[str, Any]:
    """What a result for this command depends on."""
    target = options.target
    script = Path(target.path) if target.kind is TargetKind.SCRIPT else None
    named = () if script is not None else (target.path,)  # a script is told by its own path
    root = None
    if target.kind is TargetKind.MODULE:
        script, root = module_file(target.path, _import_path()) or (None, None)
    words = (*_ranks(options), *named, *options.typed.args)
    return fingerprint(words, Path.cwd(), script, options.knob_paths, root)


def _ranks(options: Options) -> tuple[str, ...]:
    """The words that ask for ranks, ours before torchrun's."""
    words = ["--ddp"] if options.ddp else []
    if options.ddp_options:
        words += ["--ddp-options", flag_of(options.ddp_options)]
    return (*words, *options.torchrun)


def _import_path() -> list[Path]:
    """Where `python -m` looks: the working folder before all else."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path.cwd(), *(Path(folder) for folder in (*named, *sys.path) if folder)]


def place(home: Path, options: Options) -> Path:
    """The file that holds the settings of this command."""
    words = "\0".join((*_ranks(options), os.path.abspath(options.target.path)))
    words += "\0" + "\0".join(options.typed.args)
    return home / "tuned" / f"{hashlib.sha256(words.encode()).hexdigest()[:16]}.json"


def invocation(options: Options) -> tuple[str, ...]:
    """The words that apply what was tuned under `options`: what the configuration says is left out.

    `place` must come out the same for them, and nothing that was allowed may be refused.
    """
    configured = load_config(Path.cwd())
    words = ["gpurun", "--tuned"]
    allow = tuple(effect.value for effect in configured.optimize.allow)
    if options.allow is not None and set(options.allow) != set(allow):
        words += ["--allow", ",".join(options.allow)]
    if options.out is not None and options.out != configured.run.out:
        words += ["--out", options.out]
    return (*words, *typed_words(_ranks(options), options.typed))


def save(path: Path, saved: SavedSettings) -> None:
    """Write settings; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_json(saved))


def load(path: Path) -> SavedSettings:
    """Read settings carried by hand; `GpurunError` says what is wrong with the file.

    Only `settings` must be there: who writes a file to try a knob knows nothing of the rest. It is
    JSON, and TOML where its name ends so.
    """
    try:
        return _read(path, UNSAID)
    except ValueError as error:
        form = "a table [settings]" if path.suffix == ".toml" else '{"settings": {"knob": value}}'
        raise GpurunError(
            f"{path} {error}", f"write {form}, or let --optimize --save-settings FILE write it"
        ) from None


UNSAID: Mapping[str, Any] = {
    "training_loaders": [],
    "speedup": None,
    "fingerprint": {},
    "command": [],
}
"""What holds where a settings file written by hand says nothing."""


def _read(path: Path, unsaid: Mapping[str, Any] = MappingProxyType({})) -> SavedSettings:
    """The settings in a file; `ValueError` completes a sentence that begins with its name."""
    toml = path.suffix == ".toml"
    try:
        text = path.read_text(encoding="utf-8")
        document = _of_toml(text) if toml else json.loads(text)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ValueError(f"is not valid JSON: {place}") from None
    except UnicodeDecodeError:
        kind = "TOML" if toml else "JSON"
        raise ValueError(f"is not valid {kind}: it is no text in UTF-8") from None
    if isinstance(document, dict):
        document = {**unsaid, **document}
    faults = _faults(document)
    if faults:
        raise ValueError(f"is no settings file: {'; '.join(faults)}")
    return from_json(SavedSettings, document)


def _of_toml(text: str) -> Any:
    """The document that a TOML text holds; settings are what JSON can hold, too."""
    try:
        tables = parse_toml(text)
    except ValueError as error:
        raise ValueError(f"cannot be read: {error}") from None
    try:
        return json.loads(json.dumps(tables, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError("holds a date, nan or inf, which no setting is") from None


def _faults(document: Any) -> list[str]:
    """Everything that keeps a document from being `SavedSettings`, in words."""
    if not isinstance(document, dict):
        return ['it must be an object such as {"settings": {}}']
    schema = document.get("schema", SETTINGS_SCHEMA)
    if schema != SETTINGS_SCHEMA:
        return [f"its schema is {schema!r}, not {SETTINGS_SCHEMA!r}"]
    hints = typing.get_type_hints(SavedSettings)
    needed = [f.name for f in fields(SavedSettings) if f.default is MISSING]
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


def remember(path: Path, saved: SavedSettings) -> None:
    """Keep that nothing was proven, and what to go on with; proven settings are not given up."""
    try:
        known = _read(path)
    except ValueError:
        known = None
    if known is None or known.verdict not in APPLICABLE or known.fingerprint != saved.fingerprint:
        save(path, saved)


def unfinished(home: Path, options: Options, now: dict[str, Any]) -> Unproven | None:
    """A finalist whose proof an earlier tuning of the same command did not finish.

    None where anything differs: `now` is today's fingerprint. The same effects must be allowed.
    """
    try:
        saved = _read(place(home, options))
    except ValueError:
        return None
    found = saved.unproven
    if found is None or differences(now, saved.fingerprint) or options.aim.value != found.objective:
        return None
    known = replace(saved, settings=found.knobs)
    try:
        settled(known, "", options.target.args, options.knob_paths, options.allow)
    except GpurunError:
        return None
    return found


def load_tuned(home: Path, options: Options) -> SavedSettings:
    """The cached settings for this command; refused, with the reason, where something differs."""
    path = place(home, options)
    again = "run gpurun --optimize again"
    if not path.exists():
        others = _with_other_arguments(path.parent, options)
        tuned_for = f"; it was with: {', '.join(others)}" if others else ""
        raise GpurunError(
            f"this command was not tuned here yet{tuned_for}",
            "run gpurun --optimize with these arguments first",
        )
    try:
        saved = _read(path)
    except ValueError as error:
        raise GpurunError(
            f"this command was not tuned here yet, as far as can be read: {path} {error}", again
        ) from None
    changed = differences(fingerprint_of(options), saved.fingerprint)
    if changed:
        raise GpurunError(f"tuned for something else: {'; '.join(changed)}", again)
    if saved.verdict == "no_gain":
        raise GpurunError("tuned, nothing proven: no settings were faster", "drop --tuned")
    if saved.verdict not in APPLICABLE:
        goes_on = ": it goes on from there" if saved.unproven is not None else ""
        raise GpurunError(
            "tuned, nothing proven: the budget ended first", f"run gpurun --optimize again{goes_on}"
        )
    return saved


def _with_other_arguments(folder: Path, options: Options) -> list[str]:
    """The arguments with which the same script was tuned."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            command = _read(path).command
        except ValueError:
            continue
        if command and os.path.abspath(command[0]) == os.path.abspath(options.target.path):
            found.append(shlex.join(command[1:]) or "no arguments")
    return found
