"""Write the tables of docs/DIAGNOSES.md from the code; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.diagnosis_report import all_diagnoses
from gpurun.diagnoses.kinds.machine_settings import EFFECTS
from gpurun.diagnoses.thresholds import DEFAULTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "DIAGNOSES.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end: {} -->"


def generated() -> dict[str, str]:
    """Each part of the page that comes from the code, by its name."""
    return {"diagnoses": _diagnoses(), "thresholds": _thresholds(), "variables": _variables()}


def page(text: str) -> str:
    """The page with its generated parts as the code has them."""
    for name, part in generated().items():
        before, begin, rest = text.partition(BEGIN.format(name))
        _, end, after = rest.partition(END.format(name))
        if not begin or not end:
            raise SystemExit(f"{PAGE.name} has no part {name!r}")
        text = f"{before}{begin}\n\n{part}\n\n{end}{after}"
    return text


def _diagnoses() -> str:
    return "\n\n".join(map(_section, all_diagnoses()))


def _section(diagnosis: Diagnosis) -> str:
    title, _, rest = diagnosis.documentation.partition("\n")
    paragraphs = [" ".join(paragraph.split()) for paragraph in rest.strip().split("\n\n")]
    lines = [f"### `{diagnosis.type.value}`", "", f"**{title}** {' '.join(paragraphs)}".strip()]
    if diagnosis.sources:
        lines += ["", f"Sources: {', '.join(source.value for source in diagnosis.sources)}."]
    if diagnosis.thresholds:
        names = ", ".join(f"`{name}`" for name in diagnosis.thresholds)
        lines += ["", f"Thresholds: {names}."]
    return "\n".join(lines)


def _thresholds() -> str:
    rows = [
        f"| `{name}` | {threshold.warning:g} | {threshold.critical:g} | {threshold.meaning} |"
        for name, threshold in DEFAULTS.items()
    ]
    return "\n".join(["| name | warning | critical | figure |", "|---|---|---|---|", *rows])


def _variables() -> str:
    where = {
        "anywhere": "always",
        "gpu": "on a GPU",
        "ranks": "several ranks on GPUs",
        "compiled": "the script compiles",
        "cpu": "one process on the CPU",
    }
    rows = [f"| `{n}` | {e.text} | {where[e.where]} |" for n, e in EFFECTS.items()]
    return "\n".join(["| variable | what it does | matters |", "|---|---|---|", *rows])


def main() -> int:
    """Write or check; exit 1 if `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if out of date")
    check = parser.parse_args().check
    text = PAGE.read_text(encoding="utf-8")
    wanted = page(text)
    if wanted == text:
        return 0
    if not check:
        PAGE.write_text(wanted, encoding="utf-8")
    print(f"{PAGE.name} {'is out of date' if check else 'written'}")
    return 1 if check else 0


if __name__ == "__main__":
    raise SystemExit(main())
