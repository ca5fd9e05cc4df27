"""What `gpurun --optimize` reaches, against the script as written and against one tuned by hand.

    python scripts/bench_speedup.py [--only simplenet,mingpt] [--limit 9m30s] [--json FILE]

For each workload: one tuning (`--optimize --tune-only`), then launches in turn (A B C D, D C B A,
...) of the script as written, with the settings chosen, with those that change the training too,
and of `scripts/hand_tuned` at the same batch size. All four are read off the same record of
gpurun's: samples/s after warm-up. `--variant "--mode max-autotune"` adds the hand-tuned script with
other flags to the turns; the fastest counts. `--work DIR` keeps all records; a tuning found there
is not repeated. What was measured when the limit ends is shown. `--tiny` tries it all on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.arguments.flag_values import parse_duration
from gpurun.errors import GpurunError
from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import duration, number
from scripts.speedup_table import (
    AS_WRITTEN,
    CHOSEN,
    HAND_TUNED,
    TRAINING,
    Comparison,
    Launch,
    table,
)

SCRIPTS = Path(__file__).resolve().parent
REPOSITORY = SCRIPTS.parent
TUNING_SHARE = 0.5
"""Of a workload's time: the launches in turn need the rest."""
LATE_SECONDS = 60.0
"""A tuning may end so much after its budget: its last trial runs to its end."""
LEAST_STEPS = 60
"""Steps of a launch, however slow the side: fewer are nearly all warm-up."""


@dataclass(frozen=True)
class Workload:
    """A script of `workloads/` and `hand_tuned/`.

    `length`: the flag that says how long it trains; `epoch`: samples in one unit of it, None where
    the unit is a step. `sizes`: its other arguments.
    """

    name: str
    batch_size: int
    length: str
    epoch: int | None = None
    sizes: tuple[str, ...] = ()

    def arguments(self, samples: float, batch_size: int) -> tuple[str, ...]:
        """The command line under which it trains with about so many samples, or a unit more."""
        wanted = max(samples, LEAST_STEPS * batch_size)
        units = max(1, round(wanted / (self.epoch or batch_size)))
        return (*self.sizes, self.length, str(units))


WORKLOADS = (
    Workload("simplenet", 32, "--epochs", epoch=12800),
    Workload("resnet50", 32, "--epochs", epoch=12800),
    Workload("gpt124m", 8, "--steps"),
    Workload("mingpt", 64, "--steps"),
)
SMALL_IMAGES = ("--batch-size", "2", "--samples", "64")
SMALL_GPT = ("--batch-size", "4", "--length", "16", "--layers", "1", "--width", "64")
TINY = (
    Workload("simplenet", 2, "--epochs", 64, SMALL_IMAGES),
    Workload("resnet50", 2, "--epochs", 64, SMALL_IMAGES),
    Workload("gpt124m", 4, "--steps", None, SMALL_GPT),
    Workload("mingpt", 4, "--steps", None, (*SMALL_GPT, "--heads", "2", "--words", "20000")),
)


@dataclass(frozen=True)
class Side:
    """One way to run a workload: the script, gpurun's flags, flags of the script's own."""

    name: str
    script: Path
    flags: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    batch_size: int = 1


