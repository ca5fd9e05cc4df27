"""Watching argparse in trials: the script's options, so that it can be tuned by its own flags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gpurun.records.events import ArgumentsEvent
from gpurun.records.frames import transparent
from gpurun.records.script_arguments import MASK, is_secret, masked_text
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def install() -> None:
    """Record the options of every parser that parses a command line from now on."""
    when_imported("argparse", _argparse_is_here)


def _argparse_is_here(argparse: ModuleType) -> None:
    replace(argparse.ArgumentParser, "parse_known_args", _watch_parse)


def _watch_parse(original: Callable[..., Any]) -> Callable[..., Any]:
    write = guarded("arguments", _write)

    @transparent
    def parse_known_args(
        parser: ArgumentParser, args: Sequence[str] | None = None, namespace: object = None
    ) -> Any:
        result = original(parser, args, namespace)
        if args is None:
            write(parser, result[0])
        return result

    return parse_known_args


def _write(parser: ArgumentParser, namespace: Namespace) -> None:
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
