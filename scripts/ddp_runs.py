"""One training script as one process and under `--ddp`, and what became of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 120.0
REPORT = re.compile(
    r"gpurun: (\[|CPU |GPUs? |record: |note: |what the script prints of training|.*samples/s"
    r"|.*measured steps|the loss is a (mean|sum) over samples \()"
)
"""Lines that every run of several ranks prints: they say nothing about this training."""
PROBE_COST = re.compile(r"verified in (\d+\.\d+) s by trials")


@dataclass(frozen=True)
class Run:
    """One finished launch. `exit_code` is None for one that was ended after `PATIENCE_SECONDS`.

    `steps`: lines that the script has left in `steps.csv`, one for each optimizer step that it took
    in earnest; the trials' and the other ranks' files are private.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    steps: int

    @property
    def verdict(self) -> str | None:
        """The word of gpurun's closing line."""
        found = re.findall(r"^verdict=(\w+)", self.stderr, re.MULTILINE)
        return found[-1] if found else None

    @property
    def refused(self) -> bool:
        """Whether gpurun declined before anything trained."""
        return self.exit_code == 2 and self.verdict == "refused" and self.steps == 0

    @property
    def lines(self) -> list[str]:
        """What gpurun said about this training, beyond its report."""
        said = [line for line in self.stderr.splitlines() if line.startswith("gpurun: ")]
        return [line.removeprefix("gpurun: ") for line in said if not REPORT.match(line)]

    @property
    def probe_seconds(self) -> float | None:
        """What gpurun says that its trials took."""
        found = [PROBE_COST.search(line) for line in self.stderr.splitlines()]
        times = [float(match[1]) for match in found if match]
        return times[0] if times else None


def environment(device: str) -> dict[str, str]:
    """The caller's, without what would steer gpurun, and without GPUs for `cpu`."""
    steering = ("GPURUN_", "PET_", "TORCHELASTIC_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(steering)}
    kept["PYTHONPATH"] = str(REPOSITORY)
    if device == "cpu":
        kept["CUDA_VISIBLE_DEVICES"] = ""
    return kept


def python(script: Path, *arguments: str, env: Mapping[str, str]) -> Run:
    """The script by itself."""
    return _launched([sys.executable, script.name, *arguments], script.parent, env)


def ddp(script: Path, ranks: int, env: Mapping[str, str], *flags: str) -> Run:
    """The script under `--ddp`; ranks share devices where there are too few."""
    count = ["--nproc-per-node", str(ranks), "--oversubscribe"]
    words = [sys.executable, "-m", "gpurun", "--ddp", *count, *flags, script.name]
    return _launched(words, script.parent, env)


def _launched(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> Run:
    """Run a command to its end; one that hangs is ended with all that it started."""
    began = time.monotonic()
    with open(folder / "stdout", "w+b") as out, open(folder / "stderr", "w+b") as err:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            for ending, grace in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, ending)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
        seconds = time.monotonic() - began
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    log = folder / "steps.csv"
    steps = len(log.read_text().splitlines()) if log.exists() else 0
    return Run(code, texts[0], texts[1], seconds, steps)
