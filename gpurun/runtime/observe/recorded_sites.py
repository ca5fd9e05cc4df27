"""Record where the user's source builds loaders and optimizers, and calls root modules."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gpurun.knobs.api import LoaderCall
from gpurun.knobs.callers import caller_past, is_ours, is_users
from gpurun.records.frames import transparent
from gpurun.records.messages.training_events import SiteKind, SourceSiteEvent
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.optimizers import OPTIMIZERS
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.watched_loaders import LOADERS

TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
MOST_SITES = 200
"""A script that generates code for each call would record without an end."""


def record() -> None:
    """Record sites from now on."""
    sites = _Sites()
    LOADERS.edits.append(guarded("loader sites", sites.loader))
    OPTIMIZERS.built.append(guarded("optimizer sites", sites.optimizer))
    ROOTS.on_root.append(guarded("model sites", sites.root))
    ROOTS.around.add("root call sites", sites.root_call, None, lambda error: None)
    if torch.cuda.is_available():
        replace(torch.cuda, "synchronize", sites.watch_synchronize)


class _Sites:
    def __init__(self) -> None:
        self._seen: set[SourceSiteEvent] = set()
        self._named: list[tuple[weakref.ref[nn.Module], SourceSiteEvent, tuple[int, int]]] = []
        """Modules that names held where an optimizer was built, the innermost scope first, and
        which call it was of which frame."""
        self._roots = itertools.count()

    def loader(self, call: LoaderCall) -> None:
        """A loader is being built."""
        self._note(SiteKind.LOADER, _caller(), call.key)

    def optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer was built: which names hold modules there?"""
        frame = _caller()
        self._note(SiteKind.OPTIMIZER, frame, type(optimizer).__name__)
        while frame is not None:
            if is_users(frame):
                self._named += [
                    (weakref.ref(module), _event(SiteKind.MODEL, frame, name), _call_of(frame))
                    for name, module in _named_modules(frame)
                ]
            frame = frame.f_back

    def root(self, module: nn.Module) -> None:
        """A root is known. A plain name of it is better than `self`, an inner scope than an outer
        one; a call that is under way trains the root already."""
        under_way = {_call_of(frame) for frame, _ in traceback.walk_stack(sys._getframe())}
        events = [
            event for held, event, call in self._named if held() is module and call not in under_way
        ]
        number = next(self._roots)
        for event in sorted(events, key=lambda event: event.name == "self"):
            self._write(dataclasses.replace(event, root=number))

    def root_call(self) -> AbstractContextManager[None]:
        """A root is being called."""
        self._note(SiteKind.ROOT_CALL, _caller())
        return nullcontext()

    def watch_synchronize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """In place of `torch.cuda.synchronize`: note the user's own calls."""
        note = guarded("synchronisation sites", self._note)

        @transparent
        def synchronize(*args: object, **kwargs: object) -> Any:
            note(SiteKind.SYNCHRONIZE, _caller())
            return original(*args, **kwargs)

        return synchronize

    def _note(self, what: SiteKind, frame: FrameType | None, name: str = "") -> None:
        if frame is not None:
            self._write(_event(what, frame, name))

    def _write(self, event: SourceSiteEvent) -> None:
        if event not in self._seen and len(self._seen) < MOST_SITES:
            self._seen.add(event)
            RECORDER.event(event)


def _caller() -> FrameType | None:
    """The frame that called torch, if it is the user's own source and not a library's."""
    frame = caller_past(sys._getframe(1), _torchs_or_ours)
    return frame if frame is not None and is_users(frame) else None


def _torchs_or_ours(frame: FrameType) -> bool:
    return is_ours(frame) or frame.f_code.co_filename.startswith(TORCH_FOLDER)


def _call_of(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _event(what: SiteKind, frame: FrameType, name: str = "") -> SourceSiteEvent:
    """The call that a frame is making."""
    position: tuple[int | None, ...] = (frame.f_lineno, None, None, None)
    if sys.version_info >= (3, 11):
        found = frame.f_code.co_positions()
        position = next(itertools.islice(found, frame.f_lasti // 2, None), position)
    line, end_line, column, end_column = position
    file = os.path.relpath(frame.f_code.co_filename)
    return SourceSiteEvent(what, file, line or frame.f_lineno, end_line, column, end_column, name)


def _named_modules(frame: FrameType) -> Iterator[tuple[str, nn.Module]]:
    """The names of a scope that hold modules, and the attributes of its `self` that do."""
    held = dict(frame.f_locals)
    for name, value in held.items():
        if isinstance(value, nn.Module):
            yield name, value
    own = held.get("self")
    attributes = {**getattr(own, "__dict__", {}), **getattr(own, "_modules", {})}
    for name, value in attributes.items():
        if isinstance(value, nn.Module) and name.isidentifier():
            yield f"self.{name}", value
