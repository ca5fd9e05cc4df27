"""What a measured setting depends on: script, arguments, hardware and software.

Two fingerprints are compared in words, so that a refusal can say what has changed.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpurun.measure.machine import machine
from gpurun.measure.nvml import driver_version

PACKAGES = ("torch", "numpy", "gpurun")


def fingerprint(command: Sequence[str], cwd: Path, script: Path | None) -> dict[str, Any]:
    """The fingerprint of `command` as it would run now in `cwd`.

    `script` is the file that it runs, None for a module or a program of another kind. torch is not
    imported: its version is that of the installed package.
    """
    path = None if script is None else (cwd / script).resolve()
    here = machine()
    return {
        "script": None if path is None else _shown(path, cwd),
        "script_sha256": None if path is None else _sha256(path),
        "arguments": list(command),
        "cpu": _cpu_model(),
        "cores": here.cores,
        "gpus": list(here.gpus),
        "driver": driver_version(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    """What differs, in words: "torch is 2.11.0, was 2.10.0" where `other` is the older one."""
    keys = dict.fromkeys((*one, *other))
    return tuple(
        _difference(key, one.get(key), other.get(key))
        for key in keys
        if one.get(key) != other.get(key)
    )


def _difference(key: str, now: Any, before: Any) -> str:
    if key == "script_sha256":
        return "the script's text has changed"
    return f"{key.replace('_', ' ')}: {_words(now)}, was {_words(before)}"


def _words(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(path: Path, cwd: Path) -> str:
    """The path within the working folder, so that a checkout elsewhere has the same one."""
    try:
        return path.relative_to(cwd.resolve()).as_posix()
    except ValueError:
        return os.fspath(path)


def _sha256(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or platform.machine() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        if package != "gpurun":
            return None
        import gpurun  # run from its source folder

        return getattr(gpurun, "__version__", None)
