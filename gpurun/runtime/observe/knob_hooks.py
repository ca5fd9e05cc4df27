"""The places of the user's process that a knob can reach: implements `knobs.api.Hooks`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from gpurun.knobs.api import LoaderCall
from gpurun.records.events import RUNTIME_ONLY, CompileEvent
from gpurun.records.spec import Setting
from gpurun.runtime.core.knob_outcomes import OUTCOMES
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.backward_passes import BACKWARD
from gpurun.runtime.observe.optimizers import OPTIMIZERS
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.watched_loaders import LOADERS

NO_CONTEXT = "Attempting to run cuBLAS, but there was no current CUDA context"
"""Torch warns so, and makes the context, where a changed setting has the thread of backward passes
begin with a matrix product. The script alone would not have warned."""


class KnobHooks:
    """The hooks of one knob. Each call-back is guarded: if one raises, the knob has failed."""

    def __init__(self, knob: str) -> None:
        self._knob = knob

    def on_import(self, module: str, callback: Callable[[ModuleType], None]) -> None:
        """See `knobs.api.Hooks`."""
        when_imported(module, self.guarded(callback))

    def before_loader(self, edit: Callable[[LoaderCall], None]) -> None:
        """See `knobs.api.Hooks`."""
        LOADERS.edits.append(self.guarded(_whole(edit)))

    def after_optimizer(self, callback: Callable[[Any], None]) -> None:
        """See `knobs.api.Hooks`."""
        OPTIMIZERS.built.append(self.guarded(callback))

    def on_root(self, callback: Callable[[Any], None]) -> None:
        """See `knobs.api.Hooks`."""
        ROOTS.on_root.append(self.guarded(callback))

    def around_root_call(
        self,
        context: Callable[[], AbstractContextManager[Any]],
        output: Callable[[Any], Any] | None = None,
        inputs: Callable[[Any], Any] | None = None,
    ) -> None:
        """See `knobs.api.Hooks`."""
        ROOTS.around.add(f"knob {self._knob}", context, output, self._failed, inputs)

    def around_backward(self, begins: Callable[[Any], Any], ended: Callable[[], None]) -> None:
        """See `knobs.api.Hooks`."""
        BACKWARD.around.append((self.guarded(begins), self.guarded(ended)))

    def on_step(self, callback: Callable[[int], None]) -> None:
        """See `knobs.api.Hooks`."""
        CLOCK.listeners.append(self.guarded(callback))

    def applied(self, detail: str = "") -> None:
        """See `knobs.api.Hooks`."""
        OUTCOMES.record(self._knob, "applied", str(detail))

    def skipped(self, reason: str) -> None:
        """See `knobs.api.Hooks`."""
        OUTCOMES.record(self._knob, "skipped", str(reason))

    def revoked(self, reason: str) -> None:
        """See `knobs.api.Hooks`."""
        OUTCOMES.revoked(self._knob, str(reason))

    def runtime_only(self, reason: str) -> None:
        """See `knobs.api.Hooks`."""
        OUTCOMES.record(self._knob, RUNTIME_ONLY, str(reason))

    def guarded(
        self, callback: Callable[..., Any], failed: Callable[[Exception], None] | None = None
    ) -> Callable[..., Any]:
        """See `knobs.api.Hooks`."""
        return guarded(f"knob {self._knob}", callback, failed or self._failed)

    def record(self, event: CompileEvent) -> None:
        """See `knobs.api.Hooks`."""
        RECORDER.event(event)

    def has_trait(self, trait: str) -> str | None:
        """See `knobs.api.Hooks`."""
        return TRAITS.seen.get(trait)

    def _failed(self, error: Exception) -> None:
        OUTCOMES.failed(self._knob, error)


def _whole(edit: Callable[[LoaderCall], None]) -> Callable[[LoaderCall], None]:
    """Undo an edit that raises half-way; it changes no argument and records no outcome."""

    def edit_or_not(call: LoaderCall) -> None:
        before = dict(call.arguments)
        try:
            with OUTCOMES.held() as held:
                edit(call)
        except Exception:
            call.arguments.clear()
            call.arguments.update(before)
            raise
        OUTCOMES.settle(held)

    return edit_or_not


def apply_settings(settings: tuple[Setting, ...], paths: tuple[str, ...]) -> None:
    """Turn every knob of the spec; one that raises is recorded as failed and left out.

    In the knobs' own order, whatever the order of a settings file: prefetching and lasting workers
    need the workers first.
    """
    if not settings:
        return
    from gpurun.knobs import all_knobs, find

    warnings.filterwarnings("ignore", message=NO_CONTEXT)
    try:
        names = [knob.name for knob in all_knobs(paths)]
    except Exception:
        names = []  # each setting reports below what is wrong with the knobs
    for setting in sorted(settings, key=lambda s: names.index(s.knob) if s.knob in names else -1):
        try:
            knob, hooks = find(setting.knob, paths), KnobHooks(setting.knob)
            if knob.choices and setting.value not in knob.choices:
                hooks.skipped(f"unknown value {setting.value!r}")
            else:
                knob.apply(setting.value, hooks)
        except Exception as error:
            OUTCOMES.failed(setting.knob, error)
