"""Counts a trial's connections to other machines: what goes there cannot be taken back.

Nothing is blocked: data may lie there. Only connections that Python's own `socket` makes are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.records.events import TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.records.messages.traits import CONNECTED
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER


def count() -> None:
    """Record each connection from now on."""
    when_imported("socket", _watch)


def _watch(module: ModuleType) -> None:
    for name in ("connect", "connect_ex"):
        replace(module.socket, name, lambda original: _watched(original, module))


def _watched(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    internet = (module.AF_INET, module.AF_INET6)
    note = guarded("connections", _note)

    def connect(self: Any, *args: Any) -> Any:
        try:
            return original(self, *args)
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            if self.family in internet and self.type == module.SOCK_STREAM:
                note(module, self, *args)

    return connect


def _note(module: ModuleType, made: Any, address: tuple[Any, ...]) -> None:
    """One event, unless the other end is this machine.

    The other end may not have answered yet, or refuse: it was asked.
    """
    host, port, *more = address
    with module.socket(made.family, module.SOCK_DGRAM) as asked:
        here = _can_be_bound(asked, (host, 0, *more))
    if not here:
        RECORDER.event(TraitEvent(trait=CONNECTED, detail=f"{host}:{port}"))


def _can_be_bound(made: Any, address: tuple[Any, ...]) -> bool:
    """True for an address or a name of this machine, its own in a network among them."""
    try:
        made.bind(address)
    except OSError:
        return False
    return True
