"""The start of a compiled training, with its repeated blocks compiled once and without.

    python scripts/bench_compile_start.py [gpt124m llama ...] [--mode reduce-overhead] [--steps 60]
        [--settings '{"autocast": "bf16", "attention": "sdpa"}'] [--sizes='--layers 12'] [--json F]

Each workload of `scripts/workloads` is launched four times, one after the other: "plain" (each
block is compiled by itself) and "nested" (blocks are compiled once), both with an empty folder of
kernels ("cold"), then with what these launches left ("kept"). Printed for each: seconds from the
launch to the end of the first steady step and of the fourth step, CPU seconds of the launch with
its compilers, the steady step, and what the record says of `compile`. Then for both states: the
part of plain's start that nested takes, plain's step by nested's, and the largest difference of
their losses, relative to plain's. Bar: at most 65 % of the start cold, the same step and losses.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
WORKLOADS = ("gpt124m", "llama", "mingpt", "half_tuned_vit")
STEADY = 1.5
"""A steady step takes less than so many usual ones, as the next ones do."""
IN_A_ROW = 3
LAST = 20
"""So many steps at the end are the usual ones."""
KNOB = '''
"""Record when steps end and what losses are; end the script after some steps."""

import json
import time
from typing import ClassVar

from gpurun.knobs.api import Effect, Knob, Skip


class StartBench(Knob):
    """`{"nested": true, "steps": 60, "file": "steps.json"}`."""

    name: ClassVar[str] = "start_bench"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 1

    def candidates(self, facts):
        return Skip("it changes nothing")

    def apply(self, value, hooks):
        if not value["nested"]:
            from gpurun.knobs.compiling.applied import nested_blocks

            nested_blocks.SINCE = "1000"  # no torch is as new as that
        ends, losses = [], []

        def done(step):
            if losses:
                losses[-1] = losses[-1].item()
            ends.append(time.perf_counter())
            if len(ends) == value["steps"]:
                with open(value["file"], "w") as file:
                    json.dump({"ends": ends, "losses": losses}, file)
                raise SystemExit(0)

        hooks.around_backward(lambda loss: losses.append(loss.detach().clone()), lambda: None)
        hooks.on_step(done)
'''


@dataclass(frozen=True)
class Started:
    """A launch: seconds to the end of the first steady step and of the fourth, CPU seconds, seconds
    of a steady step, losses, and the record's words on `compile`."""

    start: float
    fourth: float
    cpu: float
    step: float
    losses: tuple[float, ...]
    told: str


def launch(script: Path, nested: bool, caches: Path, options: argparse.Namespace) -> Started:
    """Launch a workload alone; `caches`: the folder of kernels."""
    with tempfile.TemporaryDirectory(prefix="start-") as temporary:
        folder = Path(temporary)
        (folder / "start_bench.py").write_text(KNOB)
        (folder / "gpurun.toml").write_text('knobs = ["start_bench.py"]\n')
        steps = folder / "steps.json"
        bench = {"nested": nested, "steps": options.steps, "file": str(steps)}
        settings = {"compile": options.mode, **json.loads(options.settings), "start_bench": bench}
        (folder / "settings.json").write_text(json.dumps({"settings": settings}))
        words = [sys.executable, "-m", "gpurun", "--settings", "settings.json", "--quiet"]
        words += ["--json", "result.json", str(script), *shlex.split(options.sizes)]
        environment = {
            **os.environ,
            "PYTHONPATH": str(SCRIPTS.parent),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
        with open(folder / "output", "w") as output:
            began = time.perf_counter()
            child = subprocess.Popen(
                words, cwd=folder, env=environment, stdout=output, stderr=output
            )
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode or not steps.exists():
            tail = (folder / "output").read_text()[-2000:]
            raise SystemExit(f"{script.name} ended with code {child.returncode}:\n{tail}")
        found = json.loads(steps.read_text())
        result = json.loads((folder / "result.json").read_text())
        cpu = usage.ru_utime + usage.ru_stime
        return _started([end - began for end in found["ends"]], found["losses"], cpu, result)


def _started(
    ends: Sequence[float], losses: Sequence[float], cpu: float, result: dict[str, Any]
) -> Started:
    steps = [after - before for before, after in itertools.pairwise(ends)]
    usual = statistics.median(steps[-LAST:])
    steady = [seconds < STEADY * usual for seconds in steps]
    first = next(n for n in range(len(steps)) if all(steady[n : n + IN_A_ROW]))
    told = [knob["detail"] for knob in result["knobs"] if knob["knob"] == "compile"]
    return Started(
        ends[first + 1], ends[3], cpu, usual, tuple(losses), "; ".join(told) or "not told"
    )


def deviation(one: Iterable[float], other: Iterable[float]) -> float:
    """The largest difference of losses, relative to the first ones."""
    pairs = zip(one, other, strict=True)
    return max((abs(a - b) / max(abs(a), 1e-12) for a, b in pairs), default=float("nan"))


def report(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one workload and print its lines; returns the figures."""
    script = SCRIPTS / "workloads" / f"{workload}.py"
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kernels-") as kernels:
        for state in ("cold", "kept"):
            found = {}
            for way in ("plain", "nested"):
                caches = Path(kernels) / way
                it = found[way] = launch(script, way == "nested", caches, options)
                print(
                    f"{workload} {state} {way}: first steady step after {it.start:.1f} s, fourth "
                    f"step after {it.fourth:.1f} s, CPU {it.cpu:.0f} s, step {it.step * 1e3:.1f} "
                    f"ms ({it.told})",
                    flush=True,
                )
            plain, nested = found["plain"], found["nested"]
            differ = deviation(plain.losses, nested.losses)
            print(
                f"{workload} {state}: nested takes {nested.start / plain.start:.0%} of the start, "
                f"step ×{plain.step / nested.step:.2f}, losses differ by {differ:.1e} at most",
                flush=True,
            )
            figures[state] = {way: asdict(it) for way, it in found.items()}
    return figures


def main() -> None:
    """Measure each workload."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--mode", default="reduce-overhead", help="the value of `compile`")
    parser.add_argument("--steps", type=int, default=60, help="steps of each launch")
    parser.add_argument("--settings", default="{}", help="more settings, as JSON")
    parser.add_argument("--sizes", default="", help="arguments of the workloads' own")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()
    if options.steps < 2 * LAST:
        parser.error(f"--steps: at least {2 * LAST}")
    figures = {workload: report(workload, options) for workload in options.workloads}
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
