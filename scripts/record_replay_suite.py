"""Record the suite that the replay is judged by: run it once on a machine with GPUs.

    python scripts/record_replay_suite.py --work DIR [--only NAME ...] [--pairs 3]

Each case is a script with a planted fault or a workload, and its twin without the fault or with
settings that repair it. Both are profiled by `gpurun profile`, and packed into
`tests/data/replay_suite`. Their plain steps are measured by live pairs: both sides are launched
without a profiler and take turns. The ratios are added to `plain_steps.json` there. Printed for
each: the replay of both sides, the gain that the live pairs measured, and the what-if table.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gpurun.arguments.settings_file import save  # noqa: E402
from gpurun.bench.benchmark_launcher import Launcher, warm_up_rule  # noqa: E402
from gpurun.bench.benchmarks import GATED, Benchmark  # noqa: E402
from gpurun.bench.trees.installed_packages import Tree  # noqa: E402
from gpurun.bench.trees.prepared_sides import Side  # noqa: E402
from gpurun.isolation.available_modes import require  # noqa: E402
from gpurun.records.tuning import SavedSettings  # noqa: E402
from scripts.record_run import NotRecorded, record  # noqa: E402

DATA = REPOSITORY / "tests" / "data"
INTO = DATA / "replay_suite"
PLANTED, CPU, WORKLOADS = DATA / "planted_gpu", DATA / "planted", REPOSITORY / "scripts/workloads"
STEPS = 12
"""Steps of a window: a recording is small, and so many show what each step does."""
LONG, MANY, GPT, EPOCH = (
    ("--seconds", "600"),
    ("--steps", "600"),
    ("--steps", "300"),
    ("--epochs", "1"),
)
"""How long the scripts train: gpurun ends the sides of a live pair."""
SHORT = {LONG: ("--seconds", "20"), MANY: ("--steps", "60")}
"""How long a planted script is profiled."""
WRAPPER = (
    "import runpy, sys\nsys.argv[1:] = {words!r}\nrunpy.run_path({script!r}, None, '__main__')\n"
)
"""The script of a live pair's side: the words are part of it."""


@dataclass(frozen=True)
class Case:
    """A script, its words and those of its twin, None without one; gpurun's flags and settings."""

    script: Path
    words: tuple[str, ...] = ()
    twin: tuple[str, ...] | None = None
    flags: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None
    ranks: int = 1


def planted(name: str, **more: Any) -> Case:
    return Case(PLANTED / f"{name}.py", LONG, (*LONG, "--clean"), **more)


