"""The flags of `gpurun blame`: those of a plain run, and some of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from gpurun.arguments.flag_parser import Flags, HelpAsked, check_script_words, split
from gpurun.arguments.flag_values import count_of
from gpurun.arguments.main_flags import MAIN, options_of
from gpurun.arguments.options import BlameOptions
from gpurun.errors import ExitCode

STEPS = 100
"""Of each launch, by default."""
OWN = ("steps", "check", "trials-in-place")
FLAGS = Flags(MAIN.switches, (*MAIN.values, "check"))
FOR_RUNS = (
    "optimize", "tune-only", "dry-run", "scale", "budget", "max-trials", "objective",
    "save-settings", "rounds", "strong", "plot", "on-nonfinite", "emergency-checkpoint",
    "on-oom", "prometheus", "tensorboard",
)  # fmt: skip
"""Flags of a tuning, a scaling or a full run: blame only launches short trials."""


def parse_blame(argv: list[str], environment: Mapping[str, str] | None = None) -> BlameOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    if not argv:
        raise HelpAsked(ExitCode.USAGE)
    words = split(argv, FLAGS)
    own = words.own
    check_script_words(words, "blame", FOR_RUNS)
    plain = {name: value for name, value in own.items() if name not in OWN}
    if "settings" not in plain:
        plain["tuned"] = ""
    run = options_of(replace(words, own=plain), os.environ if environment is None else environment)
    return BlameOptions(
        run=replace(run, trials_in_place="trials-in-place" in own),
        steps=count_of("steps", own.get("steps")) or STEPS,
        check=own.get("check"),
    )
