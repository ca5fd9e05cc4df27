"""Which benchmarks a command is about, and where their records are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.config import load_config
from gpurun.errors import GpurunError
from gpurun.rundir import find_home


def chosen(
    script: str | None, args: tuple[str, ...], steps: int | None = None
) -> tuple[Benchmark, ...]:
    """That of the script, or all of the configuration; `GpurunError` where there is none.

    `steps`: what a launch measures, where the command line says it.
    """
    config = load_config(Path.cwd())
    if script is None:
        found = benchmarks(config)
    else:
        found = (named(config, script, args, Path.cwd()),)
    if not found:
        raise GpurunError(
            "there is no benchmark",
            'name a script, or write [bench] script = "train.py" into gpurun.toml',
        )
    for benchmark in found:
        if not (benchmark.folder / benchmark.script).is_file():
            raise GpurunError(
                f"there is no script {benchmark.folder / benchmark.script}", "check the path"
            )
    return found if steps is None else tuple(replace(one, steps=steps) for one in found)


def records_home(out: str | None) -> Path:
    """The folder of records; `GpurunError` where it cannot be written."""
    try:
        return find_home(Path.cwd(), out)
    except OSError as error:
        raise GpurunError(
            f"records cannot be written: {error.strerror or error}",
            "make room there, or name another folder with --out",
        ) from None
