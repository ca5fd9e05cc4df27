"""`gpurun bench` and what it has below it (`bench bisect`, ...): one file each."""

from __future__ import annotations

from gpurun.arguments.flag_parser import refuse_mistyped
from gpurun.commands import run_command

BELOW = {
    "accept": "gpurun.commands.bench.accept_command:accept",
    "bisect": "gpurun.commands.bench.bisect_command:bisect_command",
    "history": "gpurun.commands.bench.history_command:history",
    "selftest": "gpurun.commands.bench.selftest_command:run_selftest",
}
"""By its word, each command below `gpurun bench`; a script of that name is `./bisect`."""


def bench(argv: list[str]) -> int:
    """`gpurun bench ...`: the exit codes are those of the help text."""
    if argv and argv[0] in BELOW:
        return run_command(BELOW[argv[0]], argv[1:])
    if argv:
        refuse_mistyped(argv[0], BELOW, "gpurun bench")
    return run_command("gpurun.commands.bench.bench_command:bench_command", argv)
