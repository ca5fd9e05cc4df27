"""Plant broken trainings and sound changes, and count what the loss guard rejects.

    python scripts/guard_error_rates.py [--repeats 5] [--only NAME] [--compile]

Each plant is a knob file of `tests/data/knobs_broken` or `knobs_sound` (or a knob of ours) turned
in a real training script of `tests/data/guard_scripts`. As in a tuning, a candidate is judged
twice: one trial against two of the baseline under one seed (screening), then trials of several
seeds against the baseline's. It is rejected if either rejects it. A broken training must always
be, a sound change never.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.knobs import find
from gpurun.knobs.api import Effect
from gpurun.measure.events import read_run
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec, Setting, StopRule, TrialSpec
from gpurun.rundir import write_json
from gpurun.tuner.evidence import Evidence, evidence
from gpurun.tuner.guard import judge

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
KNOBS = (str(DATA / "knobs_broken"), str(DATA / "knobs_sound"))
STEPS = 64
STOP = StopRule(min_steps=STEPS, min_seconds=0, max_steps=STEPS, warmup_steps=4, audit_steps=8)
SEEDS = (0, 1, 2)
"""Seed offsets of the baseline's trials; the first is launched twice."""
CANDIDATE_SEEDS = (0, 1)


@dataclass(frozen=True)
class Case:
    """One change of one script. `settings`: knob to value."""

    script: str
    settings: tuple[tuple[str, Any], ...]
    broken: bool

    @property
    def name(self) -> str:
        """What a table calls it."""
        changes = [k if v is True else f"{k}={v}" for k, v in self.settings]
        return f"{self.script}: {', '.join(changes)}"

    @property
    def effect(self) -> Effect:
        """The strongest effect that its knobs claim to have."""
        effects = {find(knob, KNOBS).effect for knob, _ in self.settings}
        return Effect.NUMERICS if Effect.NUMERICS in effects else Effect.PIPELINE


def broken(script: str, knob: str, value: Any = True, **more: Any) -> Case:
    return Case(script, ((knob, value), *more.items()), broken=True)


def sound(script: str, knob: str, value: Any = True, **more: Any) -> Case:
    return Case(script, ((knob, value), *more.items()), broken=False)


SCRIPTS = ("images", "records", "averaged", "accumulated", "letters", "adversaries")

BROKEN = (
    broken("images", "half_precision_overflow"),
    broken("averaged", "half_precision_overflow"),
    broken("images", "stale_buffer"),
    broken("averaged", "stale_buffer"),
    broken("records", "stale_buffer"),
    broken("images", "shuffled_labels"),
    broken("averaged", "shuffled_labels"),
    broken("images", "shuffled_images"),
    broken("averaged", "doubled_rate"),
    broken("images", "doubled_rate"),
    broken("letters", "doubled_rate"),
    broken("adversaries", "doubled_updates"),
    broken("letters", "doubled_updates"),
    broken("accumulated", "dropped_gradient"),
    broken("letters", "dropped_gradient"),
    broken("averaged", "frozen_average"),
    broken("accumulated", "wrong_reduction"),
    broken("averaged", "wrong_reduction"),
    broken("images", "skipped_step"),
    broken("letters", "skipped_step"),
    broken("adversaries", "skipped_step"),
    broken("accumulated", "skipped_step"),
    broken("records", "half_data"),
    broken("images", "half_data"),
    broken("averaged", "half_sampler"),
    broken("images", "half_sampler"),
    broken("letters", "sometimes_nan"),
    broken("images", "sometimes_nan"),
    broken("averaged", "sorted_later"),
    broken("images", "sorted_later"),
    broken("images", "no_transforms"),
    broken("averaged", "no_clipping"),
    broken("averaged", "no_decay"),
    broken("images", "frozen_statistics"),
    broken("images", "no_dropout"),
    broken("letters", "no_dropout"),
    broken("accumulated", "no_dropout"),
    broken("averaged", "dropped_batches"),
    broken("images", "rolled_labels"),
    broken("averaged", "rolled_labels"),
    broken("letters", "rolled_labels"),
    broken("records", "shared_handle", 4),
    broken("adversaries", "one_learns"),
    broken("averaged", "other_optimizer"),
    broken("accumulated", "no_zeroing"),
    broken("images", "flat_schedule"),
)

SOUND = (
    sound("images", "loader_workers", 2),
    sound("images", "loader_workers", 4, loader_prefetch=4),
    sound("averaged", "loader_workers", 2, loader_persistent=True),
    sound("accumulated", "loader_workers", 2),
    sound("adversaries", "loader_workers", 2),
    sound("images", "read_ahead"),
    sound("averaged", "read_ahead"),
    sound("records", "read_ahead"),
    sound("averaged", "cpu_threads", 1),
    sound("letters", "cpu_threads", 1),
    sound("adversaries", "fused_optimizer", "fused"),
    sound("averaged", "fused_optimizer", "fused"),
    sound("letters", "fused_optimizer", "foreach"),
    sound("images", "channels_last"),
    sound("images", "low_precision_forward"),
    sound("averaged", "low_precision_forward"),
    sound("accumulated", "low_precision_forward"),
    sound("letters", "low_precision_forward"),
    sound("adversaries", "low_precision_forward"),
    sound("records", "low_precision_forward"),
    sound("images", "other_dropout"),
    sound("letters", "other_dropout"),
    sound("accumulated", "other_dropout"),
    sound("averaged", "matmul_precision", "medium"),
    sound("accumulated", "matmul_precision", "medium"),
    sound("images", "double_loss"),
    sound("letters", "double_loss"),
    sound("averaged", "zeros_kept"),
    sound("letters", "zeros_kept"),
    sound("averaged", "reordered_groups"),
    sound("images", "deterministic"),
    sound("accumulated", "recomputed"),
    sound("images", "loader_workers", 2, low_precision_forward=True),
)

