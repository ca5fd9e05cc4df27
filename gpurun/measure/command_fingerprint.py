"""The fingerprint of a whole command: of its script, its arguments and how it asks for ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from gpurun.arguments.ddp_options import flag_of
from gpurun.arguments.options import Options, TargetKind
from gpurun.measure.fingerprint import fingerprint, module_file


def command_fingerprint(options: Options) -> dict[str, Any]:
    """The fingerprint of everything that a result for this command depends on."""
    target = options.target
    script = Path(target.path) if target.kind is TargetKind.SCRIPT else None
    named = () if script is not None else (target.path,)  # a script is told by its own path
    root = None
    if target.kind is TargetKind.MODULE:
        script, root = module_file(target.path, _import_path()) or (None, None)
    words = (*rank_words(options), *named, *options.typed.args)
    return fingerprint(words, Path.cwd(), script, options.knob_paths, root)


def rank_words(options: Options) -> tuple[str, ...]:
    """The words that ask for ranks, ours before torchrun's."""
    words = ["--ddp"] if options.ddp else []
    if options.ddp_options:
        words += ["--ddp-options", flag_of(options.ddp_options)]
    return (*words, *options.torchrun)


def _import_path() -> list[Path]:
    """Where `python -m` looks: the working folder before all else."""
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [Path.cwd(), *(Path(folder) for folder in (*named, *sys.path) if folder)]
