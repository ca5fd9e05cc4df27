"""`gpurun profile`: run the script, record some of its steps, and say what keeps it from speed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.main_flags import with_configuration
from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.arguments.subcommand_flags import (
    PROFILE_HELP,
    DiagnoseOptions,
    ProfileOptions,
    parse_profile,
)
from gpurun.arguments.torchrun_flags import nodes_asked_for
from gpurun.commands.run import chosen_settings, run_with
from gpurun.commands.written_outputs import check_outputs
from gpurun.errors import GpurunError, say
from gpurun.launch.launch_command import command_line
from gpurun.profilers import all_profilers, chosen_profilers
from gpurun.profilers.api import Profiler
from gpurun.profilers.recorded_profiles import FOLDER
from gpurun.records.spec import ProfileSpec

EVERY, DEFAULT = (
    ",".join(each.name for each in some) for some in (all_profilers(), chosen_profilers(None))
)
HELP = f"""\
usage: gpurun profile [flags] script.py [script's arguments]

Runs the script to its end and records some of its steady steps. The report then names the causes
that slow the training down: evidence, the line of the script, the cure, and an upper bound on the
gain. The script's output and exit code stay its own.

{{flags}}

Recorders are {EVERY} (default: {DEFAULT}).
torchrun's flags (--nproc-per-node, ...) and --ddp, --settings, --tuned mean the same as for a plain
run. `gpurun ./profile` runs a script of that name.
"""
FLAGS = PROFILE_HELP


def profile(argv: list[str]) -> int:
    """Profile as the command line says; the script's own exit code."""
    asked = parse_profile(argv)
    options = with_configuration(asked.run, Path.cwd())
    check_outputs(json=options.json)  # after hours it would be too late
    profilers = _working(asked, options.quiet)
    if any(each.launches_again for each in profilers) and (options.elastic or options.ddp):
        raise GpurunError("--sources ncu looks at one process", "leave out ncu, or the ranks")
    if asked.stop and nodes_asked_for(options, os.environ) is not None:
        raise GpurunError("--stop ends the ranks of one node", "leave it out on several nodes")
    options = replace(options, profile=_spec(asked, profilers))
    return run_with(options, chosen_settings(options), ProfilerExtension(options, profilers))


def _spec(asked: ProfileOptions, profilers: Sequence[Profiler]) -> ProfileSpec:
    names = tuple(each.name for each in profilers if not each.launches_again)
    spec = ProfileSpec(sources=names, stop=asked.stop, kernel=asked.kernel, set=asked.set)
    if asked.launch_count is not None:
        spec = replace(spec, launch_count=asked.launch_count)
    if asked.duration is not None:
        most = max(spec.max_steps, round(spec.max_steps * asked.duration))
        spec = replace(spec, min_seconds=asked.duration, max_steps=most)
    return spec if asked.steps is None else replace(spec, steps=asked.steps, max_steps=asked.steps)


def _working(asked: ProfileOptions, quiet: bool) -> tuple[Profiler, ...]:
    """The profilers that work here; one that was asked for and does not is an error."""
    working = []
    for profiler in chosen_profilers(asked.sources):
        obstacle = profiler.obstacle()
        if obstacle is None:
            working.append(profiler)
        elif asked.sources is not None:
            raise GpurunError(f"--sources {profiler.name}: {obstacle.what}", obstacle.todo)
        elif not quiet:
            say(f"without {profiler.title}: {obstacle.what}")
    return tuple(working)


class ProfilerExtension:
    """The profilers that `gpurun profile` adds to a plain run (see `run.RunExtension`)."""

    def __init__(self, options: Options, profilers: Sequence[Profiler]) -> None:
        self._options = options
        self._profilers = profilers
        self._command: tuple[str, ...] = ()
        self._environment: Mapping[str, str] = {}

    def target(self, target: Target, run_dir: Path, environment: Mapping[str, str]) -> Target:
        """The script under the profilers that stand around its command line."""
        command = plain = self._command = command_line(target)
        self._environment = environment
        for profiler in self._profilers:
            command = profiler.command(command, run_dir / FOLDER)
        return target if command == plain else Target(TargetKind.COMMAND, command[0], command[1:])

    def conclude(self, run_dir: Path) -> None:
        """Diagnose what was recorded, and report."""
        from gpurun.commands.diagnose import examine, write_report

        options, report = self._options, examine([run_dir])
        top = () if report.figures is None else report.figures.top_kernels or ()
        if self._launched_again(run_dir, [kernel.name for kernel in top]):
            report = examine([run_dir])
        shown = DiagnoseOptions(json=options.json, quiet=options.quiet)
        write_report(report, shown)

    def _launched_again(self, run_dir: Path, kernels: Sequence[str]) -> bool:
        """Have profilers launch the script again that need to; true if one recorded more."""
        more = False
        for profiler in self._profilers:
            try:
                more |= profiler.after_run(self._command, self._environment, run_dir, kernels)
            except (GpurunError, OSError) as error:
                say(f"without {profiler.title}: {error}")
        return more
