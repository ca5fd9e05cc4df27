"""Plant broken trainings and sound changes, and count what the loss guard rejects.

    python scripts/guard_error_rates.py [--repeats 5] [--only NAME] [--compile]
    python scripts/guard_error_rates.py --device cuda [--repeats 2]
    python scripts/guard_error_rates.py --bar [--device cuda]

The plants and sound changes are those of `guard_cases.py`, in real training scripts; with
`--device` those whose place is a GPU (`cpu` plants the same mistakes without one). As in a tuning,
a candidate is judged twice: one trial against two of the baseline under one seed (screening), then
trials of several seeds against the baseline's. It is rejected if either rejects it. A broken
training must always be, a sound change never. With `--bar` the cases are those of `guard_bar.py`,
half of them on scripts that only infer. Changes of rounding in scripts whose model draws random
numbers are launched once more without dropout, as a tuning does before its last verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.knobs.api import Effect
from gpurun.measure.machine import available_cores
from gpurun.measure.run_events import read_run
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.rundir import write_json
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.tuner.training_judge import (
    MOST_DRAWS,
    AuditLaunches,
    TrainingJudge,
    audited_alone,
    rounding_rule,
)
from scripts.guard_bar import bar
from scripts.guard_cases import BROKEN, COMPILED, DATA, DEVICE, GPU, KNOBS, SOUND, Case

STEPS = 64
STOP = StopRule(min_steps=STEPS, min_seconds=0, max_steps=STEPS, warmup_steps=4, audit_steps=8)
STILL_STOP = audited_alone(STOP)
SEEDS = (0, 1, 2)
"""Seed offsets of the baseline's trials; the first is launched twice."""
CANDIDATE_SEEDS = (0, 1)
HUNG_SECONDS = 900


