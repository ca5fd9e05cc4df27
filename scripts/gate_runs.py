"""Commands in planted repositories that were run for real: kept in a file, and counted.

Each outcome is appended to a file of the work folder at once. If the script is interrupted or
killed, its command ends with it, and the same call goes on with the first outcome that is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType

from gpurun.launch.process import die_with_parent
from scripts.disturbance import burning
from scripts.planted_slowdown import BODIES, git, make_repository
from scripts.simulate_pairs import wilson

REPOSITORY = Path(__file__).resolve().parents[1]
ENDLESS = "1000000000"
"""Training steps: gpurun ends a launch itself."""
IN_TURN = """
import sys
from gpurun.bench.benchmark_launcher import Launcher
from gpurun.cli import main
Launcher.obstacle = lambda self, first: "asked for"
sys.exit(main(sys.argv[1:]))
"""
"""gpurun with launches in turn, for which its command line has no flag."""
LIMIT_SECONDS = 3600.0
"""A command that takes longer is given up, and has failed."""
CODES = {0: "pass", 1: "regression", 3: "inconclusive"}

Tool = Callable[[Path, int], tuple[str, int | None]]
"""Compares HEAD of a repository with its first commit, so many steps: the verdict and the pairs."""


@dataclass(frozen=True)
class GateRun:
    """One comparison. `verdict`: "pass", "regression", "inconclusive" or "failed".

    `pairs` is None where the tool has none. `load`: the machine's average of the last minute, taken
    at the end: its own work is in it.
    """

    tool: str
    body: str
    planted: bool
    verdict: str
    pairs: int | None
    seconds: float
    load: float

    @property
    def told(self) -> str:
        """It in a line."""
        tree = "a slower tree" if self.planted else "an equal tree"
        pairs = "" if self.pairs is None else f" after {self.pairs} pairs"
        how = f"{self.verdict}{pairs}, {self.seconds:.0f} s, load {self.load:.1f}"
        return f"{self.tool}, {self.body}, {tree}: {how}"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The flags of both scripts."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--equal", type=int, default=10, help="comparisons of equal trees")
    parser.add_argument("--planted", type=int, default=10, help="of slower trees")
    parser.add_argument("--body", choices=sorted(BODIES), default="compute")
    parser.add_argument("--steps", type=int, help="training steps that peers call a function")
    parser.add_argument(
        "--disturbed", action="store_true", help="beside a process that burns a core now and then"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first disturbance")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of scratch repositories and results"
    )
    return parser


def compare_all(
    options: argparse.Namespace,
    tools: dict[str, Tool],
    files: Mapping[str, str] = MappingProxyType({}),
    prepare: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Run what is still to be run, each result appended at once; then print the table.

    Called again with the same `--work`, it goes on where it was. `files`: what the repositories
    hold besides; `prepare`: what is done once in a new one, outside of all times.
    """
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    kept = work / f"{options.body}.jsonl"
    kept = kept.with_stem(f"{kept.stem}-disturbed") if options.disturbed else kept
    body = BODIES[options.body]
    for number in range(max(options.equal, options.planted)):
        for planted, wanted in ((False, options.equal), (True, options.planted)):
            if number >= wanted:
                continue
            folder = work / f"{options.body}-{'planted' if planted else 'equal'}"
            ready = folder.with_suffix(".ready")
            if not ready.exists():
                shutil.rmtree(folder, ignore_errors=True)
                make_repository(folder, body, planted, files)
                prepare(folder)
                ready.touch()
            for name, tool in tools.items():
                done = [r for r in read(kept) if (r.tool, r.planted) == (name, planted)]
                if len(done) > number:
                    continue
                git(folder, "checkout", "-q", "main")  # a killed call may have left another
                with burning(options.disturbed, seed=options.seed + number):
                    started = time.monotonic()
                    verdict, pairs = tool(folder, options.steps or body.steps)
                    seconds = time.monotonic() - started
                run = GateRun(
                    name, options.body, planted, verdict, pairs, seconds, os.getloadavg()[0]
                )
                keep(kept, asdict(run))
                print(run.told, flush=True)
    print("", *(run.told for run in read(kept)), "", table(read(kept), tools), sep="\n")


def keep(kept: Path, document: Mapping[str, object]) -> None:
    """Append it, in one write."""
    with kept.open("a") as file:
        file.write(json.dumps(document) + "\n")


def read(kept: Path) -> list[GateRun]:
    """The runs of a file, none where there is no file."""
    lines = kept.read_text().splitlines() if kept.exists() else []
    return [GateRun(**json.loads(line)) for line in lines]


def compare_by_gpurun(folder: Path, steps: int) -> tuple[str, int | None]:
    """`gpurun bench --compare`, with its thresholds and numbers of pairs as they are."""
    return _compare(folder, ["-m", "gpurun"])


def compare_in_turn(folder: Path, steps: int) -> tuple[str, int | None]:
    """The same with launches in turn, as it is done where live pairs cannot be."""
    return _compare(folder, ["-c", IN_TURN])


def _compare(folder: Path, gpurun: list[str]) -> tuple[str, int | None]:
    words = [*gpurun, "bench", "--compare", "main", "--quiet", "--json", "-", "train.py", ENDLESS]
    shutil.rmtree(folder / ".gpurun", ignore_errors=True)
    done = gpurun_in(folder, words)
    verdict = CODES.get(done.returncode, "failed")
    if verdict == "failed":
        print(done.stderr, file=sys.stderr)
        return verdict, None
    return verdict, json.loads(done.stdout)["pairs"]


def gpurun_in(
    folder: Path, words: Sequence[str], seconds: float = LIMIT_SECONDS
) -> subprocess.CompletedProcess[str]:
    """A command of this gpurun in a folder, which is given up after so long; the kernel ends it
    with this process."""
    try:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            timeout=seconds,
            preexec_fn=partial(die_with_parent, os.getpid()),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(words, 124, "", f"given up: {late}")


# -- what came of it -------------------------------------------------------------------------------


def table(runs: Sequence[GateRun], tools: Iterable[str]) -> str:
    """A row for each tool; rates with their 95 % intervals."""
    loads = [run.load for run in runs]
    between = f"{min(loads):.1f} to {max(loads):.1f}" if loads else "unknown"
    lines = [
        f"{os.cpu_count()} cores, load {between}",
        "| tool | equal: passed | called slower | undecided | slower: found | passed | undecided "
        "| failed | pairs | median s, equal | median s, slower |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for tool in tools:
        own = [run for run in runs if run.tool == tool]
        equal = [run for run in own if not run.planted]
        slower = [run for run in own if run.planted]
        cells = [
            *(_rate(equal, verdict) for verdict in ("pass", "regression", "inconclusive")),
            *(_rate(slower, verdict) for verdict in ("regression", "pass", "inconclusive")),
            str(sum(run.verdict == "failed" for run in own)),
            _mean([run.pairs for run in own]),
            _median([run.seconds for run in equal]),
            _median([run.seconds for run in slower]),
        ]
        lines.append(f"| {tool} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rate(runs: Sequence[GateRun], verdict: str) -> str:
    return rate([run.verdict == verdict for run in runs])


def rate(right: Sequence[bool]) -> str:
    """How many of them are true, with the 95 % interval of the proportion (Wilson)."""
    if not right:
        return ""
    low, high = wilson(sum(right), len(right))
    return f"{sum(right)}/{len(right)} ({100 * low:.0f}–{100 * high:.0f} %)"


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.1f}" if known else ""


def _median(values: Sequence[float]) -> str:
    return f"{median(values):.0f} ({min(values):.0f}–{max(values):.0f})" if values else ""