CASES = {
    **{
        name: planted(name)
        for name in (
            "pageable_copies", "read_in_forward", "synchronize_each_step", "tiny_kernels",
            "float32_products", "elementwise_chain", "emptied_cache", "small_batch",
        )
    },
    "gpt_eager": Case(WORKLOADS / "gpt124m.py", GPT, (*GPT, "--batch-size", "16")),
    "gpt_compiled": Case(WORKLOADS / "gpt124m.py", GPT, settings={"compile": "default"}),
    "resnet_graphs": Case(
        WORKLOADS / "resnet50.py", EPOCH, settings={"compile": "reduce-overhead"}
    ),
    "simplenet_loader": Case(WORKLOADS / "simplenet.py", EPOCH),
    "simplenet_half_tuned": Case(
        WORKLOADS / "simplenet.py", EPOCH, settings={"loader_workers": 8, "autocast": "bf16"}
    ),
    "slow_storage": Case(CPU / "slow_storage.py", MANY, (*MANY, "--clean")),
    "uneven_ranks": Case(CPU / "uneven_ranks.py", MANY, (*MANY, "--clean"), ranks=2),
    "gpt_two_ranks": Case(WORKLOADS / "gpt124m.py", GPT, flags=("--ddp",), ranks=2),
}  # fmt: skip
"""Eager, compiled, CUDA graphs, two ranks, half tuned, loader-bound and sync-bound."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for scratch files")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=CASES)
    options = parser.parse_args()
    failed = 0
    for name in options.only:
        try:
            print(row(name, CASES[name], options.work / name, options.into, options.pairs))
        except (NotRecorded, OSError, RuntimeError) as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def row(name: str, case: Case, work: Path, into: Path, pairs: int) -> str:
    """Record both sides of a case; what their replays and the live pairs say."""
    told = [profiled(name, case, case.words, work, into)]
    if case.twin is None:
        return f"{name}: {summary(told[0])}"
    told.append(profiled(f"{name}-twin", case, case.twin, work, into))
    steps = [] if case.ranks > 1 else live_steps(case, work, pairs)
    add_steps(into / "plain_steps.json", name, steps)
    gain = statistics.fmean(math.log(first / second) for first, second in steps) if steps else None
    measured = "no live pair" if gain is None else f"measured gain {math.exp(gain):.3f}"
    table = "; ".join(f"{w['change']} {w['step_ms']:.2f} ms" for w in told[0]["what_if"])
    return f"{name}: {summary(told[0])}; twin: {summary(told[1])}; {measured}; {table}"


def summary(document: dict[str, Any]) -> str:
    """The replay of one profile in a line."""
    replay = document["replay"] or {"mismatch": "no timeline"}
    if replay["mismatch"] is not None:
        return f"refused: {replay['mismatch']}"
    return (
        f"step {replay['measured_ms']:.2f} > {replay['replayed_ms']:.2f}, "
        f"wait {replay['measured_wait_ms']:.2f} > {replay['replayed_wait_ms']:.2f}, "
        f"idle {replay['measured_idle_ms']:.2f} > {replay['replayed_idle_ms']:.2f} ms"
    )


def profiled(
    name: str, case: Case, words: tuple[str, ...], work: Path, into: Path
) -> dict[str, Any]:
    """Profile one side, with plain steps on both sides of the window, and pack its folder."""
    shutil.rmtree(work / "profiles", ignore_errors=True)
    (work / "profiles").mkdir(parents=True)
    more = () if case.ranks == 1 else ("--nproc-per-node", str(case.ranks))
    if case.settings is not None:
        save(work / "settings.json", SavedSettings(case.settings, (), None, {}, ()))
        more = (*more, "--settings", str(work / "settings.json"))
    document = work / "profile.json"
    words = (*SHORT.get(words[:2], words[:2]), *words[2:])
    command = [
        sys.executable, "-m", "gpurun", "profile", "--steps", str(STEPS), "--json", str(document),
        *more, *case.flags, str(case.script), *words,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=work / "profiles", capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stderr[-400:]}")
    run = sorted((work / "profiles" / ".gpurun" / "runs").iterdir())[-1]
    record(run, name, into, (str(REPOSITORY), str(work), *libraries()))
    found: dict[str, Any] = json.loads(document.read_text())
    return found


def libraries() -> set[str]:
    """The folders in which Python and torch are installed."""
    torch = importlib.util.find_spec("torch")
    found = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}
    if torch is not None and torch.origin is not None:
        found.add(str(Path(torch.origin).parents[1]))
    return found


def live_steps(case: Case, work: Path, pairs: int) -> list[tuple[float, float]]:
    """The plain step of both sides, relative to the first's, from live pairs."""
    mode, _ = require(work, in_place=False)
    thresholds = {metric: metric.default_threshold for metric in GATED}
    folders = [work / "first", work / "second"]
    for folder, words in zip(folders, (case.words, case.twin or ()), strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(case.script.parent, folder)
        text = WRAPPER.format(words=list(words), script=str(folder / case.script.name))
        (folder / "train.py").write_text(text)
    benchmark = Benchmark(
        case.script.stem, folders[0], "train.py", (), None, None, {}, (), GATED, thresholds
    )
    launcher = Launcher(benchmark, work / "runs", mode, print)
    first, second = (
        Side(folder.name, "", Tree(folder), folder, Path(sys.executable), dict(os.environ))
        for folder in folders
    )
    found = []
    try:
        rule = warm_up_rule(None)
        for side in (first, second):
            launcher.run(side, rule, first=True)
        for _ in range(pairs):
            both = launcher.run_pair((first, second), rule)
            if both.ratio is not None:
                found.append((1.0, math.exp(-both.ratio.log)))
    finally:
        launcher.close()
    return found


def add_steps(path: Path, name: str, steps: list[tuple[float, float]]) -> None:
    """Keep the live pairs of a case beside its recordings."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = [[round(first, 6), round(second, 6)] for first, second in steps]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
