"""Private layers of ranks: rank 0 writes the real files, every other rank an overlay of its own.

The elastic agent starts one command line for all ranks. `layered_target` gives it one that is the
script at once in rank 0 (`RANK` in its environment). In the others it is the script above the
overlay that trials have: they see the files of rank 0, and what they write goes with the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.isolation.available_modes import CHANGES, PROBE_CODE, place_files, probe_folder
from gpurun.isolation.folder_removal import discard, is_marked, sweep
from gpurun.isolation.kill_orphans import end_all_that_see
from gpurun.isolation.sandbox import familiar_folders
from gpurun.launch.launch_command import command_line

PREFIX = "gpurun-rank-"
"""Name of a rank's folder, with the run's number behind it."""
PROBE_SECONDS = 30.0

_ENTRY = (
    "import sys; sys.path.insert(0, {!r}); from gpurun.isolation.rank_start import main; main()"
)


def layered_target(target: Target, run_dir: Path, writable: Sequence[Path] = ()) -> Target:
    """The command of each rank of a script for one device: all but rank 0 write private layers.

    `run_dir` and the existing folders in `writable` stay the real ones in all ranks.
    """
    words = _entry_words(command_line(target), run_dir, writable, probe=False)
    return Target(TargetKind.COMMAND, words[0], tuple(words[1:]))


def remove_layers(run_dir: Path) -> None:
    """Remove the layers of a run whose ranks have ended, and end what still uses them."""
    for place in _places():
        for layer in Path(place).glob(f"{_prefix(run_dir)}*"):
            if is_marked(layer):
                end_all_that_see(layer)
                discard(layer)


def available() -> tuple[bool, str]:
    """True if ranks can have private layers in the current folder, found by trying; if not, why.

    If so, what is imperfect about them ("" if nothing): folders that are read-only to these ranks.
    Layers that a killed run left behind are removed on the way.
    """
    for place in _places():
        sweep(Path(place), PREFIX)
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
            remove_layers(run)
    if after != placed:
        return False, "a probe's file reached the real folder"
    lines = done.stderr.decode(errors="replace").splitlines()
    if done.returncode != PROBE_CODE:
        words = lines[-1] if lines else f"exit code {done.returncode}"
        _, begun, reason = words.rpartition("no private layer for rank 1: ")
        return False, reason if begun else f"a probe could not write ({words})"
    return True, "; ".join(lines)


def _entry_words(
    command: Sequence[str], run_dir: Path, writable: Sequence[Path], *, probe: bool
) -> list[str]:
    order = {
        "probe": probe,
        "prefix": _prefix(run_dir),
        "writable": [os.path.realpath(path) for path in (run_dir, *writable)],
        "places": _places(),
        "familiar": familiar_folders(Path.cwd(), tuple(command), dict(os.environ)),
    }
    root = str(Path(__file__).resolve().parents[2])
    entry = (sys.executable, "-I", "-S", "-c", _ENTRY.format(root))
    return [*entry, json.dumps(order), *command]


def _prefix(run_dir: Path) -> str:
    """The first part of the names of a run's layers."""
    return f"{PREFIX}{zlib.crc32(os.fsencode(os.path.realpath(run_dir))):08x}-"


def _names_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def _places() -> list[str]:
    return list(dict.fromkeys(("/var/tmp", tempfile.gettempdir())))
