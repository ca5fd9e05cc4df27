"""Records the features that a script uses by itself and knobs must respect: autocast, DDP, ...

The syntax of the user's source tells two things: a loader's batch size, and a missing main guard.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch

from gpurun.knobs.callers import OURS, caller_past, is_ours, is_users_file
from gpurun.records.events import TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.records.messages.traits import (
    COPIES_GRADIENTS,
    DOUBLE_BACKWARD,
    OUT_OF_MEMORY,
    joined,
    keys_in,
)
from gpurun.runtime.core.call_contexts import CallContexts
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.recorder import RECORDER


def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file, None if it cannot be read as python.

    The parser warns of invalid escapes, which python said when it compiled the file or keeps to
    itself. `warnings.catch_warnings` would make python forget which other warnings it has shown,
    so that the script's would come again: only the list of filters is exchanged.
    """
    source = "".join(linecache.getlines(file))
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        warnings.filters = filters


@functools.lru_cache(maxsize=64)  # a loader may be built again each epoch
def batch_size_expression(file: str, line: int) -> str | None:
    """Source of the batch-size argument of the call around `line`, or None if it is not there."""
    tree = parsed(file)
    if tree is None:
        return None
    best: ast.Call | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
            if best is None or node.lineno >= best.lineno:
                best = _with_batch_size(node) or best
    return None if best is None else _argument(best)


def _with_batch_size(call: ast.Call) -> ast.Call | None:
    return call if _argument(call) is not None else None


def _argument(call: ast.Call) -> str | None:
    for keyword in call.keywords:
        if keyword.arg == "batch_size":
            return ast.unparse(keyword.value)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.endswith("DataLoader") and len(call.args) > 1:
        return ast.unparse(call.args[1])
    return None


OWN_ENDS = (
    "utils/checkpoint",
    "nn/parallel/",
    "_dynamo/",
    "_inductor/",
    "_functorch/",
    "_higher_order_ops/",
    "fx/",
)
"""Parts of torch that use autocast and the like on their own, not for the script."""
STANDS_IN_CALLS = "gpurun.runtime.observe.root_modules"
"""The module whose frames lie between a model's call and its forward, and ask for nothing."""
ASKS_TWICE = re.compile(rb"\bcreate_graph\s*=\s*True\b")
"""Source that differentiates gradients, perhaps only after many steps: a regularization."""
MOST_KEYS = 64
"""The most loaders in a record: a script may build a loader anew in each epoch."""


