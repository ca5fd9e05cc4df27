"""The flags of `gpurun blame`, `diagnose`, `doctor`, `eject`, `monitor`, `profile` and `report`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpurun.arguments.flag_parser import Words, script_words, split, split_all
from gpurun.arguments.flag_table import (
    IN_PLACE,
    QUIET,
    RECORDS,
    Flag,
    Flags,
    filled,
    flag,
    flags_of,
)
from gpurun.arguments.flag_values import address_of, count_of, duration_of, names_of, price_of
from gpurun.arguments.main_flags import MAIN, options_of
from gpurun.arguments.options import Options
from gpurun.errors import GpurunError
from gpurun.records.record import record


@record
class MonitorOptions:
    """The flags of `gpurun monitor`. `json` implies `once`. `prometheus`: host and port."""

    once: bool = flag("look once, for a second", against=("prometheus",))
    json: str | None = flag(
        "look once and write the state as JSON; `-` writes it to stdout",
        "FILE",
        against=("prometheus",),
    )
    prometheus: tuple[str, int] | None = flag(
        "serve the figures to Prometheus on loopback until Ctrl-C, as ADDRESS:PORT to other "
        "machines too",
        "PORT",
        read=address_of,
    )
    out: str | None = flag(RECORDS, "DIR")
    quiet: bool = flag(QUIET)


def parse_monitor(argv: Sequence[str]) -> MonitorOptions:
    """The options; `GpurunError` for a word that is none of its flags."""
    flags = flags_of(MonitorOptions)
    words = split(list(argv), flags)
    if words.program is not None:
        raise GpurunError(
            f"monitor takes no script ({words.program})", "gpurun ./monitor runs a script"
        )
    single = [name for name in words.own if "prometheus" in flags[name].against]
    if single and "prometheus" in words.own:
        raise GpurunError(f"--{single[0]} is not for --prometheus", "drop one of them")
    return filled(MonitorOptions, words.own)


@record
class DiagnoseOptions:
    """The flags of `gpurun diagnose`. `paths`: a run folder, recordings of one training, or
    two of these that are compared. None: the newest run."""

    paths: tuple[str, ...] = ()
    all: bool = flag("show all findings (default: the five most severe), or all changes")
    json: str | None = flag("write figures and findings as JSON (- for stdout)", "FILE")
    markdown: str | None = flag("write the report as Markdown", "FILE")
    quiet: bool = flag(QUIET)


def parse_diagnose(argv: Sequence[str]) -> DiagnoseOptions:
    """The options; flags may stand before and after the paths."""
    own, paths = split_all(argv, flags_of(DiagnoseOptions))
    return filled(DiagnoseOptions, own, paths=tuple(paths))


@record
class DoctorOptions:
    """The flags of `gpurun doctor`."""

    gpu: bool = flag(
        "put the GPUs to work too: a matrix product, clocks, memory errors, an all-reduce among "
        "several (some seconds a GPU; best while nothing else uses them)"
    )
    json: str | None = flag("write the checks as JSON; `-` writes them to stdout", "FILE")
    out: str | None = flag(
        "check the folder of records there (default .gpurun; also GPURUN_HOME)", "DIR"
    )
    quiet: bool = flag(QUIET)


def parse_doctor(argv: list[str]) -> DoctorOptions:
    """The options of `gpurun doctor`."""
    words = split(argv, flags_of(DoctorOptions))
    if words.program is not None:
        raise GpurunError(
            "doctor takes --gpu, --json, --out and --quiet only", "gpurun ./doctor runs a script"
        )
    return filled(DoctorOptions, words.own)


@record
class ReportOptions:
    """The flags of `gpurun report`. `runs`: run folders, their names, or documents of `--json`; the
    newest run if there are none. `html`: None for a file in the folder of the first run."""

    runs: tuple[str, ...] = ()
    html: str | None = flag(
        "write the page there (default: report.html in the run folder; of several runs "
        "side-by-side.html in the folder of the first)",
        "FILE",
    )
    markdown: str | None = flag(
        "write the same as Markdown, too; pictures become sentences", "FILE"
    )
    png: str | None = flag(
        "draw gains, step parts, loss and series over time there, as one picture", "FILE"
    )
    price: float | None = flag(
        "price of an hour of one GPU (of the machine where there is none): the page then says "
        "what the training costs",
        "AMOUNT",
        read=price_of,
    )
    out: str | None = flag(RECORDS, "DIR")
    quiet: bool = flag(QUIET)


def parse_report(argv: Sequence[str]) -> ReportOptions:
    """The options; flags may stand before and after the runs."""
    own, runs = split_all(argv, flags_of(ReportOptions))
    return filled(ReportOptions, own, runs=tuple(runs))


def _shared(names: Sequence[str]) -> dict[str, Flag]:
    """Flags of the main form that the help of a command lists, too."""
    return {name: MAIN[name] for name in names}


STORED = ("tuned", "settings", "without", "allow", "json", "out", "quiet")
"""Flags of the main form that say which settings a command takes, and where its result goes."""


def _run_of(words: Words, own_flags: Flags, environment: Mapping[str, str]) -> Options:
    """The run that a command launches; `own_flags`, of the command itself, say nothing of it."""
    plain = {name: value for name, value in words.own.items() if name not in own_flags}
    return options_of(replace(words, own=plain), environment)


@record
class ProfileOptions:
    """The flags of `gpurun profile`. `run`: the plain run that is profiled. `sources`: names of
    profilers, None for those that are on by default. `steps`: None for the default. `duration`:
    seconds. `kernel`, `launch_count` and `set` are Nsight Compute's: see `ProfileSpec`."""

    run: Options
    sources: tuple[str, ...] | None = flag("recorders to use, a list", "LIST", read=names_of)
    steps: int | None = flag("record so many steps", "N", default="20, and at least a second,")
    duration: float | None = flag(
        "record for so long at the least: 90, 5s, 2m", "TIME", default="a second", read=duration_of
    )
    stop: bool = flag("end the script after these steps")
    kernel: str | None = flag(
        "ncu looks at the kernels whose names match", "REGEX", default="the six longest"
    )
    launch_count: int | None = flag(
        "ncu looks at so many launches of each shape of a kernel", "N", default="2"
    )
    set: str | None = flag(
        "a set of ncu's sections, as in full, beside those that findings need", "NAME"
    )


