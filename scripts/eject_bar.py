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
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.forked import NURSERY  # noqa: E402

LOSS = re.compile(r"(?:loss\S*|train|test)[\s:=]+(-?\d+\.\d+)", re.IGNORECASE)
SAME = 0.01
"""Largest difference of a loss: bfloat16 on other threads reaches a few thousandths."""
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
GPT = "--layers 2 --width 64 --length 32 --batch-size 2 --steps"
MINGPT = "--layers 2 --heads 2 --width 32 --length 32 --batch-size 8 --words 2000 --steps"
CASES = (
    Case(f"{STYLES}/functional_main.py", "", {**BUILDS, "channels_last": True, **BFLOAT16}),
    Case(f"{STYLES}/trainer_class.py", "", {**BUILDS, **FUSED}),
    Case(f"{STYLES}/loader_helper.py", "", {**BUILDS, **FUSED, **BFLOAT16, "cpu_threads": 1}),
    Case(f"{STYLES}/module_with_steps.py", "", {**BUILDS, **FUSED, **BFLOAT16}),
    Case(f"{STYLES}/scaled_autocast.py", "", {**BUILDS, **FUSED, **BFLOAT16}),
    Case(f"{STYLES}/two_optimizers.py", "", {**BUILDS, **FUSED, "loader_prefetch": 4}),
    Case("examples/slow_vision.py", "--epochs 1 --samples 640 --image-size 16", BUILDS),
    Case("examples/char_gpt.py", "--steps 52 --width 32 --block_size 32", FUSED),
    Case("examples/tabular_mlp.py", "-e 2 --rows 4096 --width 64", {**BUILDS, **BFLOAT16}),
    Case("scripts/workloads/gpt124m.py", f"{GPT} 51", {**FUSED, **BFLOAT16, "attention": "sdpa"}),
    Case("scripts/workloads/mingpt.py", f"{MINGPT} 101", {**BUILDS, **FUSED, "tf32": True}),
    Case("scripts/workloads/simplenet.py", "--epochs 2 --samples 96", {"needless_sync": "skip"}),
    Case(f"{STYLES}/module_with_steps.py", "", {"compile": "default"}),
    Case(f"{STYLES}/trainer_class.py", "", {"compile": "default"}),
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
    """Run a script in the three ways, in forks of one process that has imported torch."""
    script = Path(case.path).name
    for source in (REPOSITORY / case.path).parent.glob("*.py"):
        shutil.copy(source, within)
    (within / "s.json").write_text(json.dumps({"settings": dict(case.settings)}))
    words = [script, *case.words.split()]
    here = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    settings = ("--settings", "s.json", "--quiet")
    asked = ("eject", "--no-check", *settings, "--output", "p.patch", "--json", "e.json")
    plain = NURSERY.run(words, within, here)
    tuned = NURSERY.launch([*settings, *words], within, here)
    done = NURSERY.launch([*asked, *words], within, here)
    if done.returncode:
        return Row(script, error=last_line(done))
    report = json.loads((within / "e.json").read_text())
    subprocess.run(["git", "apply", "--allow-empty", "p.patch"], cwd=within, check=True)
    assert "gpurun" not in (within / "p.patch").read_text()
    command = shlex.split(report["command"])
    variables = command[: command.index("python")]
    here |= dict(each.partition("=")[::2] for each in variables)
    patched = NURSERY.run(command[len(variables) + 1 :], within, here)
    left = [f"{one['knob']} ({one['reason']})" for one in report["left_out"]]
    row = Row(script, report["written"], left, patched.returncode == 0)
    failed = next((x for x in (plain, tuned, patched) if x.returncode), None)
    if failed is not None:
        return replace(row, error=last_line(failed))
    same, changed = (difference(x.stdout, patched.stdout) for x in (tuned, plain))
    return replace(row, difference=same, changed=changed)


def last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    """The end of what a failed command said."""
    return (done.stderr.decode().strip().splitlines() or [f"exit {done.returncode}"])[-1]


def difference(one: bytes, other: bytes) -> float | None:
    """The largest relative difference of the printed losses; None if they are not as many."""
    left, right = ([float(x) for x in LOSS.findall(text.decode())] for text in (one, other))
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
