"""One file a command. Each takes the words behind its name and returns the exit code."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

from gpurun.arguments.flag_parser import HelpAsked
from gpurun.arguments.flag_table import help_lines
from gpurun.errors import ExitCode


def run_command(place: str, argv: list[str]) -> int:
    """Run the command at a place ("package.module:function"), or write that module's `HELP`.

    The module is imported only now: a plain run needs none of them.
    """
    name, _, function = place.partition(":")
    module = import_module(name)
    try:
        return int(getattr(module, function)(argv))
    except HelpAsked as asked:
        if asked.code is ExitCode.OK:
            from gpurun.commands.written_outputs import must_write, write_stdout

            must_write("the help", lambda: write_stdout(help_text(module)))
        else:
            sys.stderr.write(help_text(module))
        return int(asked.code)


def help_text(module: ModuleType) -> str:
    """A command's `HELP`, with the lines of its `FLAGS` in place of `{flags}`."""
    text: str = module.HELP
    return text.replace("{flags}\n", help_lines(module.FLAGS.values()))
