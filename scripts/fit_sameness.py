"""Record launches of sound and falsifying changes, and fit the table of sameness to them.

    python scripts/fit_sameness.py record FOLDER     launch all cases that FOLDER lacks
    python scripts/fit_sameness.py fit FOLDER        judge them, print the margin of each row
    python scripts/fit_sameness.py show FOLDER CASE  the table of distances of a case

The cases are those of `guard_cases.py` and `guard_bar.py`. Each script is launched three times
under one seed, under two other seeds, and twice with nothing but rounding; each case once. Of each
row `fit` prints the largest scaled distance of a sound change (it must stay below 1) and the least
one by which a falsifying change is caught (the larger the safer), with their cases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.measure.run_events import read_run
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.same.named_distance import REPEATS, ROUNDING, SEEDS
from gpurun.same.sameness_table import TABLE
from gpurun.same.verdict import Sameness, judge
from scripts.guard_bar import bar
from scripts.guard_cases import BROKEN, COMPILED, DEVICE, SOUND, Case

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
        return [audit for audit in (*plain, *rounded) if audit is not None]

    def judged(self) -> Iterator[tuple[Case, Sameness]]:
        """Each recorded case as a tuning judges it: with what its verdict asks for, and no more."""
        for case in self.cases:
            found = _read(self.folder / place_of(case), 0)
            if found is not None and self.baselines:
                yield case, as_tuned(self.baselines, found, case)

    def _read(self, name: str, seed: int, rounded: bool = False) -> LaunchAudit | None:
        return _read(self.folder / f"{self.script}--{name}", seed, rounded)


def as_tuned(baselines: Sequence[LaunchAudit], candidate: LaunchAudit, case: Case) -> Sameness:
    """Judge with two repeats of a seed, then with the launches that the verdict asks for."""
    repeats = [b for b in baselines if b.seed == 0 and not b.rounded]
    known = repeats[:2]
    further = {
        REPEATS: repeats[2:],
        ROUNDING: [b for b in baselines if b.rounded],
        SEEDS: [b for b in baselines if b.seed],
    }
    while True:
        verdict = judge(known, [candidate], case.effect)
        asked = [one for name in sorted(verdict.missing) for one in further.pop(name, [])]
        if not asked:
            return verdict
        known += asked


def _read(folder: Path, seed: int, rounded: bool = False) -> LaunchAudit | None:
    if not (folder / DONE).exists():
        return None
    logs = read_run(folder).processes
    return audit_of(logs[0], seed, rounded) if logs else None


def place_of(case: Case) -> str:
    """The folder of a case's launch."""
    return re.sub(r"[^\w]+", "-", case.name) + f"--{'broken' if case.broken else 'sound'}-0"


def recorded(folder: Path, compiled: bool = True) -> list[Recorded]:
    """By script."""
    cases = all_cases(compiled)
    return [
        Recorded(folder, script, [c for c in cases if c.script == script])
        for script in sorted({c.script for c in cases})
    ]


# -- recording -------------------------------------------------------------------------------------


def record(folder: Path, compiled: bool) -> None:
    """Launch what is not recorded yet, as many at a time as there are cores."""
    import torch
    import torch._dynamo

    from gpurun.measure.machine import available_cores
    from scripts.guard_error_rates import Launch, start

    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    wanted: list[Launch] = []
    for one in recorded(folder, compiled):
        stem = f"{one.script}--"
        wanted += [
            Launch(one.script, (), seed, folder / f"{stem}plain-{n}")
            for n, seed in enumerate(PLAIN)
        ]
        wanted += [
            Launch(one.script, (), 0, folder / f"{stem}rounded-{d}", rounded=True, draw=d)
            for d in ROUNDED
        ]
        wanted += [Launch(one.script, c.settings, 0, folder / place_of(c)) for c in one.cases]
    running: dict[int, Path] = {}
    for launch in wanted:
        if (launch.folder / DONE).exists():
            continue
        shutil.rmtree(launch.folder, ignore_errors=True)
        while len(running) >= available_cores():
            _reap(running)
        running[start(launch)] = launch.folder
    while running:
        _reap(running)


def _reap(running: dict[int, Path]) -> None:
    process, status = os.wait()
    folder = running.pop(process)
    (folder / DONE).write_text(str(status))
    print(f"{folder.name}: {status}", file=sys.stderr, flush=True)


# -- fitting ---------------------------------------------------------------------------------------


def fit(folder: Path) -> int:
    """Print every wrong verdict, then each row's margins; 1 if a verdict is wrong."""
    found = [pair for one in recorded(folder) for pair in one.judged()]
    wrong = [(case, verdict) for case, verdict in found if verdict.same is case.broken]
    for case, verdict in wrong:
        word = "kept" if verdict.same else "rejected"
        print(f"! {case.name:55} {word:8} {'; '.join(verdict.reasons)[:300]}")
        for row in verdict.table[:3] if verdict.same else ():
            print(f"      {row.scaled:8.2f}  {row.name}: {row.reason[:100]}")
    print(f"{'row':22} {'sound, at most':>14}   case; place {'':40} caught alone, at least")
    for kind in TABLE:
        sound = [
            (row.scaled, f"{case.name}; {row.name.place}")
            for case, verdict in found
            if not case.broken
            for row in verdict.table
            if row.name.kind is kind and row.compared
        ]
        caught = [
            (max(row.scaled for row in rows), case.name)
            for case, verdict in found
            if case.broken
            and (rows := [row for row in verdict.table if row.scaled > 1 and row.compared])
            and {row.name.kind for row in rows} == {kind}
        ]
        most, least = max(sound, default=(0.0, "")), min(caught, default=(0.0, ""))
        print(f"{kind.value:22} {most[0]:14.2f}   {most[1][:54]:54} {least[0]:8.2f}   {least[1]}")
    broken = [verdict for case, verdict in found if case.broken]
    sound_ones = [verdict for case, verdict in found if not case.broken]
    print(
        f"falsifying rejected {sum(not v.same for v in broken)} of {len(broken)}, "
        f"sound rejected {sum(not v.same for v in sound_ones)} of {len(sound_ones)}"
    )
    return 1 if wrong else 0


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
    parser.add_argument("--compile", action="store_true", help="record compiled models too")
    options = parser.parse_args()
    if options.what == "record":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        record(options.folder, options.compile)
        return 0
    return fit(options.folder) if options.what == "fit" else show(options.folder, options.case)


if __name__ == "__main__":
    sys.exit(main())
