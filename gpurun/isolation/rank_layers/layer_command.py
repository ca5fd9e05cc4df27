"""Private write layers for ranks: rank 0 writes the real files, every other rank its own ones.

The elastic agent starts one command line for all ranks. `rank_command` gives it one that is the
script at once in rank 0 (`RANK` in its environment), and in the others the same script above an
overlay of everything: they see rank 0's files, and what they write goes when they end.

    P   the rank's process, which the agent watches: builds the layer, then becomes the script
    `view_daemon`    in P's namespace: shows P what rank 0 has written since
    `layer_cleaner`  outside of it: ends what P leaves behind, and removes the layer
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.available_modes import CHANGES, PROBE_CODE, place_files, probe_folder
from gpurun.isolation.folder_removal import discard
from gpurun.isolation.rank_layers.layer_cleaner import is_of_run, layers, sweep
from gpurun.isolation.sandbox import familiar_folders
from gpurun.launch.launch_command import command_line

PROBE_SECONDS = 30.0
END_SECONDS = 10.0
CLOCK_GRAIN_NS = 20_000_000
"""Files' times come from a clock that ticks this coarsely at most."""

_ENTRY = (
    "import sys; sys.path.insert(0, {!r}); "
    "from gpurun.isolation.rank_layers.rank_start import main; main()"
)


def rank_command(command: Sequence[str], run_dir: Path, writable: Sequence[Path]) -> list[str]:
    """The words for the agent to start in each rank instead of `command`.

    To be asked for when the run begins: what is made on disk from here on counts as the run's.
    `run_dir` and the existing folders in `writable` stay the real ones in all ranks.
    """
    return _entry_words(command, run_dir, writable, probe=False)


def layered_target(target: Target, run_dir: Path, writable: Sequence[Path] = ()) -> Target:
    """The command of each rank of a script for one device: all but rank 0 write private layers.

    Such a script writes the same files in every rank.
    """
    words = rank_command(command_line(target), run_dir, writable)
    return Target(TargetKind.COMMAND, words[0], tuple(words[1:]))


def _entry_words(
    command: Sequence[str], run_dir: Path, writable: Sequence[Path], *, probe: bool
) -> list[str]:
    order = {
        "probe": probe,
        "run": os.path.realpath(run_dir),
        "writable": [os.path.realpath(path) for path in (run_dir, *writable)],
        "places": ["/var/tmp", tempfile.gettempdir()],
        "familiar": familiar_folders(Path.cwd(), tuple(command), dict(os.environ)),
        "start_ns": time.time_ns() - CLOCK_GRAIN_NS,
        "start_clock_ns": time.monotonic_ns() - CLOCK_GRAIN_NS,
    }
    root = str(Path(__file__).resolve().parents[3])
    entry = (sys.executable, "-I", "-S", "-c", _ENTRY.format(root))
    return [*entry, json.dumps(order), *command]


def available() -> tuple[bool, str]:
    """True if ranks can have private layers in the current folder, found by trying; if not, why.

    If so, what is imperfect about them ("" if nothing): folders that are read-only to these ranks.
    Layers that a killed run left behind are removed on the way.
    """
    for place in _places():
        sweep(place)
    with probe_folder() as folder:
        run = folder / "run"
        run.mkdir()
        here = Path.cwd() if os.access(".", os.W_OK) else folder
        target = here / f".gpurun-probe-{os.getpid()}-{time.monotonic_ns()}"
        probe = (sys.executable, "-I", "-S", "-c", CHANGES, str(target))
        try:
            place_files(target)
            placed = _names_below(target)
            done = subprocess.run(
                _entry_words(probe, run, (), probe=True),
                env={**os.environ, "RANK": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, "a probe did not end"
        finally:
            after = _names_below(target)
            discard(target)
            finish(run)
    if after != placed:
        return False, "a probe's file reached the real folder"
    lines = done.stderr.decode(errors="replace").splitlines()
    if done.returncode != PROBE_CODE:
        words = lines[-1] if lines else f"exit code {done.returncode}"
        _, begun, reason = words.rpartition("no private layer for rank 1: ")
        return False, reason if begun else f"a probe could not write ({words})"
    return True, "; ".join(lines)


def finish(run_dir: Path, seconds: float = END_SECONDS) -> bool:
    """Wait until nothing is left of the layers of a run whose ranks have ended; False if not."""
    run, end = os.path.realpath(run_dir), time.monotonic() + seconds
    while True:
        left = False
        for place in _places():
            sweep(place)
            left = left or any(is_of_run(path, run) for path in layers(place))
        if not left or time.monotonic() > end:
            return not left
        time.sleep(0.01)


def _names_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def _places() -> list[str]:
    return sorted({"/var/tmp", tempfile.gettempdir()})