OF_NCU = ("kernel", "launch-count", "set")
"""Flags of `ProfileOptions` that Nsight Compute alone heeds."""
PROFILE_HELP = {**flags_of(ProfileOptions), **_shared(("json", "out", "quiet"))}


def parse_profile(argv: list[str]) -> ProfileOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own_flags = flags_of(ProfileOptions)
    words = script_words(argv, {**MAIN, **own_flags}, "profile")
    if words.own.get("json") == "-":
        raise GpurunError("--json - would mix with the script's own stdout", "name a file")
    options: ProfileOptions = filled(
        ProfileOptions, words.own, run=_run_of(words, own_flags, os.environ)
    )
    foreign = [name for name in OF_NCU if name in words.own]
    if foreign and "ncu" not in (options.sources or ()):
        what = f"--{foreign[0]} is for Nsight Compute"
        raise GpurunError(what, "add it: --sources steps,host,kineto,allocator,ncu")
    return options


def _under_settings(words: Words, own_flags: Flags) -> Options:
    """The run under stored settings that a command launches as trials: the tuned settings, where
    `--settings` names none."""
    if "settings" not in words.own:
        words.own["tuned"] = ""
    return _run_of(words, own_flags, os.environ)


BLAME_STEPS = 100
"""Of each launch, by default."""


@record
class BlameOptions:
    """The flags of `gpurun blame`. `run`: the run that went wrong. `steps`: of each launch.
    `check`: the shell command that judges a launch, None for a crash or a bad loss."""

    run: Options
    steps: int = flag(
        "launch for so many steps",
        "N",
        initial=BLAME_STEPS,
        default=str(BLAME_STEPS),
        read=count_of,
    )
    check: str | None = flag(
        "let a shell command judge each launch instead. Its exit codes are those of git bisect "
        "run: 0 good, 125 cannot tell, any other bad. $GPURUN_TRIAL is the launch's folder, with "
        "output.log and result.json",
        "COMMAND",
    )
    trials_in_place: bool = flag(IN_PLACE)


BLAME_HELP = {**flags_of(BlameOptions), **_shared(STORED)}


def parse_blame(argv: list[str]) -> BlameOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own_flags = flags_of(BlameOptions)
    words = script_words(argv, {**MAIN, **own_flags}, "blame")
    return filled(BlameOptions, words.own, run=_under_settings(words, own_flags))


@record
class EjectOptions:
    """The flags of `gpurun eject`. `run`: the tuned run. `output`: the file of the diff, None for
    stdout. `check`: run the patched script. `budget_seconds`: of the check, None for the
    default."""

    run: Options
    output: str | None = flag("write the diff to a file instead of stdout", "FILE")
    check: bool = flag("do not run the patched script", name="no-check", initial=True)
    budget_seconds: float | None = flag(
        "no pair of the check begins that would end later",
        "TIME",
        name="budget",
        default="5m",
        read=duration_of,
    )
    trials_in_place: bool = flag(IN_PLACE)


EJECT_HELP = {**flags_of(EjectOptions), **_shared(STORED)}


def parse_eject(argv: list[str]) -> EjectOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own_flags = flags_of(EjectOptions)
    words = script_words(argv, {**MAIN, **own_flags}, "eject")
    return filled(EjectOptions, words.own, run=_under_settings(words, own_flags))