# -- launching -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """One trial to run: a script under settings and a seed offset, recorded in a new folder.

    With `rounded` it rounds as half precision does, its parameters in each `draw` otherwise; with
    `still` dropout is off.
    """

    script: str
    settings: tuple[tuple[str, Any], ...]
    seed: int
    folder: Path
    rounded: bool = False
    draw: int = 0
    still: bool = False
    stop: StopRule = STOP


def run_all(launches: Sequence[Launch]) -> list[LaunchAudit]:
    """Run the trials, each in a process of its own, some at a time.

    The processes are forked from this one, which has imported torch but not used it: starting the
    interpreter and torch, and what torch imports at its first optimizer, would be most of the time.
    """
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
    running: set[int] = set()
    try:
        for one in launches:
            running.add(start(one))
            while len(running) >= available_cores():
                running.discard(os.wait()[0])
        while running:
            running.discard(os.wait()[0])
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
    return [launched_audit(one) for one in launches]


def start(one: Launch) -> int:
    """Launch it; the process id."""
    one.folder.mkdir()
    spec = RunSpec(
        run_dir=str(one.folder),
        launcher_pid=os.getpid(),
        settings=tuple(Setting(k, v) for k, v in one.settings),
        knob_paths=KNOBS,
        trial=TrialSpec(
            stop=one.stop,
            seed=1234,
            seed_offset=one.seed,
            rounded=one.rounded,
            rounding_draw=one.draw,
            still=one.still,
            load_again=not (one.seed or one.rounded or one.still),
        ),
    )
    write_json(one.folder / "spec.json", to_json(spec))
    process = os.fork()
    if process == 0:
        _become(DATA / "guard_scripts" / f"{one.script}.py", one.folder)
    return process


def launched_audit(one: Launch) -> LaunchAudit:
    """What the trial showed; RuntimeError with its output if it or a knob of it failed.

    A trial without dropout ends with its audited steps. A knob that acts in an evaluation after
    them has no outcome there; the case's other trials, which are longer, show that it was applied.
    """
    logs = read_run(one.folder).processes
    output = (one.folder / "output.log").read_text()
    audit = audit_of(logs[0], one.seed, one.rounded, one.still) if logs else None
    if audit is None:
        raise RuntimeError(f"{one} showed nothing:\n{output}")
    hooks = [h.error for log in logs for h in log.hooks]
    told = [k for log in logs for k in log.knobs]
    reached = {k.knob for k in told} if one.still else {k for k, _ in one.settings}
    if hooks or not reached <= {k.knob for k in told if k.outcome == "applied"}:
        raise RuntimeError(f"{one}: {hooks or [log.knobs for log in logs]}\n{output}")
    return audit


def _become(script: Path, folder: Path) -> None:
    """Turn this forked process into the script's, as python's start-up with our hook would."""
    code = 1
    signal.alarm(HUNG_SECONDS)  # a launch that hangs must not stop the others
    try:
        log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = _run(script, folder)
    finally:
        os._exit(code)


def _run(script: Path, folder: Path) -> int:
    import atexit
    import runpy
    import traceback

    from gpurun.launch.launch_command import child_environment
    from gpurun.runtime.boot.activate import activate

    os.environ.update(child_environment(folder / "spec.json", os.environ))
    sys.argv = [str(script)]
    atexit._clear()  # what the parent wants done at its end, such as removing its folder
    try:
        activate(str(folder / "spec.json"))
        runpy.run_path(str(script), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    atexit._run_exitfuncs()
    return 0


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """What the guard said of a case: the reasons of screening and of the proof."""

    case: Case
    screening: tuple[str, ...]
    proof: tuple[str, ...]

    @property
    def rejected(self) -> bool:
        """Whether either rejected it."""
        return bool(self.screening or self.proof)

    @property
    def right(self) -> bool:
        """Whether that is as it should be."""
        return self.rejected is self.case.broken


def judge_cases(
    cases: Sequence[Case], folder: Path, shift: int = 0, quick: bool = False
) -> list[Judged]:
    """Launch the baselines of all scripts once and each case under its seeds; judge all."""
    launches: list[Launch] = []
    for script in sorted({case.script for case in cases}):
        for number, seed in enumerate((SEEDS[0], *SEEDS)):
            launches.append(Launch(script, (), seed + shift, folder / f"{script}-{number}"))
    for number, case in enumerate(cases):
        for seed in CANDIDATE_SEEDS[: 1 if quick and case.broken else None]:
            place = folder / f"case{number}-{seed}"
            launches.append(Launch(case.script, case.settings, seed + shift, place))
    shown = dict(zip(launches, run_all(launches), strict=True))
    rounding = [
        _rounding(one, shown[one], draw)
        for one in launches
        if one.folder.name == f"{one.script}-0"
        for draw in range(MOST_DRAWS)
    ]
    shown |= zip(rounding, run_all(rounding), strict=True)
    still = [one for first, e in list(shown.items()) if e.draws for one in _still(first, cases)]
    shown |= zip(still, run_all(still), strict=True)
    return [
        _judged(
            case,
            [e for one, e in shown.items() if one.script == case.script and not one.settings],
            [e for one, e in shown.items() if one.folder.name.startswith(f"case{number}-")],
        )
        for number, case in enumerate(cases)
    ]


def _still(first: Launch, cases: Sequence[Case]) -> list[Launch]:
    """Of a script's first launch, or a case's: the same without dropout, where a tuning asks."""
    name, _, number = first.folder.name.rpartition("-")
    numerics = any(c.effect is Effect.NUMERICS for c in cases if c.script == first.script)
    if number != "0" or not numerics:
        return []
    place = first.folder.with_name(f"{name}-still")
    plain = replace(first, folder=place, still=True, stop=STILL_STOP)
    if first.settings:
        return [plain]
    return [plain, replace(plain, folder=place.with_name(f"{name}-still-rounded"), rounded=True)]


def _rounding(baseline: Launch, shown: LaunchAudit, draw: int) -> Launch:
    """A trial of a script that only rounds, as a tuning launches it."""
    stop = rounding_rule(STOP, [shown], STEPS)
    place = baseline.folder.with_name(f"{baseline.script}-rounded{draw}")
    return replace(baseline, folder=place, rounded=True, draw=draw, stop=stop)


class Recorded(AuditLaunches):
    """Launches that are over already, of the script as it is and with a case's settings."""

    def __init__(self, baselines: list[LaunchAudit], candidates: list[LaunchAudit]) -> None:
        self._baselines, self._candidates = baselines, candidates

    def repeated(self) -> list[LaunchAudit]:
        return []

    reseeded = repeated

    def rounded(self, known: object, curve_steps: int, draw: int) -> list[LaunchAudit]:
        return [b for b in self._baselines if b.rounded and not b.still][draw : draw + 1]

    def still(self, settings: Mapping[str, Any] | None, rounded: bool = False) -> list[LaunchAudit]:
        of = self._baselines if settings is None else self._candidates
        return [one for one in of if one.still and one.rounded is rounded][:1]


