"""Feed malformed files to the commands that read them, and count what the commands make of them.

    python scripts/malformed_inputs.py [--cases 1000] [--seed 0] [--only KIND] [--keep FOLDER]

Each case is a valid input with one file damaged. The command runs in a forked child. Outcomes:

    refused      a clear line and an exit code of gpurun
    named        exit code 0, and a line about the damage
    accepted     exit code 0 without such a line: the damaged file still holds a valid document
    nonsense     as accepted, but the file cannot hold one: it is cut off, empty, no text, a folder
    traceback, internal error, hang, died    faults

Exits with 1 if there was a fault or nonsense. `--keep` saves the folders of such cases.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tomllib

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gpurun.cli import main  # noqa: E402
from scripts import malformed_mutations  # noqa: E402
from scripts.valid_inputs import ValidInput, valid_inputs  # noqa: E402

HANG_SECONDS = 60
MEMORY_BYTES = 8 << 30
FAULTS = ("traceback", "internal error", "hang", "died", "nonsense", "no clear line")
NAMES_DAMAGE = re.compile(
    r"left out|unreadable|torn|incomplete|cannot|damaged|shape|gone|no record|no process"
    r"|ends in|is no|not a"
)
IMPORTED = (
    "gpurun.commands.bench.bench_command", "gpurun.commands.bench.history_command",
    "gpurun.commands.diagnose", "gpurun.commands.monitor_command", "gpurun.commands.report_command",
    "gpurun.commands.run", "gpurun.report.page.html_page", "gpurun.report.page.run_page",
    "gpurun.report.findings_text", "gpurun.report.history_text", "numpy", "rich.console",
    "gpurun.bench.store.benchmark_store", "gpurun.profilers", "gpurun.commands.saved_settings",
)  # fmt: skip
"""Loaded before children are forked: each of them saves a second."""


@dataclass(frozen=True)
class Case:
    """One damaged input. `damage`: the name of the mutation."""

    number: int
    valid: ValidInput
    damage: str
    outcome: str
    code: int | None
    output: str


def cases(
    root: Path, count: int, seed: int, only: str = "", keep: Path | None = None
) -> Iterator[Case]:
    """Damage and feed `count` inputs, each kind of input and of damage in turn."""
    for name in IMPORTED:
        importlib.import_module(name)
    made = valid_inputs(root / "valid", root / "case")
    valid = [one for one in made if only in f"{one.kind} {one.target}"]
    draws = random.Random(seed)
    usual = {one: set(_usual(root / "case", one).splitlines()) for one in valid}
    for number in range(count):
        one = valid[number % len(valid)]
        folder = malformed_mutations.copied(one.folder, root / "case")
        target = folder / one.target
        ways = malformed_mutations.mutations(target)
        mutate = ways[(number // len(valid) + number % len(valid)) % len(ways)]
        mutate(target, draws)
        case = _fed(number, one, mutate.__name__, folder, usual[one])
        if keep is not None and case.outcome in FAULTS:
            shutil.copytree(folder, keep / str(number), symlinks=True, dirs_exist_ok=True)
            (keep / str(number) / "output.txt").write_text(case.output)
        yield case
        shutil.rmtree(folder)


def _usual(place: Path, valid: ValidInput) -> str:
    """What the command prints of the input before it is damaged."""
    code, output = in_a_child(valid.command, malformed_mutations.copied(valid.folder, place))
    shutil.rmtree(place)
    if code != 0:
        raise AssertionError(f"{valid}: {code}: {output}")
    return output


def _fed(number: int, valid: ValidInput, damage: str, folder: Path, usual: set[str]) -> Case:
    code, output = in_a_child(valid.command, folder)
    unreadable = not valid.live and not _holds_a_document(folder / valid.target)
    news = "\n".join(line for line in output.splitlines() if line not in usual)
    outcome = judged(code, output, news, unreadable)
    return Case(number, valid, damage, outcome, code, output)


def in_a_child(command: Sequence[str], folder: Path) -> tuple[int | None, str]:
    """The exit code (None: it hung; negative: a signal) and all that was printed."""
    log = folder / "output.txt"
    child = os.fork()
    if child == 0:
        _become_gpurun(command, folder, log)
    deadline = time.monotonic() + HANG_SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.002)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    output = log.read_text(errors="replace")
    log.unlink()
    return os.waitstatus_to_exitcode(ended[1]) if ended[0] else None, output


def _become_gpurun(command: Sequence[str], folder: Path, log: Path) -> None:
    code = 99
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os.chdir(folder)
        os.environ.pop("GPURUN_HOME", None)
        tempfile.tempdir = os.fspath(folder)  # for the details of internal errors
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
        code = main(list(command))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def judged(code: int | None, output: str, news: str, unreadable: bool) -> str:
    """The outcome of a case. `news`: lines that the command does not print of the valid input.
    `unreadable`: the damaged file cannot be a document of its kind."""
    lines = output.strip().splitlines()
    if code is None:
        return "hang"
    if code < 0:
        return "died"
    if "internal error" in output or code == 70:
        return "internal error"
    if "Traceback" in output or code == 99:
        return "traceback"
    if not lines or not lines[-1].startswith("verdict="):
        return "no clear line"
    if code != 0:
        return "refused" if "gpurun: " in output else "no clear line"
    if NAMES_DAMAGE.search(news):
        return "named"
    return "nonsense" if unreadable else "accepted"


def _holds_a_document(path: Path) -> bool:
    """The file is absent, or still text of its form; tables are not judged by this."""
    if not path.exists() or (path.name == "pyproject.toml" and _not_ours(path)):
        return path.name != "gpurun.toml"
    try:
        if path.suffix in (".sqlite", ".db"):
            return path.read_bytes()[:15] == b"SQLite format 3"
        if "kineto" in path.name or path.suffix == ".csv":  # names of kernels may hold any bytes
            text = path.read_text(encoding="utf-8-sig", errors="replace")
            return bool(json.loads(text, strict=False) if path.suffix == ".json" else text)
        # a byte order mark is no damage in these
        marked = path.suffix in (".json", ".jsonl") or path.name == "settings.toml"
        text = path.read_text(encoding="utf-8-sig" if marked else "utf-8")
        if path.suffix == ".toml":
            tomllib.loads(text)
        elif path.suffix == ".json":
            json.loads(text, parse_constant=_no_json)
        elif path.suffix == ".jsonl":
            for line in filter(str.strip, text.split("\n")):
                json.loads(line)
    except (OSError, ValueError, RecursionError):
        return False
    return bool(text.strip()) or path.suffix in (".toml", ".jsonl")


def _not_ours(path: Path) -> bool:
    try:
        return b"[tool.gpurun" not in path.read_bytes()
    except OSError:
        return True


def _no_json(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _told(case: Case) -> str:
    said = " | ".join(case.output.strip().splitlines()[-4:])
    words = " ".join(case.valid.command)
    return f"{case.number}: {case.valid.kind}, {case.damage}: {words}: {case.code} {said[:600]}"


def run() -> int:
    """Feed them all, print the table; 1 where a case is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of the kind or the file's name")
    parser.add_argument("--keep", type=Path, help="a folder for the inputs of faults")
    parser.add_argument("--show", default="", help="print cases of this outcome, too")
    asked = parser.parse_args()
    outcomes: Counter[str] = Counter()
    table: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        for case in cases(Path(name), asked.cases, asked.seed, asked.only, asked.keep):
            outcomes[case.outcome] += 1
            table.setdefault(case.valid.kind, Counter())[case.outcome] += 1
            if case.outcome in FAULTS or case.outcome == asked.show:
                print(f"{case.outcome}: {_told(case)}", flush=True)
    for kind, counts in table.items():
        print(f"{kind:22} {dict(counts)}")
    print(f"{asked.cases} malformed inputs: {dict(outcomes)}")
    return int(any(outcomes[fault] for fault in FAULTS))


if __name__ == "__main__":
    sys.exit(run())
