"""The guide names what is there: knobs, flags, files, and the columns that the benchmark prints."""

from __future__ import annotations

import re

from gpurun.arguments.main_flags import MAIN
from gpurun.arguments.subcommand_flags import BLAME_HELP, EJECT_HELP
from gpurun.knobs import all_knobs
from scripts.bench_speedup import WORKLOADS
from scripts.speedup_table import COLUMNS
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
GUIDE = (DOCS / "OPTIMIZATION_GUIDE.md").read_text()
BENCH = (REPOSITORY / "scripts" / "bench_speedup.py").read_text()


def rows(title: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its rule."""
    lines = GUIDE.split(f" {title}\n")[1].split("\n#")[0].splitlines()
    table = [line for line in lines if line.startswith("|") and set(line) - set("| -")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_it_names_every_knob_and_no_other() -> None:
    names = {knob.name for knob in all_knobs()}
    named = {
        word
        for row in rows("The knobs, and when each pays")[1:]
        for word in re.findall(r"`(\w+)`", row[0])
    }
    advised = {
        word
        for row in rows("Where does a step spend its time?")[1:]
        for word in re.findall(r"`(\w+)`", row[2])
    }
    assert named == names
    assert advised <= names


def test_every_flag_that_it_types_is_gpuruns_or_the_benchmarks() -> None:
    flags = {**MAIN, **BLAME_HELP, **EJECT_HELP}.values()
    known = {f"--{flag.name}" for flag in flags if flag.help}
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    commands = [line for kind, text in blocks if not kind for line in text.splitlines()]
    assert len(commands) > 8
    for command in commands:
        ours = command.partition(" train.py")[0]  # what follows the script is the script's own
        typed = set(re.findall(r"(--[a-z][a-z-]*)", ours))
        assert [flag for flag in typed - known if f'"{flag}"' not in BENCH] == [], command


def test_every_file_that_it_links_is_there() -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", GUIDE)]
    assert links
    assert [link for link in links if not (DOCS / link).exists()] == []


def test_the_table_of_gpu_figures_is_one_that_the_benchmark_prints() -> None:
    heading, *body = rows("On a GPU, against a script tuned by hand")
    assert tuple(heading) == COLUMNS
    assert [row[0] for row in body] == [workload.name for workload in WORKLOADS]