class Bench:
    """One workload from the tuning to the last round; `found` is true at any moment."""

    def __init__(self, workload: Workload, folder: Path, options: argparse.Namespace) -> None:
        self.found = Comparison(workload.name)
        self._workload = workload
        self._folder = folder / workload.name
        self._options = options
        self._rates: dict[str, float] = {}
        self._longest = 0.0
        """Seconds of the longest launch so far."""
        self._failed: set[str] = set()
        self._folder.mkdir(parents=True, exist_ok=True)

    def run(self, until: float) -> None:
        """Tune, then launch in turn until the rounds are done or the time is up."""
        report = self._tune(until)
        sides = self._sides(report)
        for turn in range(self._options.rounds):
            for side in sides:
                self.found.launches.setdefault(side.name, []).append(None)
            for side in sides if turn % 2 == 0 else sides[::-1]:
                if side.name in self._failed:
                    continue
                left = until - time.monotonic()
                if left < self._longest or left <= 0:
                    self._note(f"the time is up in round {turn + 1}, before {side.name}")
                    return
                self.found.launches[side.name][turn] = self._launch(side, left)

    # -- tuning --------------------------------------------------------------------------------

    def _tune(self, until: float) -> dict[str, Any]:
        path = self._folder / "tuning.json"
        if not path.exists():
            left = until - time.monotonic()
            budget = max(1.0, min(self._options.budget, TUNING_SHARE * left))
            self._tell(f"tuning, {duration(budget)}")
            words = [
                "--optimize", "--tune-only", "--budget", f"{budget:.0f}s",
                "--save-settings", "settings.json", "--json", "tuning.json",
                str(SCRIPTS / "workloads" / f"{self._workload.name}.py"), *self._workload.sizes,
            ]  # fmt: skip
            self._gpurun("tuning", words, min(budget + LATE_SECONDS, left))
        if not path.exists():
            self.found.verdict = "the tuning failed"
            self._note(f"the tuning left no report: {self._tail('tuning')}")
            return {}
        report = json.loads(path.read_text())
        self._learn(report)
        return report  # type: ignore[no-any-return]

    def _learn(self, report: dict[str, Any]) -> None:
        found = self.found
        found.verdict, found.tuning_seconds = report["verdict"], report["tuning_seconds"]
        for side, part in (
            (AS_WRITTEN, "baseline"),
            (CHOSEN, "chosen"),
            (TRAINING, "larger_batch"),
        ):
            if report[part] is not None and report[part]["samples_per_second"]:
                self._rates[side] = report[part]["samples_per_second"]
        if report["verdict"] == "faster" and (self._folder / "settings.json").exists():
            found.knobs = report["chosen"]["knobs"]
        larger = report["larger_batch"]
        if larger is not None and (larger["guard"] is None or larger["guard"]["accepted"]):
            found.training_knobs = larger["knobs"]
        self._tell(f"{found.verdict} after {duration(found.tuning_seconds)}")
        if found.knobs:
            self._tell(f"chosen: {knobs_text(found.knobs)}")
        if found.training_knobs:
            self._tell(f"with training changes: {knobs_text(found.training_knobs)}")

    def _sides(self, report: dict[str, Any]) -> list[Side]:
        name, batch = f"{self._workload.name}.py", self._workload.batch_size
        written, by_hand = SCRIPTS / "workloads" / name, SCRIPTS / "hand_tuned" / name
        sides = [Side(AS_WRITTEN, written, batch_size=batch)]
        if self.found.knobs:
            sides.append(Side(CHOSEN, written, ("--settings", "settings.json"), batch_size=batch))
        if self.found.training_knobs:
            flags = (
                "--settings",
                self._training_settings(),
                "--allow",
                "pipeline,numerics,training",
            )
            larger = report["larger_batch"]["batch_size"]
            sides.append(Side(TRAINING, written, flags, batch_size=larger))
        for variant in ("", *self._options.variant):
            title = f"{HAND_TUNED} {variant}".strip()
            own = tuple(shlex.split(variant))
            sides.append(Side(title, by_hand, own=own, batch_size=batch))
        return sides

    def _training_settings(self) -> str:
        """The second finalist as a settings file; what the first one's says of loaders holds."""
        kept = self._folder / "settings.json"
        document = json.loads(kept.read_text()) if kept.exists() else {}
        changed = {**document, "settings": dict(self.found.training_knobs)}
        (self._folder / "training.json").write_text(json.dumps(changed))
        return "training.json"

    # -- launching -----------------------------------------------------------------------------

    def _launch(self, side: Side, left: float) -> Launch | None:
        """One launch; None, and the side is out, if it failed or did not end in time."""
        expected = self._rates.get(side.name) or max(self._rates.values(), default=0.0)
        samples = expected * self._options.seconds
        words = ["--quiet", "--json", "result.json", *side.flags, str(side.script)]
        words += [*self._workload.arguments(samples, side.batch_size), *side.own]
        (self._folder / "result.json").unlink(missing_ok=True)
        began = time.monotonic()
        code = self._gpurun("launch", words, left)
        took = time.monotonic() - began
        if code is None:
            self._note(f"{side.name} did not end within {duration(left)}")
            return None
        if code != 0 or not (self._folder / "result.json").exists():
            self._failed.add(side.name)
            self._note(f"{side.name} failed ({code}): {self._tail('launch')}")
            return None
        self._longest = max(self._longest, took)
        launch = as_launch(json.loads((self._folder / "result.json").read_text()), took)
        rate = launch.samples_per_second
        self._tell(f"{side.name}: {number(rate) if rate else 'no'} samples/s, {duration(took)}")
        if rate:
            self._rates[side.name] = rate
        for line in launch.not_applied:
            self._note(f"{side.name}: {line}")
        return launch

    def _gpurun(self, log: str, words: Sequence[str], seconds: float) -> int | None:
        """gpurun's exit code; None if it was killed when the time was up."""
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        with open(self._folder / f"{log}.log", "wb") as file:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "gpurun", *words],
                    cwd=self._folder,
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None
        return done.returncode

    def _tail(self, log: str) -> str:
        """The last line of a log that is not the closing one for machines."""
        lines = (self._folder / f"{log}.log").read_text(errors="replace").splitlines()
        told = [line for line in lines if line.strip() and not line.startswith("verdict=")]
        return told[-1] if told else "it printed nothing"

    def _note(self, line: str) -> None:
        if line not in self.found.notes:
            self.found.notes.append(line)
            self._tell(line)

    def _tell(self, line: str) -> None:
        print(f"{self._workload.name}: {line}", flush=True)


