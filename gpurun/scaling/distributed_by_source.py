"""True if a script is distributed by itself: then its ranks run as they are.

Its source is asked first, because such a script often does not run at all outside of torchrun; what
the ranks of a launch were seen to do is asked again later (`FinishedLaunch.distributed`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.measure.fingerprint import modules_below

NAMES = (
    "init_process_group", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard",
    "init_device_mesh",
)  # fmt: skip
LIBRARIES = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod")
STARTERS = ("spawn", "start_processes")
TRAINERS = ("Trainer", "Seq2SeqTrainer", "TrainingArguments")


def by_source(target: Target) -> str | None:
    """By what the script or a module beside it shows that it is distributed; None if by nothing."""
    found = ((path, next(_hints(tree), None)) for path, tree in _sources(target))
    return next((f"{path.name} uses {hint}" for path, hint in found if hint is not None), None)


def spawns_by_source(target: Target) -> str | None:
    """By what the script shows that it is distributed and starts its ranks itself; else None."""
    if by_source(target) is None:
        return None
    for path, tree in _sources(target):
        if any(_starts(node) for node in ast.walk(tree)):
            return f"{path.name} uses torch.multiprocessing"
    return None


def _sources(target: Target) -> Iterator[tuple[Path, ast.AST]]:
    """The script and the modules beside it, as far as they can be read."""
    if target.kind is not TargetKind.SCRIPT:
        return
    script = Path(target.path).resolve()
    for path in (script, *modules_below(script.parent, script)):
        with suppress(OSError, SyntaxError, ValueError):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def _starts(node: ast.AST) -> bool:
    """True if it is torch's function that starts processes."""
    if isinstance(node, ast.ImportFrom):
        of_torch = node.module == "torch.multiprocessing"
        return of_torch and any(alias.name in STARTERS for alias in node.names)
    if not isinstance(node, ast.Attribute) or node.attr not in STARTERS:
        return False
    return ast.unparse(node.value) in ("mp", "multiprocessing", "torch.multiprocessing")


def _hints(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            package = (node.module or "").partition(".")[0]
            if package in LIBRARIES:
                yield package
            names = [alias.name for alias in node.names]
            if package == "transformers":
                yield from (f"transformers.{name}" for name in names if name in TRAINERS)
            yield from (name for name in names if name in NAMES)
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield node.attr
