"""Counts a trial's connections to other machines: what goes there cannot be taken back.

Nothing is blocked: data may lie there. Only connections that Python's own `socket` makes are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.records.events import CONNECTED, TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER

HERE = ("127.", "::1", "::ffff:127.", "localhost", "0.0.0.0")
"""Beginnings of addresses of this machine."""


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
                note(self, *args)

    return connect


def _note(socket: Any, address: tuple[Any, ...]) -> None:
    """One event, unless the other end is this machine: the kernel then takes its address for ours.

    The other end may not have answered yet, or refuse: it was asked.
    """
    host, port = str(address[0]), address[1]
    if not host.startswith(HERE) and socket.getsockname()[0] != host:
        RECORDER.event(TraitEvent(trait=CONNECTED, detail=f"{host}:{port}"))
