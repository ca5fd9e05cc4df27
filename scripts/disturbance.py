"""Burn one core in bursts of 1 to 20 s, about half of the time: another job on the machine.

    python scripts/disturbance.py [--seed 0]          until it, or what started it, is ended

`burning` runs it beside a block of code. Bursts and pauses are drawn alike, uniformly.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHORTEST, LONGEST = 1.0, 20.0


def burn(draws: random.Random) -> None:
    """Burst after burst, for as long as the process that started this one lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        until = time.monotonic() + draws.uniform(SHORTEST, LONGEST)
        while time.monotonic() < until:
            sum(range(1000))
        time.sleep(draws.uniform(SHORTEST, LONGEST))


@contextmanager
def burning(wanted: bool, seed: int = 0) -> Iterator[None]:
    """A process that burns a core for the time of the block, if that is `wanted`."""
    if not wanted:
        yield
        return
    words = [sys.executable, str(Path(__file__).resolve()), "--seed", str(seed)]
    with subprocess.Popen(words) as process:
        try:
            yield
        finally:
            process.kill()


def main() -> None:
    """Burn until it is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    burn(random.Random(parser.parse_args().seed))


if __name__ == "__main__":
    main()
