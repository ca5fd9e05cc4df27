"""Record launches of sound and falsifying changes, and fit the table of sameness to them.

    python scripts/fit_sameness.py record FOLDER     launch all cases that FOLDER lacks, again after
        [--jobs N] [--only TEXT]                     an interruption; N launches at a time; only
                                                     cases with TEXT in their name
    python scripts/fit_sameness.py fit FOLDER        judge them, print the range of each row
    python scripts/fit_sameness.py show FOLDER CASE  the table of distances of a case

The cases are those of `guard_cases.py` and `guard_bar.py`. Each script is launched three times
under one seed, under two other seeds, twice with nothing but rounding, and without dropout; each
case once, and without dropout if it rounds.

A launch that fails is named at the end, and the next `record` tries it again.

Of each row `fit` prints the range in which its least value must lie: from the largest distance of a
sound change that no floor explains, to the least one by which alone a falsifying change is caught.
It prints the geometric middle of both, and "!" where the table's value lies outside. What a GPU has
shown stands in the table's comments.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.knobs.api import Effect
from gpurun.measure.machine import available_cores
from gpurun.measure.run_events import read_run
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.same.measured_distance import REPEATS, ROUNDING, SEEDS, STILL
from gpurun.same.sameness_table import Kind
from gpurun.same.verdict import Sameness, judge
from scripts.guard_bar import bar
from scripts.guard_cases import BROKEN, COMPILED, DEVICE, SOUND, Case
from scripts.guard_error_rates import STILL_STOP, Launch, launched_audit, start

PLAIN = (0, 0, 0, 1, 2)
"""Seeds of the launches of a script as it is."""
ROUNDED = (0, 1)
"""Draws of the launches that only round."""
DONE = "done"


def all_cases(compiled: bool) -> list[Case]:
    """Every case that works without a GPU; what compiles only on request, for it takes minutes."""
    cases = dict.fromkeys((*SOUND, *BROKEN, *bar(gpu=False), *DEVICE, *COMPILED))
    slow = ("compile", "attention")
    return [c for c in cases if compiled or not {knob for knob, _ in c.settings} & set(slow)]


@dataclass(frozen=True)
class Recorded:
    """What FOLDER holds of one script: its launches as it is, and its cases."""

    folder: Path
    script: str
    cases: Sequence[Case]

    @cached_property
    def baselines(self) -> list[LaunchAudit]:
        """Plain launches, then those that only round."""
        plain = [self._read(f"plain-{n}", seed) for n, seed in enumerate(PLAIN)]
        rounded = [self._read(f"rounded-{draw}", 0, rounded=True) for draw in ROUNDED]
        still = [
            self._read("still", 0, still=True),
            self._read("still-rounded", 0, rounded=True, still=True),
        ]
        return [audit for audit in (*plain, *rounded, *still) if audit is not None]

    def judged(self) -> Iterator[tuple[Case, Sameness]]:
        """Each recorded case as a tuning judges it: with what its verdict asks for, and no more."""
        for case in self.cases:
            place = self.folder / place_of(case)
            shown = [_read(place, 0), _read(still_of(place), 0, still=True)]
            found = [audit for audit in shown if audit is not None]
            if found and self.baselines:
                yield case, as_tuned(self.baselines, found, case)

    def _read(
        self, name: str, seed: int, *, rounded: bool = False, still: bool = False
    ) -> LaunchAudit | None:
        place = self.folder / f"{self.script}--{name}"
        return _read(place, seed, rounded=rounded, still=still)


def as_tuned(
    baselines: Sequence[LaunchAudit], candidates: Sequence[LaunchAudit], case: Case
) -> Sameness:
    """Judge with two repeats of a seed, then with the launches that the verdict asks for."""
    repeats = [b for b in baselines if b.seed == 0 and not b.rounded and not b.still]
    known, shown = repeats[:2], list(candidates[:1])
    further = {
        REPEATS: repeats[2:],
        ROUNDING: [b for b in baselines if b.rounded and not b.still],
        SEEDS: [b for b in baselines if b.seed],
        STILL: [b for b in baselines if b.still and not b.rounded],
    }
    while True:
        verdict = judge(known, shown, case.effect)
        asked = [one for name in sorted(verdict.missing) for one in further.pop(name, [])]
        if STILL in verdict.missing and asked:
            shown += candidates[1:]
            of_still = [b for b in baselines if b.still and b.rounded]
            further[ROUNDING] = [*further.get(ROUNDING, []), *of_still]
        if not asked:
            return verdict
        known += asked


def _read(
    folder: Path, seed: int, *, rounded: bool = False, still: bool = False
) -> LaunchAudit | None:
    if not (folder / DONE).exists():
        return None
    logs = read_run(folder).processes
    return audit_of(logs[0], seed, rounded, still) if logs else None


def place_of(case: Case) -> str:
    """The folder of a case's launch."""
    return re.sub(r"[^\w]+", "-", case.name) + f"--{'broken' if case.broken else 'sound'}-0"


def still_of(place: Path) -> Path:
    """The folder of its launch without dropout."""
    return place.with_name(f"{place.name}--still")


def recorded(folder: Path, compiled: bool = True, only: str = "") -> list[Recorded]:
    """By script: the cases with `only` in their name."""
    cases = [case for case in all_cases(compiled) if only in case.name]
    return [
        Recorded(folder, script, [c for c in cases if c.script == script])
        for script in sorted({c.script for c in cases})
    ]


# -- recording -------------------------------------------------------------------------------------