COMPILED = (sound("letters", "compile", "default"), sound("images", "compile", "default"))
"""Seconds to compile, each."""


# -- launching -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """One trial to run: a script under settings and a seed offset, recorded in a new folder."""

    script: str
    settings: tuple[tuple[str, Any], ...]
    seed: int
    folder: Path


def run_all(launches: Sequence[Launch]) -> list[Evidence]:
    """Run the trials, each in a process of its own, some at a time.

    The processes are forked from this one, which has imported torch but not used it: starting the
    interpreter and torch would be most of the time.
    """
    import torch

    torch.set_num_threads(1)
    running: set[int] = set()
    try:
        for one in launches:
            running.add(_start(one))
            while len(running) >= (os.cpu_count() or 1):
                running.discard(os.wait()[0])
        while running:
            running.discard(os.wait()[0])
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)
    return [_shown(one) for one in launches]


def _start(one: Launch) -> int:
    one.folder.mkdir()
    spec = RunSpec(
        run_dir=str(one.folder),
        launcher_pid=os.getpid(),
        settings=tuple(Setting(k, v) for k, v in one.settings),
        knob_paths=KNOBS,
        trial=TrialSpec(stop=STOP, seed=1234, seed_offset=one.seed),
    )
    write_json(one.folder / "spec.json", to_json(spec))
    process = os.fork()
    if process == 0:
        _become(DATA / "guard_scripts" / f"{one.script}.py", one.folder)
    return process


def _shown(one: Launch) -> Evidence:
    """What the trial showed; RuntimeError with its output if it or a knob of it failed."""
    logs = read_run(one.folder).processes
    output = (one.folder / "output.log").read_text()
    shown = evidence(logs[0], one.seed) if logs else None
    if shown is None:
        raise RuntimeError(f"{one} showed nothing:\n{output}")
    hooks = [h.error for log in logs for h in log.hooks]
    applied = {k.knob for log in logs for k in log.knobs if k.outcome == "applied"}
    if hooks or not applied >= {k for k, _ in one.settings}:
        raise RuntimeError(f"{one}: {hooks or [log.knobs for log in logs]}\n{output}")
    return shown


def _become(script: Path, folder: Path) -> None:
    """Turn this forked process into the script's, as python's start-up with our hook would."""
    code = 1
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

    from gpurun.launch.environment import child_environment
    from gpurun.runtime.activate import activate

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
    return [
        _judged(
            case,
            [e for one, e in shown.items() if one.script == case.script and not one.settings],
            [e for one, e in shown.items() if one.folder.name.startswith(f"case{number}-")],
        )
        for number, case in enumerate(cases)
    ]


def _judged(case: Case, baselines: list[Evidence], candidates: list[Evidence]) -> Judged:
    screening = judge(baselines[:2], candidates[:1], case.effect)
    proof = judge(baselines, candidates, case.effect)
    return Judged(case, screening.reasons, proof.reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description="Error rates of the loss guard.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--sound", action="store_true", help="sound changes alone")
    parser.add_argument("--compile", action="store_true", help="compiled models too (minutes)")
    parser.add_argument(
        "--quick", action="store_true", help="each knob in one script, the broken under one seed"
    )
    parser.add_argument("--json", type=Path, help="write the first repeat's judgements here")
    options = parser.parse_args()
    cases = [
        case
        for case in (*BROKEN, *SOUND, *(COMPILED if options.compile else ()))
        if options.only in case.name and not (options.sound and case.broken)
    ]
    if options.quick:
        cases = _one_a_knob(cases)
    found: dict[str, list[Judged]] = {case.name: [] for case in cases}
    for repeat in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="gpurun-guard-") as folder:
            for judged in judge_cases(cases, Path(folder), 100 * repeat, options.quick):
                found[judged.case.name].append(judged)
        print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr, flush=True)
    if options.json:
        rows = [_row(judged[0]) for judged in found.values()]
        options.json.write_text(json.dumps(rows))
    return _report(cases, found, options.repeats)


def _one_a_knob(cases: Sequence[Case]) -> list[Case]:
    """The first script of each knob: what a test has time for."""
    first = {(case.broken, case.settings): case for case in reversed(cases)}
    return [case for case in cases if case in first.values()]


def _row(judged: Judged) -> dict[str, Any]:
    return {
        "name": judged.case.name,
        "knobs": [knob for knob, _ in judged.case.settings],
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


if __name__ == "__main__":
    sys.exit(main())