def as_launch(result: dict[str, Any], seconds: float) -> Launch:
    """What counts of a record."""
    return Launch(
        samples_per_second=result["samples_per_second"],
        busy_percent=result["gpu_utilization_percent"],
        busy_source=result["gpu_utilization_source"],
        seconds=seconds,
        not_applied=tuple(
            f"{x['knob']} was {x['outcome']}: {x['detail']}"
            for x in result["knobs"]
            if x["outcome"] != "applied"
        ),
    )


def seconds_of(text: str) -> float:
    """A time span as gpurun's own flags take it."""
    try:
        return parse_duration(text)
    except GpurunError as error:
        raise argparse.ArgumentTypeError(error.what) from None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [workload.name for workload in WORKLOADS]
    parser.add_argument("--only", help=f"of {','.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="launches of each side")
    parser.add_argument("--budget", type=seconds_of, default=300.0, help="of each tuning")
    parser.add_argument("--limit", type=seconds_of, default=570.0, help="for everything")
    parser.add_argument("--seconds", type=seconds_of, default=8.0, help="a launch trains so long")
    parser.add_argument("--variant", action="append", default=[], help="hand-tuned, these flags")
    parser.add_argument("--work", type=Path, help="keep records and tunings here")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU")
    options = parser.parse_args()
    chosen = names if options.only is None else options.only.split(",")
    if not set(chosen) <= set(names):
        parser.error(f"--only: there are {', '.join(names)}")
    workloads = [x for x in (TINY if options.tiny else WORKLOADS) if x.name in chosen]
    with tempfile.TemporaryDirectory(prefix="gpurun-speedup-") as temporary:
        compare(workloads, (options.work or Path(temporary)).resolve(), options)


def compare(workloads: Sequence[Workload], folder: Path, options: argparse.Namespace) -> None:
    """Each workload gets its share of the time that is left; the table grows with each."""
    ends = time.monotonic() + options.limit
    found: list[Comparison] = []
    for index, workload in enumerate(workloads):
        now = time.monotonic()
        bench = Bench(workload, folder, options)
        found.append(bench.found)
        try:
            bench.run(now + (ends - now) / (len(workloads) - index))
        finally:
            print(f"\n{table(found)}\n", flush=True)
            if options.json is not None:
                document = {"rounds": options.rounds, "found": [x.document() for x in found]}
                options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