def _judged(case: Case, baselines: list[LaunchAudit], candidates: list[LaunchAudit]) -> Judged:
    """As a tuning does."""
    plain = [b for b in baselines if not b.rounded and not b.still]
    shown = [c for c in candidates if not c.still]
    judge = TrainingJudge(plain[:2], Recorded(baselines, candidates))
    screening = judge.judge(shown[:1], case.effect)
    proof = judge.judge(shown, case.effect, plain[2:], dict(case.settings))
    return Judged(case, screening.reasons, proof.reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description="Error rates of the loss guard.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases with one of these in the name"
    )
    parser.add_argument("--sound", action="store_true", help="sound changes alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="plants of a device instead")
    parser.add_argument("--compile", action="store_true", help="compiled models too (minutes)")
    parser.add_argument(
        "--quick", action="store_true", help="each knob in one script, the broken under one seed"
    )
    parser.add_argument("--bar", action="store_true", help="the bar's cases, once, and a table")
    parser.add_argument("--json", type=Path, help="write the first repeat's judgements here")
    options = parser.parse_args()
    if options.device == "cpu" or (options.bar and not options.device):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.device == "cuda" and not _has_gpu():
        parser.error("--device cuda: there is no GPU")
    cases = [
        case
        for case in _listed(options.device, options.compile, options.bar)
        if any(part in case.name for part in options.only) and not (options.sound and case.broken)
    ]
    if options.quick:
        cases = _one_a_knob(cases)
    options.repeats = 1 if options.bar else options.repeats
    found: dict[str, list[Judged]] = {case.name: [] for case in cases}
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="gpurun-guard-") as folder:
            for judged in judge_cases(cases, Path(folder), 100 * repeat, options.quick):
                found[judged.case.name].append(judged)
        print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr, flush=True)
    if options.json:
        rows = [_row(judged[0]) for judged in found.values()]
        options.json.write_text(json.dumps(rows))
    if options.bar:
        return _report_bar([judged[0] for judged in found.values()])
    return _report(cases, found, options.repeats)


def _listed(device: str | None, compiled: bool, of_bar: bool) -> tuple[Case, ...]:
    if of_bar:
        return bar(gpu=device == "cuda")
    if device is None:
        return (*BROKEN, *SOUND, *(COMPILED if compiled else ()))
    return DEVICE if device == "cpu" else (*GPU, *DEVICE)


def _has_gpu() -> bool:
    """Asked in a child: a process that has called CUDA must not be forked."""
    asked = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    return subprocess.run(asked, check=False).returncode == 0


def _one_a_knob(cases: Sequence[Case]) -> list[Case]:
    """The first script of each knob: what a test has time for."""
    first = {(case.broken, case.settings): case for case in reversed(cases)}
    return [case for case in cases if case in first.values()]


def _row(judged: Judged) -> dict[str, Any]:
    return {
        "name": judged.case.name,
        "knobs": [knob for knob, _ in judged.case.settings],
        "settings": dict(judged.case.settings),
        "broken": judged.case.broken,
        "rejected": judged.rejected,
        "reasons": [*judged.screening, *judged.proof],
    }


def _report(cases: Sequence[Case], found: Mapping[str, list[Judged]], repeats: int) -> int:
    wrong = 0
    for case in cases:
        judged = found[case.name]
        right = sum(j.right for j in judged)
        wrong += repeats - right
        word = "rejected" if case.broken else "accepted"
        reasons = (
            [*judged[0].screening, *judged[0].proof]
            if case.broken
            else [r for j in judged for r in (*j.screening, *j.proof)]
        )
        mark = " " if right == repeats else "!"
        said = "; ".join(dict.fromkeys(reasons))[:150]
        print(f"{mark} {case.name:55} {word} {right}/{repeats}  {said}")
    print(f"{wrong} wrong of {repeats * len(cases)}")
    return 1 if wrong else 0


def _report_bar(found: Sequence[Judged]) -> int:
    """A line for each case, then how many were rejected of either kind."""
    for broken in (True, False):
        for judged in (j for j in found if j.case.broken is broken):
            word = "rejected" if judged.rejected else "kept"
            said = "; ".join(dict.fromkeys([*judged.screening, *judged.proof]))
            print(f"{' ' if judged.right else '!'} {judged.case.name:55} {word:8}  {said[:150]}")
    counts = []
    for broken, word in ((True, "falsifying"), (False, "sound")):
        rejected = [judged.rejected for judged in found if judged.case.broken is broken]
        counts.append(f"{word} rejected {sum(rejected)} of {len(rejected)}")
    print(", ".join(counts))
    return 0 if all(judged.right for judged in found) else 1


if __name__ == "__main__":
    sys.exit(main())
