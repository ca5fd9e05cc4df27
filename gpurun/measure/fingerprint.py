"""The fingerprint of a measured setting: script, arguments, hardware and software.

Two fingerprints are compared in words, so that a refusal can say what has changed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Target, TargetKind
from gpurun.measure.machine import machine
from gpurun.measure.nvml import driver_version
from gpurun.records.script_arguments import masked, secrets_digest
from gpurun.version import VERSION

MOST_MODULES = 500
"""A script that imports more files beside it is fingerprinted by the first of them."""
INSTALLED = ("site-packages", "dist-packages")
PACKAGES = ("torch", "numpy")


def command_fingerprint(
    typed: Target, rank_words: Sequence[str], knob_paths: Sequence[str]
) -> dict[str, Any]:
    """The fingerprint of everything that a result for a command depends on.

    `typed`: the program with its arguments as they were typed. `rank_words`: those that ask for
    ranks.
    """
    script = Path(typed.path) if typed.kind is TargetKind.SCRIPT else None
    named = () if script is not None else (typed.path,)  # a script is told by its own path
    root = None
    if typed.kind is TargetKind.MODULE:
        script, root = module_file(typed.path, _import_path()) or (None, None)
    return fingerprint((*rank_words, *named, *typed.args), Path.cwd(), script, knob_paths, root)


def _import_path() -> list[Path]:
    """Where `python -m` looks: the working folder before all else."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path.cwd(), *(Path(folder) for folder in (*named, *sys.path) if folder)]


def fingerprint(
    command: Sequence[str],
    cwd: Path,
    script: Path | None,
    knobs: Sequence[str] = (),
    root: Path | None = None,
) -> dict[str, Any]:
    """The fingerprint of `command` as it would run now in `cwd`.

    `script` is the file that it runs, None for a program of another kind. The modules below `root`
    (by default the script's folder) that it imports belong to it, as do the user's `knobs` (files
    or folders). torch is not imported: the installed package gives its version.
    """
    path = None if script is None else (cwd / script).resolve()
    home = None if path is None else (root or path.parent)
    here, secrets = machine(), secrets_digest(command)
    return {
        "script": None if path is None else _shown(path, cwd),
        "script_sha256": None if path is None else _sha256(path),
        "modules_sha256": None
        if path is None or home is None
        else _sha256_of(modules_below(home, path)),
        "knobs_sha256": _sha256_of(_knob_files(knobs)),
        "arguments": list(masked(command)),
        **({} if secrets is None else {"secrets_sha256": secrets}),
        "cpu": _cpu_model(),
        "cores": here.cores,
        "gpus": list(here.gpus),
        "driver": driver_version(),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "gpurun": VERSION,
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
    """The differences, in words: "torch is 2.11.0, was 2.10.0" where `other` is the older one."""
    keys = dict.fromkeys((*one, *other))
    return tuple(
        _difference(key, one.get(key), other.get(key))
        for key in keys
        if one.get(key) != other.get(key)
    )


def _difference(key: str, now: Any, before: Any) -> str:
    changed = {
        "script_sha256": "the script's text has changed",
        "modules_sha256": "a module beside the script has changed",
        "knobs_sha256": "your own knobs have changed",
        "secrets_sha256": "a secret among the arguments has changed",
    }
    if key in changed:
        return changed[key]
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


def modules_below(home: Path, script: Path) -> list[Path]:
    """The files below `home` that a script imports, directly or through each other.

    For an installed program, the modules of its own package: versions represent the others.
    """
    bound = home / script.relative_to(home).parts[0] if home.name in INSTALLED else home
    found = {script, *_packages(home, script.parent)}
    waiting = list(found)
    while waiting and len(found) < MOST_MODULES:
        for stem in _imported(waiting.pop(), home):
            if not stem.is_relative_to(bound):
                continue
            for path in (stem.with_suffix(".py"), *_packages(home, stem)):
                if path.is_file() and path not in found:
                    found.add(path)
                    waiting.append(path)
    return sorted(found - {script})


def module_file(name: str, places: Iterable[Path]) -> tuple[Path, Path] | None:
    """The file that `python -m name` would run, and the folder of `places` where it was found.

    Looked for by its path: the import system would run the packages above it.
    """
    for place in places:
        root = place.resolve()
        stem = root.joinpath(*name.split("."))
        module, main = stem.parent / f"{stem.name}.py", stem / "__main__.py"
        package = (stem / "__init__.py").is_file()
        for path in (main,) if package else (module, main):
            if path.is_file():
                return path, root
    return None


def _packages(home: Path, folder: Path) -> list[Path]:
    """The `__init__.py` files of the package `folder` and of those above it."""
    parts = folder.relative_to(home).parts
    files = (home.joinpath(*parts[: n + 1], "__init__.py") for n in range(len(parts)))
    return [file for file in files if file.is_file()]


def _imported(path: Path, home: Path) -> Iterator[Path]:
    """Places, without suffix, of what a file imports; a name in a package may be a module of it."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (home.joinpath(*alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = path.parents[node.level - 1] if 0 < node.level <= len(path.parents) else home
            base = start.joinpath(*(node.module or "").split("."))
            if base != home:
                yield base
            yield from (base / alias.name for alias in node.names)


def _knob_files(paths: Sequence[str]) -> list[Path]:
    """The user's knob files."""
    files = [f for p in map(Path, paths) for f in (sorted(p.glob("*.py")) if p.is_dir() else [p])]
    return sorted(files)


def _sha256_of(paths: Sequence[Path]) -> str | None:
    """One digest of several files, None for none."""
    if not paths:
        return None
    digests = "".join(f"{path.name}:{_sha256(path)};" for path in paths)
    return hashlib.sha256(digests.encode("utf-8", "surrogatepass")).hexdigest()


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
        return None
