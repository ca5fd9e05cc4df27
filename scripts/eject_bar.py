"""The bar of `gpurun eject`: patched scripts run without gpurun and print the same losses.

    python scripts/eject_bar.py              all scripts, as a table
    python scripts/eject_bar.py mingpt ...   these of them

Each script runs in a fresh folder: as it is, with the settings under gpurun, and patched. "Same
losses": the largest difference of a printed loss between the last two, as a part of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
LOSS = re.compile(r"(?:loss\S*|train|test)[\s:=]+(-?\d+\.\d+)", re.IGNORECASE)
SAME = 0.01
"""Largest difference of a loss: bfloat16 on other threads reaches a few thousandths."""
GPURUN = (sys.executable, "-m", "gpurun", "--quiet")
COLUMNS = ("script", "written", "left out", "runs", "same losses", "from the script as it is")
BUILDS = {"loader_workers": 1, "loader_persistent": True, "loader_pin_memory": True}
FUSED = {"fused_optimizer": "fused"}
BFLOAT16 = {"autocast": "bf16"}


@dataclass(frozen=True)
class Case:
    """A script below the repository with its arguments, and settings for it."""

    path: str
    words: str
    settings: Mapping[str, Any]


STYLES = "tests/data/ejected"
CASES = (
    Case("examples/slow_vision.py", "--epochs 2 --samples 640", {**BUILDS, **BFLOAT16}),
    Case("examples/char_gpt.py", "--steps 60", {**FUSED, "compile": "default"}),
    Case("examples/tabular_mlp.py", "-e 2 --rows 8192", {**BUILDS, "fused_optimizer": "foreach"}),
    Case(
        "scripts/workloads/gpt124m.py",
        "--steps 101 --layers 2 --width 64 --length 32 --batch-size 2",
        {**FUSED, **BFLOAT16, "attention": "sdpa", "cpu_threads": 1},
    ),
    Case(
        "scripts/workloads/mingpt.py",
        "--steps 201 --layers 2 --heads 2 --width 32 --length 32 --batch-size 8",
        {**BUILDS, **FUSED, **BFLOAT16, "tf32": True},
    ),
    Case(
        "scripts/workloads/simplenet.py",
        "--epochs 2 --samples 640",
        {**BUILDS, "loader_prefetch": 4, "channels_last": True, "needless_sync": "skip"},
    ),
    Case(f"{STYLES}/functional_main.py", "", {**BUILDS, "channels_last": True, **BFLOAT16}),
    Case(f"{STYLES}/trainer_class.py", "", {**BUILDS, **FUSED, "compile": "default"}),
    Case(f"{STYLES}/loader_helper.py", "", {**BUILDS, **FUSED, **BFLOAT16, "cpu_threads": 1}),
    Case(f"{STYLES}/module_with_steps.py", "", {**BUILDS, **FUSED, "compile": "default"}),
    Case(f"{STYLES}/scaled_autocast.py", "", {**BUILDS, **FUSED, **BFLOAT16}),
    Case(f"{STYLES}/two_optimizers.py", "", {**BUILDS, **FUSED, "loader_prefetch": 4}),
)


@dataclass(frozen=True)
class Row:
    """What became of a script."""

    script: str
    written: Sequence[str] = ()
    left_out: Sequence[str] = ()
    runs: bool = False
    difference: float | None = None
    changed: float | None = None
    error: str = ""

    @property
    def passes(self) -> bool:
        """True if the patched script runs and prints the losses of the tuned one."""
        return self.runs and self.difference is not None and self.difference <= SAME


def ejected(case: Case, within: Path) -> Row:
    """Run a script in the three ways."""
    script = Path(case.path).name
    for source in (REPOSITORY / case.path).parent.glob("*.py"):
        shutil.copy(source, within)
    (within / "s.json").write_text(json.dumps({"settings": dict(case.settings)}))
    words = [script, *case.words.split()]
    plain = launch([sys.executable, *words], within)
    tuned = launch([*GPURUN, "--settings", "s.json", *words], within)
    asked = ("--no-check", "--settings", "s.json", "--output", "p.patch", "--json", "e.json")
    done = launch([*GPURUN[:3], "eject", *asked, *words], within)
    if done.returncode:
        return Row(script, error=last_line(done))
    report = json.loads((within / "e.json").read_text())
    subprocess.run(["git", "apply", "--allow-empty", "p.patch"], cwd=within, check=True)
    patched = launch(["bash", "-c", report["command"]], within)
    left = [f"{one['knob']} ({one['reason']})" for one in report["left_out"]]
    row = Row(script, report["written"], left, patched.returncode == 0)
    if plain.returncode or tuned.returncode or patched.returncode:
        failed = next(x for x in (plain, tuned, patched) if x.returncode)
        return Row(script, row.written, left, row.runs, error=last_line(failed))
    same, changed = (difference(x.stdout, patched.stdout) for x in (tuned, plain))
    return Row(script, row.written, left, row.runs, same, changed)


def launch(words: Sequence[str], within: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with this repository's gpurun and this python."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": path}
    return subprocess.run(words, cwd=within, env=environment, capture_output=True, text=True)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """The end of what a failed command said."""
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def difference(one: str, other: str) -> float | None:
    """The largest relative difference of the printed losses; None if they are not as many."""
    left, right = ([float(x) for x in LOSS.findall(text)] for text in (one, other))
    if not left or len(left) != len(right):
        return None
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(left, right, strict=True))


def main(names: Sequence[str]) -> int:
    """Print the table; 1 if a script fails the bar."""
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    failed = 0
    for case in CASES:
        if names and Path(case.path).stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = ejected(case, Path(folder))
        cells = [row.script, ", ".join(row.written), "; ".join(row.left_out)]
        shown = ["–" if x is None else f"{x:.1e}" for x in (row.difference, row.changed)]
        runs = "yes" if row.runs else "no"
        print("| " + " | ".join([*cells, f"{runs} {row.error}".strip(), *shown]) + " |", flush=True)
        failed += not row.passes
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
