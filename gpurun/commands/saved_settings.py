"""Chosen settings, kept by fingerprint (`.gpurun/tuned/`) or by hand (`--save-settings`)."""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.options import Options
from gpurun.errors import GpurunError
from gpurun.launch.launch_command import typed_words
from gpurun.measure.fingerprint import command_fingerprint, differences
from gpurun.records.script_arguments import masked
from gpurun.records.tuning import APPLICABLE, SavedSettings


def settings_path(home: Path, options: Options) -> Path:
    """The file that holds the settings of this command."""
    words = "\0".join((*options.rank_words, os.path.abspath(options.target.path)))
    words += "\0" + "\0".join(options.typed.args)
    digest = hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()
    return home / "tuned" / f"{digest[:16]}.json"


def tuned_command(options: Options) -> tuple[str, ...]:
    """The words that apply what was tuned under `options`: what the configuration says is left out.

    `settings_path` must come out the same for them, and nothing that was allowed may be refused.
    """
    configured = load_config(Path.cwd())
    words = ["gpurun", "--tuned"]
    if set(options.allowed) != set(configured.allowed):
        words += ["--allow", ",".join(options.allowed)]
    if options.out is not None and options.out != configured.out:
        words += ["--out", options.out]
    return masked((*words, *typed_words(options.rank_words, options.typed)))


def save_in_vain(path: Path, saved: SavedSettings) -> None:
    """Keep that nothing was proven; proven settings are not given up."""
    try:
        known = settings_file.read(path)
    except ValueError:
        known = None
    if known is None or known.verdict not in APPLICABLE or known.fingerprint != saved.fingerprint:
        settings_file.save(path, saved)


def load_tuned(home: Path, options: Options) -> SavedSettings:
    """The cached settings for this command; refused, with the reason, where something differs."""
    path = settings_path(home, options)
    again = "run gpurun --optimize again"
    if not path.exists():
        others = _with_other_arguments(path.parent, options)
        tuned_for = f"; it was with: {', '.join(others)}" if others else ""
        raise GpurunError(
            f"this command was not tuned here yet{tuned_for}",
            "run gpurun --optimize with these arguments first",
        )
    try:
        saved = settings_file.read(path)
    except ValueError as error:
        raise GpurunError(
            f"this command has no readable tuned settings: {path} {error}", again
        ) from None
    changed = differences(
        command_fingerprint(options.typed, options.rank_words, options.knob_paths),
        saved.fingerprint,
    )
    if changed:
        raise GpurunError(f"tuned for something else: {'; '.join(changed)}", again)
    if saved.verdict == "no_gain":
        raise GpurunError("tuned, nothing proven: no settings were faster", "drop --tuned")
    if saved.verdict not in APPLICABLE:
        raise GpurunError(
            "tuned, nothing proven: the budget ended first",
            "run gpurun --optimize with a larger --budget",
        )
    return saved


def _with_other_arguments(folder: Path, options: Options) -> list[str]:
    """The arguments with which the same script was tuned."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            command = settings_file.read(path).command
        except ValueError:
            continue
        if command and os.path.abspath(command[0]) == os.path.abspath(options.target.path):
            found.append(shlex.join(command[1:]) or "no arguments")
    return found
