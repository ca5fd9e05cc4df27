"""`gpurun explain`: what a finding or a knob means, from the class that defines it."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

from gpurun.arguments.flag_parser import split_all
from gpurun.arguments.flag_table import Flags
from gpurun.arguments.gpurun_toml import load_config
from gpurun.commands.written_outputs import must_write, print_verdict, write_stdout
from gpurun.diagnoses.diagnosis_report import all_diagnoses
from gpurun.errors import ExitCode, GpurunError
from gpurun.knobs import all_knobs
from gpurun.knobs.api import Knob
from gpurun.knobs.stages import stage_of

HELP = """\
usage: gpurun explain [NAME...]     what findings and knobs of these names mean; all, in a line each

Names are those of gpurun's reports: findings such as data_loading, knobs such as loader_workers.
"""
FLAGS: Flags = {}


def explain(argv: list[str]) -> int:
    """Write the explanations to stdout; exit code 2 for a name that means nothing."""
    _, names = split_all(argv, FLAGS)
    texts = _texts()
    if names:
        plain = (re.sub(r"[-\s]+", "_", name.strip().lower()) for name in names)
        names = [name if name in texts else other for name, other in zip(names, plain, strict=True)]
        unknown = next((name for name in names if name not in texts), None)
        if unknown is not None:
            raise GpurunError(f"there is no finding or knob {unknown!r}", _near(unknown, texts))
        text = "\n\n".join(texts[name] for name in dict.fromkeys(names))
    else:
        text = "\n".join(one.partition("\n\n")[0] for one in texts.values())
    must_write("the explanation", lambda: write_stdout(f"{text}\n"))
    print_verdict("explained", int(ExitCode.OK))
    return int(ExitCode.OK)


def _near(name: str, texts: Mapping[str, str]) -> str:
    """Names that are written alike, or whose explanations have all its words."""
    near = difflib.get_close_matches(name, texts, n=1, cutoff=0.7)
    parts = [part for part in name.split("_") if part.isalnum()]
    alike = [one for one, text in texts.items() if all(part in text.lower() for part in parts)]
    found = near or (alike[:3] if parts else [])
    return f"did you mean {' or '.join(found)}?" if found else "gpurun explain lists all names"


def _texts() -> Mapping[str, str]:
    """Each name's explanation: a line with its summary, an empty line, the rest."""
    knobs = all_knobs(load_config(Path.cwd()).knobs)
    texts = {}
    for diagnosis in all_diagnoses():
        name = diagnosis.type.value
        tried = [knob.name for knob in knobs if diagnosis.type in knob.answers]
        facts = [f"Knobs that may remove the cause: {', '.join(tried)}."] if tried else []
        texts[name] = _text(name, "finding", diagnosis.documentation, facts)
    for knob in knobs:
        documentation = inspect.cleandoc(type(knob).__doc__ or "")
        texts[knob.name] = _text(knob.name, "knob", documentation, list(_facts(knob)))
    return texts


def _facts(knob: Knob) -> list[str]:
    facts = [f"Effect: {knob.effect.value}. Stage: {stage_of(knob)}."]
    if knob.answers:
        facts.append(f"Tried sooner after: {', '.join(one.value for one in knob.answers)}.")
    if knob.choices:
        facts.append(f"Values: {', '.join(str(one).lower() for one in knob.choices)}.")
    return facts


def _text(name: str, kind: str, documentation: str, facts: list[str]) -> str:
    summary, _, rest = documentation.partition("\n\n")
    parts = [f"{name} ({kind}): {' '.join(summary.split())}", rest, "\n".join(facts)]
    return "\n\n".join(part for part in parts if part)
