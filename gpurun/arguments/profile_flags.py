"""The flags of `gpurun profile`: those of a plain run, and some of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gpurun.arguments.flag_parser import Flags, HelpAsked, check_script_words, filled, split
from gpurun.arguments.main_flags import MAIN, options_of
from gpurun.arguments.options import ProfileOptions
from gpurun.errors import ExitCode, GpurunError

OWN = ("sources", "steps", "stop")
FLAGS = Flags((*MAIN.switches, "stop"), (*MAIN.values, "sources"))
AGAINST = (
    "optimize", "tune-only", "dry-run", "scale", "budget", "max-trials", "objective", "allow",
    "save-settings", "trials-in-place", "rounds", "strong", "plot",
)  # fmt: skip
"""Flags of a tuning or a scaling: nothing is tried here."""


def parse_profile(argv: list[str], environment: Mapping[str, str] | None = None) -> ProfileOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    if not argv:
        raise HelpAsked(ExitCode.USAGE)
    words = split(argv, FLAGS)
    own = words.own
    check_script_words(words, "profile", AGAINST)
    if own.get("json") == "-":
        raise GpurunError("--json - would mix with the script's own stdout", "name a file")
    plain = replace(words, own={name: own[name] for name in own if name not in OWN})
    return filled(
        ProfileOptions,
        own,
        run=options_of(plain, os.environ if environment is None else environment),
        sources=_sources(own.get("sources")),
    )


def _sources(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(word.strip() for word in text.split(",") if word.strip())
    if not names:
        raise GpurunError("--sources names no source", "as in --sources kineto,host")
    return names
