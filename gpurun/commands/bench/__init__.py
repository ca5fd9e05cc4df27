"""`gpurun bench` and what it has below it (`bench bisect`, ...): one file each."""

from __future__ import annotations

from collections.abc import Callable

from gpurun.arguments.mistyped_command import refuse_mistyped


def _run(argv: list[str]) -> int:
    from gpurun.arguments.bench_flags import parse_bench
    from gpurun.commands.bench.bench_command import run_bench

    return run_bench(parse_bench(argv))


def _history(argv: list[str]) -> int:
    from gpurun.commands.bench.history_command import history

    return history(argv)


def _accept(argv: list[str]) -> int:
    from gpurun.commands.bench.accept_command import accept

    return accept(argv)


def _bisect(argv: list[str]) -> int:
    from gpurun.commands.bench.bisect_command import bisect_command

    return bisect_command(argv)


def _selftest(argv: list[str]) -> int:
    from gpurun.commands.bench.selftest_command import run_selftest

    return run_selftest(argv)


BELOW: dict[str, Callable[[list[str]], int]] = {
    "accept": _accept,
    "bisect": _bisect,
    "history": _history,
    "selftest": _selftest,
}
"""By its word, each command below `gpurun bench`; a script of that name is `./bisect`."""


def bench(argv: list[str]) -> int:
    """`gpurun bench ...`: the exit codes are those of the help text."""
    if argv and argv[0] in BELOW:
        return BELOW[argv[0]](argv[1:])
    if argv:
        refuse_mistyped(argv[0], BELOW, "gpurun bench")
    return _run(argv)