def record(folder: Path, wanted: Sequence[Recorded], jobs: int) -> int:
    """Launch what is not recorded yet, `jobs` at a time; 1 if launches failed."""
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    launches = {one.folder: one for script in wanted for one in _launches(folder, script)}
    missing = [one for one in launches.values() if not (one.folder / DONE).exists()]
    running: dict[int, Launch] = {}
    failed: list[str] = []
    try:
        while missing or running:
            while missing and len(running) < jobs:
                launch = missing.pop(0)
                shutil.rmtree(launch.folder, ignore_errors=True)
                running[start(launch)] = launch
            launch = running.pop(os.wait()[0])
            why = _failure(launch)
            failed += [] if why is None else [f"{launch.folder.name}: {why}"]
            print(f"{launch.folder.name}: {why or DONE}", file=sys.stderr, flush=True)
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
    for line in failed:
        print(f"failed: {line}")
    return 1 if failed else 0


def _launches(folder: Path, of: Recorded) -> Iterator[Launch]:
    plain = Launch(of.script, (), 0, folder / f"{of.script}--still", still=True, stop=STILL_STOP)
    yield plain
    yield replace(plain, folder=folder / f"{of.script}--still-rounded", rounded=True)
    for number, seed in enumerate(PLAIN):
        yield Launch(of.script, (), seed, folder / f"{of.script}--plain-{number}")
    for draw in ROUNDED:
        place = folder / f"{of.script}--rounded-{draw}"
        yield Launch(of.script, (), 0, place, rounded=True, draw=draw)
    for case in of.cases:
        launch = Launch(of.script, case.settings, 0, folder / place_of(case))
        yield launch
        if case.effect is Effect.NUMERICS:
            place = still_of(launch.folder)
            yield replace(launch, folder=place, still=True, stop=STILL_STOP)


def _failure(launch: Launch) -> str | None:
    """Why an ended launch shows nothing; else it is marked as done."""
    try:
        launched_audit(launch)
    except Exception as error:  # whatever a script left behind must not end the others
        return f"{type(error).__name__}: {error}".strip().splitlines()[-1]
    (launch.folder / DONE).touch()
    return None


# -- fitting ---------------------------------------------------------------------------------------


def fit(folder: Path) -> int:
    """Print every wrong verdict, then each row's range; 1 if a verdict or a row is wrong."""
    found = [pair for one in recorded(folder) for pair in one.judged()]
    wrong = [(case, verdict) for case, verdict in found if verdict.same is case.broken]
    for case, verdict in wrong:
        word = "kept" if verdict.same else "rejected"
        print(f"! {case.name:55} {word:8} {'; '.join(verdict.reasons)[:300]}")
        for row in verdict.table[:3] if verdict.same else ():
            print(f"      {row.scaled:8.2f}  {row.name}: {row.reason[:100]}")
    print(f"  {'row':22} {'at least':>9} {'table':>7} {'at most':>9} {'middle':>7}   cases")
    outside = [kind for kind in Kind if kind.value.least and not _print_range(kind, found)]
    broken = [verdict for case, verdict in found if case.broken]
    sound_ones = [verdict for case, verdict in found if not case.broken]
    print(
        f"falsifying rejected {sum(not v.same for v in broken)} of {len(broken)}, "
        f"sound rejected {sum(not v.same for v in sound_ones)} of {len(sound_ones)}"
    )
    return 1 if wrong or outside else 0


def _print_range(kind: Kind, found: Sequence[tuple[Case, Sameness]]) -> bool:
    """True if the table's least value lies between what sound changes need and broken ones show."""
    needed, shown = (0.0, ""), (math.inf, "")
    for case, verdict in found:
        rows = [row for row in verdict.table if row.name.kind is kind and row.compared]
        if not case.broken:
            unexplained = [r for r in rows if r.distance.size > r.noise]
            sizes = [(row.distance.size, case.name) for row in unexplained]
            needed = max([needed, *sizes])
        elif verdict.failing == {kind}:
            shown = min(shown, (max(r.distance.size for r in rows if r.fails), case.name))
    least = kind.value.least
    right = needed[0] <= least < shown[0]
    middle = math.sqrt(needed[0] * shown[0]) if needed[0] and shown[1] else math.nan
    print(
        f"{' ' if right else '!'} {kind.value.label:22} {needed[0]:9.3g} {least:7.3g} "
        f"{shown[0]:9.3g} {middle:7.3g}   {needed[1][:40]}; {shown[1][:40]}"
    )
    return right


def show(folder: Path, part: str) -> int:
    """Print the table of distances of each case with `part` in its name."""
    for one in recorded(folder):
        for case, verdict in one.judged():
            if part not in case.name:
                continue
            print(f"{case.name}: {'same' if verdict.same else verdict.reasons}")
            for row in verdict.table[:25]:
                floor = "" if row.floor is None else f"{row.floor.value:.3g} {row.floor.source}"
                print(
                    f"  {row.scaled:8.2f}  {row.distance.size:9.3g} / {row.bound:7.3g} "
                    f"({floor:20}) {row.name}: {row.distance.said[:70]}"
                )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit the table of sameness.")
    parser.add_argument("what", choices=("record", "fit", "show"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("case", nargs="?", default="")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="launches at a time")
    parser.add_argument("--only", default="", help="record cases with this text in their name")
    parser.add_argument("--compile", action="store_true", help="record compiled models too")
    options = parser.parse_args()
    if options.what == "record":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        wanted = recorded(options.folder, options.compile, options.only)
        return record(options.folder, wanted, options.jobs)
    return fit(options.folder) if options.what == "fit" else show(options.folder, options.case)


if __name__ == "__main__":
    sys.exit(main())
