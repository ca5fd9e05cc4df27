"""Kill the launcher of a live pair at random moments, and see that nothing stays behind.

    python scripts/kill_launchers.py [--moments 100]

Each launch has two sides that take turns; each side has a helper in its own process group and one
in a session of its own. The launcher gets SIGKILL between its start and some turns later. Whatever
was frozen then must be gone soon after: one that was left frozen would hold its memory for ever.
Prints the moments at which something was left, and exits with 1 if there were any.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
GONE_SECONDS = 20.0
LATEST_SECONDS = 1.5
SIDE = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gpurun.runtime.trial.live_pair_side import Turns
for leave in (os.setpgrp, os.setsid):
    if os.fork() == 0:
        leave()
        while True:
            time.sleep(0.001)
turns, steps = Turns(Path(sys.argv[2]), 1), 0
while True:
    time.sleep(0.002)
    steps += 1
    if turns.after_step(steps):
        sys.exit()
"""
LAUNCHER = """
import random, sys
from contextlib import ExitStack, closing
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.pairs.side import Side, await_both
from gpurun.pairs.turn_taking import take_turns
from gpurun.trials.turn_fifos import make_fifos
folder = Path(sys.argv[2])
with ExitStack() as stack:
    sides = []
    for name in ("first", "second"):
        control = folder / name / "control"
        make_fifos(control)
        argv = (sys.executable, str(folder / "side.py"), sys.argv[1], str(control))
        log = folder / name / "output.log"
        spec = LaunchSpec(argv, {}, folder, (), (), Mode.IN_PLACE, log)
        sandbox = stack.enter_context(Sandbox(spec))
        sides.append(stack.enter_context(closing(Side(name, sandbox, control, 60.0))))
    await_both((sides[0], sides[1]))
    print("turns", flush=True)
    take_turns((sides[0], sides[1]), random.Random(), lambda rounds: False)
"""


def left_behind(folder: Path) -> list[int]:
    """The processes that name this folder in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.fsencode(folder) in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def killed_after(seconds: float, while_in_turns: bool) -> list[int]:
    """Kill a launcher so long after its start, or after the first turn; who is left of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "side.py").write_text(SIDE)
        words = [sys.executable, "-c", LAUNCHER, str(REPOSITORY), str(folder)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as launcher:
            if while_in_turns:
                assert launcher.stdout is not None
                launcher.stdout.readline()
            time.sleep(seconds)
            launcher.kill()
        deadline = time.monotonic() + GONE_SECONDS
        while (left := left_behind(folder)) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return left


def main() -> None:
    """Kill so many launchers: half of them at any moment of their life, half in a turn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--moments", type=int, default=100)
    asked = parser.parse_args()
    draws, faults = random.Random(), 0
    for number in range(asked.moments):
        moment, in_turns = draws.uniform(0, LATEST_SECONDS), bool(number % 2)
        left = killed_after(moment / 3 if in_turns else moment, in_turns)
        if left:
            faults += 1
            print(f"{moment:.3f} s, in turns: {in_turns}: left {left}", flush=True)
    print(f"{asked.moments} launchers killed, something left behind by {faults}")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
