"""Prepare a trial before torch is imported.

The options of the script are recorded, so that it can be tuned by its own flags. Connections to
other machines are counted: what goes there cannot be taken back. Nothing is blocked, for data may
lie there. Only connections that Python's own `socket` makes are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpurun.records.events import ArgumentsEvent, TraitEvent
from gpurun.records.frames import transparent
from gpurun.records.messages.traits import CONNECTED
from gpurun.records.script_arguments import MASK, is_secret, masked_text
from gpurun.records.spec import TrialSpec
from gpurun.runtime.core import seeds
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe import loaded_modules
from gpurun.runtime.trial import folder_renames, quiet_loggers

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def prepare(spec: TrialSpec) -> None:
    """Seed the script, watch its command line, imports and connections, quieten loggers, let
    folders move."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    watch_options()
    quiet_loggers.quieten()
    count_connections()
    folder_renames.install()
    loaded_modules.remember_environment()


def watch_options() -> None:
    """Record the options of every parser that parses a command line from now on."""
    when_imported("argparse", _argparse_is_here)


def _argparse_is_here(argparse: ModuleType) -> None:
    replace(argparse.ArgumentParser, "parse_known_args", _watch_parse)


def _watch_parse(original: Callable[..., Any]) -> Callable[..., Any]:
    write = guarded("arguments", _write_options)

    @transparent
    def parse_known_args(
        parser: ArgumentParser, args: Sequence[str] | None = None, namespace: object = None
    ) -> Any:
        result = original(parser, args, namespace)
        if args is None:
            write(parser, result[0])
        return result

    return parse_known_args


def _write_options(parser: ArgumentParser, namespace: Namespace) -> None:
    options = tuple(
        {
            "flags": list(action.option_strings),
            "dest": action.dest,
            "value": _shown(action.dest, getattr(namespace, action.dest, None)),
        }
        for action in parser._actions
        if action.option_strings and action.dest != "help"
    )
    RECORDER.event(ArgumentsEvent(options=options))


def _shown(name: str, value: object) -> Any:
    """A scalar as it is, anything else in words, and neither if it is a secret."""
    if isinstance(value, (bool, int, float, type(None))):
        return value
    text = value if isinstance(value, str) else repr(value)[:200]
    return MASK if is_secret(name) else masked_text(text)


def count_connections() -> None:
    """Record each connection from now on."""
    when_imported("socket", _socket_is_here)


def _socket_is_here(module: ModuleType) -> None:
    for name in ("connect", "connect_ex"):
        replace(module.socket, name, lambda original: _watch_connect(original, module))


def _watch_connect(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    internet = (module.AF_INET, module.AF_INET6)
    note = guarded("connections", _note_connection)

    @transparent
    def connect(self: Any, *args: Any) -> Any:
        try:
            return original(self, *args)
        finally:
            if self.family in internet and self.type == module.SOCK_STREAM:
                note(module, self, *args)

    return connect


def _note_connection(module: ModuleType, made: Any, address: tuple[Any, ...]) -> None:
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