class Traits:
    """Traits seen so far: name to where."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.listeners: list[Callable[[str], None]] = []
        """Hear of each trait once it is recorded."""
        self._library = ""
        self._main_seen = self._source_seen = False

    def install(self) -> None:
        """Watch the places where a script would show one of them."""
        self._library = os.path.dirname(torch.__file__) + os.sep
        self._watch(torch.amp.autocast_mode.autocast, "__enter__", "autocast")
        self._watch(torch, "compile", "compile")
        self._watch(torch.cuda, "synchronize", "synchronize")
        self._watch(torch.nn.Module, "compile", "compile")
        self._watch_class(torch.amp.grad_scaler.GradScaler, "grad_scaler")
        self._watch_class(torch.nn.DataParallel, "data_parallel")
        self._watch_class(torch.nn.parallel.DistributedDataParallel, "ddp")
        self._watch_class(torch.optim.lr_scheduler.OneCycleLR, "scheduler_total_steps")
        if torch.distributed.is_available():
            self._watch(torch.distributed, "init_process_group", "process_group")

    def look_at_main(self) -> None:
        """Look once whether workers that are started afresh would run the script again."""
        if not self._main_seen:
            self._main_seen = True
            main = sys.modules.get("__main__")
            if main is not None and lacks_main_guard(main):
                self.note("no_guard", os.path.basename(str(main.__file__)))

    def look_at_source(self, _: object) -> None:
        """Look once whether the files of the script that are loaded ask for a double backward."""
        if not self._source_seen:
            self._source_seen = True
            for file in _files_of_script():
                source = file.read_bytes() if file.is_file() else b""
                asks = ASKS_TWICE.search(source)
                if asks is not None:
                    line = source.count(b"\n", 0, asks.start()) + 1
                    self.note(DOUBLE_BACKWARD, f"{file.name}:{line}")

    def look_at_wrapper(self, root: torch.nn.Module) -> None:
        """Look whether a wrapper of the script's own copies gradients, with gpurun's options."""
        views = (getattr(module, "gradient_as_bucket_view", True) for module in root.modules())
        if "ddp" in self.seen and not all(views):
            self.note(COPIES_GRADIENTS, self.seen["ddp"])

    def note_call(self, trait: str, caller: FrameType) -> None:
        """Record a trait, once, of which a call of the script tells."""
        site = None if trait in self.seen else self._site(caller)
        if site is not None:
            self.note(trait, site)

    def note_error(self, error: BaseException, caller: FrameType) -> None:
        """Record, once, that the model ran out of memory."""
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.note_call(OUT_OF_MEMORY, caller)

    def note(self, trait: str, detail: str) -> None:
        """Record a trait, once."""
        if trait not in self.seen:
            self.seen[trait] = detail
            RECORDER.event(TraitEvent(trait=trait, detail=detail))
            for listener in self.listeners:
                listener(trait)

    def note_loader(self, trait: str, key: str) -> None:
        """Record a trait of one loader; the detail names every loader that has it so far."""
        keys = keys_in(self.seen.get(trait))
        if key not in keys and len(keys) < MOST_KEYS:
            detail = self.seen[trait] = joined((*keys, key))
            RECORDER.event(TraitEvent(trait=trait, detail=detail))

    def _watch(self, owner: object, name: str, trait: str) -> None:
        traits = self

        def watcher(original: Callable[..., Any]) -> Callable[..., Any]:
            def watched(*args: object, **kwargs: object) -> Any:
                site = traits._site(sys._getframe(1))
                if site is not None:
                    traits.note(trait, site)
                    if getattr(owner, name, None) is watched:
                        setattr(owner, name, original)
                try:
                    return original(*args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise

            return watched

        replace(owner, name, watcher)

    def _watch_class(self, cls: Any, trait: str) -> None:
        """Notice instances as they are made: no frame of ours is there when `__init__` warns."""
        traits = self
        make = cls.__new__

        def __new__(kind: type, *args: object, **kwargs: object) -> Any:
            site = None if trait in traits.seen else traits._site(sys._getframe(1))
            if site is not None:
                traits.note(trait, site)
            return make(kind) if make is object.__new__ else make(kind, *args, **kwargs)

        cls.__new__ = staticmethod(__new__)

    def _site(self, frame: FrameType | None) -> str | None:
        """Where the script itself asked for it; None if torch or we did for our own ends."""
        found = caller_past(frame, self._passes_on)
        if found is None or is_ours(found):
            return None
        file = found.f_code.co_filename
        return (
            None if file.startswith(self._library) else f"{os.path.basename(file)}:{found.f_lineno}"
        )

    def _passes_on(self, frame: FrameType) -> bool:
        """True of code between the script and its call: torch's, if it calls for the script."""
        file = frame.f_code.co_filename
        if file.startswith(self._library):
            inside = file[len(self._library) :].replace(os.sep, "/")
            return not inside.startswith(OWN_ENDS)
        return file == contextlib.__file__ or _stands_in_calls(frame)


def _stands_in_calls(frame: FrameType) -> bool:
    """Not of a knob's context, which `CallContexts` enters elsewhere than it makes the call."""
    if frame.f_code is CallContexts.call.__code__:
        return True
    return bool(frame.f_globals.get("__name__") == STANDS_IN_CALLS)


def _files_of_script() -> Iterator[Path]:
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None))
        if file.endswith(".py") and is_users_file(file) and not f"{name}.".startswith(OURS):
            yield Path(file)


TRAITS = Traits()
"""The traits of this process."""


def lacks_main_guard(main: ModuleType) -> bool:
    """True if the main module is imported by spawned workers and has no guard; False if unknown."""
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.rpartition(".")[2] == "__main__":
        return False  # `python -m package` and zip files: multiprocessing leaves these alone
    tree = parsed(getattr(main, "__file__", None) or "")
    if tree is None or not tree.body:
        return False
    return not any(_is_guard(node) for node in ast.walk(tree))


def _is_guard(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    inside = list(ast.walk(node.test))
    names = any(isinstance(x, ast.Name) and x.id == "__name__" for x in inside)
    return names and any(isinstance(x, ast.Constant) and x.value == "__main__" for x in inside)
