"""The flags of `gpurun blame`, `diagnose`, `doctor`, `eject`, `monitor`, `profile` and `report`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gpurun.arguments.flag_parser import (
    Flags,
    HelpAsked,
    Words,
    filled,
    script_words,
    split,
    split_all,
)
from gpurun.arguments.flag_values import address_of, budget_of, count_of, names_of
from gpurun.arguments.main_flags import MAIN, options_of
from gpurun.arguments.options import (
    BlameOptions,
    DiagnoseOptions,
    DoctorOptions,
    EjectOptions,
    MonitorOptions,
    Options,
    ProfileOptions,
    ReportOptions,
)
from gpurun.errors import ExitCode, GpurunError

MONITOR = Flags(switches=("once", "quiet"), values=("json", "prometheus", "out"))


def parse_monitor(argv: Sequence[str]) -> MonitorOptions:
    """The options; `GpurunError` for a word that is none of its flags."""
    words = split(list(argv), MONITOR)
    own = words.own
    if words.program is not None:
        raise GpurunError(
            f"monitor takes no script ({words.program})", "gpurun ./monitor runs a script"
        )
    single = [flag for flag in ("once", "json") if flag in own]
    if single and "prometheus" in own:
        raise GpurunError(f"--{single[0]} is not for --prometheus", "drop one of them")
    return filled(MonitorOptions, own, prometheus=address_of("prometheus", own.get("prometheus")))


DIAGNOSE = Flags(switches=("all", "quiet"), values=("json", "markdown"))


def parse_diagnose(argv: Sequence[str]) -> DiagnoseOptions:
    """The options; flags may stand before and after the paths."""
    own, paths = split_all(argv, DIAGNOSE)
    if not paths:
        raise HelpAsked(ExitCode.USAGE)
    return filled(DiagnoseOptions, own, paths=tuple(paths))


def parse_doctor(argv: list[str]) -> DoctorOptions:
    """The options of `gpurun doctor`."""
    words = split(argv, Flags((*MAIN.switches, "gpu"), MAIN.values))
    stray = [name for name in words.own if name not in ("gpu", "json", "out", "quiet")]
    if words.program is not None or words.torchrun or stray:
        raise GpurunError(
            "doctor takes --gpu, --json, --out and --quiet only", "gpurun ./doctor runs a script"
        )
    return filled(DoctorOptions, words.own)


REPORT = Flags(switches=("quiet",), values=("html", "markdown", "png", "out"))


def parse_report(argv: Sequence[str]) -> ReportOptions:
    """The options; flags may stand before and after the runs."""
    own, runs = split_all(argv, REPORT)
    return filled(ReportOptions, own, runs=tuple(runs))


OF_PROFILE = ("sources", "steps", "stop")
PROFILE = Flags((*MAIN.switches, "stop"), (*MAIN.values, "sources"))
NOT_OF_PROFILE = (
    "optimize", "tune-only", "dry-run", "scale", "budget", "max-trials", "objective", "allow",
    "save-settings", "trials-in-place", "rounds", "strong", "plot", "profile-every",
)  # fmt: skip
"""Flags of a tuning or a scaling: nothing is tried here."""


def parse_profile(argv: list[str]) -> ProfileOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    words = script_words(argv, PROFILE, "profile", NOT_OF_PROFILE)
    own = words.own
    if own.get("json") == "-":
        raise GpurunError("--json - would mix with the script's own stdout", "name a file")
    plain = replace(words, own={name: own[name] for name in own if name not in OF_PROFILE})
    return filled(
        ProfileOptions,
        own,
        run=options_of(plain, os.environ),
        sources=names_of("sources", own.get("sources")) or None,
    )


def _under_settings(words: Words, own_flags: Sequence[str]) -> Options:
    """The run under stored settings that a command launches as trials; `own_flags`: of the
    command itself. The tuned settings, where `--settings` names none."""
    plain = {name: value for name, value in words.own.items() if name not in own_flags}
    if "settings" not in plain:
        plain["tuned"] = ""
    run = options_of(replace(words, own=plain), os.environ)
    return replace(run, trials_in_place="trials-in-place" in words.own)


BLAME_STEPS = 100
"""Of each launch, by default."""
OF_BLAME = ("steps", "check", "trials-in-place")
BLAME = Flags(MAIN.switches, (*MAIN.values, "check"))
NOT_OF_BLAME = (
    "optimize", "tune-only", "dry-run", "scale", "budget", "max-trials", "objective",
    "save-settings", "rounds", "strong", "plot", "on-nonfinite", "emergency-checkpoint",
    "locate-nonfinite", "on-oom", "live", "prometheus", "tensorboard", "profile-every",
)  # fmt: skip
"""Flags of a tuning, a scaling or a full run: blame only launches short trials."""


def parse_blame(argv: list[str]) -> BlameOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    words = script_words(argv, BLAME, "blame", NOT_OF_BLAME)
    own = words.own
    return BlameOptions(
        run=_under_settings(words, OF_BLAME),
        steps=count_of("steps", own.get("steps")) or BLAME_STEPS,
        check=own.get("check"),
    )


OF_EJECT = ("output", "no-check", "budget", "trials-in-place")
EJECT = Flags((*MAIN.switches, "no-check"), (*MAIN.values, "output"))
NOT_OF_EJECT = (*(flag for flag in NOT_OF_BLAME if flag != "budget"), "steps")
"""Flags of a tuning, a scaling or a full run: eject only launches short trials."""


def parse_eject(argv: list[str]) -> EjectOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    words = script_words(argv, EJECT, "eject", NOT_OF_EJECT)
    own = words.own
    return EjectOptions(
        run=_under_settings(words, OF_EJECT),
        output=own.get("output"),
        check="no-check" not in own,
        budget_seconds=budget_of(own.get("budget")),
    )
