"""What launching costs: gpurun against python and torchrun, in turn, in one call.

    python scripts/bench_launch.py [--pairs 10]

Prints medians and the median of the paired differences. Bars: one process that imports nothing at
most 0.15 s over python; two ranks no slower than torchrun; parent of one process at most 40 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PYTHON = (sys.executable,)
GPURUN = (sys.executable, "-m", "gpurun")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
RANKS = ("--nproc-per-node=2",)
SLEEPING = "import time; time.sleep({seconds})"
RESIDENT_SECONDS: dict[tuple[str, ...], float] = {GPURUN: 2.0, TORCHRUN: 15.0}


def seconds(words: tuple[str, ...], folder: Path) -> float:
    """Wall time of one launch."""
    started = time.perf_counter()
    subprocess.run(words, cwd=folder, env=environment(), check=True, capture_output=True)
    return time.perf_counter() - started


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}


def compare(
    title: str, ours: tuple[str, ...], peer: tuple[str, ...], folder: Path, pairs: int
) -> None:
    """Launch both in turn (AB BA ...), the first pair for warming up only."""
    taken: dict[tuple[str, ...], list[float]] = {ours: [], peer: []}
    for pair in range(pairs + 1):
        for words in (ours, peer) if pair % 2 else (peer, ours):
            taken[words].append(seconds(words, folder))
    mine, theirs = taken[ours][1:], taken[peer][1:]
    differences = [a - b for a, b in zip(mine, theirs, strict=True)]
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    print(
        f"{title}: gpurun {statistics.median(mine):.3f} s, peer {statistics.median(theirs):.3f} s, "
        f"difference {statistics.median(differences):+.3f} s, "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )


def resident_megabytes(launcher: tuple[str, ...], words: tuple[str, ...], folder: Path) -> float:
    """Memory of the launcher while its script sleeps (peak so far, MB of 10^6 bytes)."""
    wait = RESIDENT_SECONDS[launcher]
    (folder / "sleep.py").write_text(SLEEPING.format(seconds=wait))
    process = subprocess.Popen(
        (*launcher, *words, "sleep.py"),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(wait * 0.75)
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.wait()
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(peak) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = "nothing.py"
        (folder / script).write_text("")
        compare("one process, no import", (*GPURUN, script), (*PYTHON, script), folder, pairs)
        compare(
            "two ranks, no-op",
            (*GPURUN, *RANKS, script),
            (*TORCHRUN, *RANKS, script),
            folder,
            pairs,
        )
        ours = resident_megabytes(GPURUN, (), folder)
        theirs = resident_megabytes(TORCHRUN, ("--nproc-per-node=1",), folder)
        print(f"parent, one process: gpurun {ours:.0f} MB, torchrun {theirs:.0f} MB")


if __name__ == "__main__":
    main()
