"""The isolation that this machine permits, found by trying it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import GpurunError, cure_of
from gpurun.isolation.folder_removal import discard, scratch_folder
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.isolation.working_copy import refuse_large

FORCE_VARIABLE = "GPURUN_ISOLATION"
"""Set to "overlay", "landlock" or "in-place" to consider that mode only."""

PROBE_SECONDS = 60.0
CHANGES = """
import errno, os, sys
os.chdir(sys.argv[1])
open("new", "x").write("probe")
open("model", "r+").write("probe")
os.replace("model", "old/model")
for name in os.listdir("old"): os.unlink("old/" + name)
os.rmdir("old")
os.mkdir("old")
assert os.listdir("old") == [], "a removed folder is not empty when it is made again"
try: os.rename("folder", "renamed")
except OSError as error:
    if error.errno != errno.EXDEV: raise  # which the runtime mends: see folder_renames
sys.exit(33)
"""
"""Does what scripts do to the files and folders of `place_files`, in the folder of its argument."""
PROBE_CODE = 33
PROBE_BYTES = 2 << 20
"""The size of the file that the probe overwrites."""
PROBE_FOLDER = "gpurun-probe-"


@dataclass(frozen=True)
class Availability:
    """The best mode here, None if trials must be refused. `reason`: why not a better one."""

    mode: Mode | None
    reason: str


def choose(cwd: Path, *, in_place: bool) -> Availability:
    """The mode for trials in `cwd`. `in_place`: the user consented to real writes."""
    forced = os.environ.get(FORCE_VARIABLE)
    if in_place or forced == "in-place":
        return Availability(Mode.IN_PLACE, "trials run on the real files, as asked")
    reasons: list[str] = []
    for mode, title in ((Mode.OVERLAY, "overlay mounts"), (Mode.LANDLOCK, "Landlock")):
        if forced in (None, "", mode.value):
            failure, notes = _try(mode, Path(os.path.realpath(cwd)))
            if failure is None:
                return Availability(mode, "; ".join((*reasons, *notes)))
            reasons.append(f"{title}: {failure}")
    if not reasons:
        raise GpurunError(
            f"{FORCE_VARIABLE}={forced} is no kind of isolation",
            "use overlay, landlock or in-place",
        )
    return Availability(None, "; ".join(reasons))


def require(cwd: Path, *, in_place: bool) -> tuple[Mode, str]:
    """The mode, and notes on what it cannot isolate; `GpurunError` where trials must be refused."""
    available = choose(cwd, in_place=in_place)
    if available.mode is None:
        consent = (
            "allow user namespaces, or consent to trials in your folder with --trials-in-place"
        )
        what = f"trials cannot be isolated here: {available.reason}"
        raise GpurunError(what, cure_of(available.reason, consent))
    return available.mode, available.reason


def probe_folder() -> AbstractContextManager[Path]:
    """A folder to try the isolation in; those of killed launchers are removed on the way."""
    return scratch_folder(Path(tempfile.gettempdir()), PROBE_FOLDER)


def place_files(folder: Path) -> None:
    """Make the files and folders that `CHANGES` changes."""
    for name in ("old", "folder"):
        (folder / name).mkdir(parents=True)
        (folder / name / "file").touch()
    (folder / "model").write_bytes(bytes(PROBE_BYTES))


def _try(mode: Mode, cwd: Path) -> tuple[str | None, list[str]]:
    """Why the mode fails here, None if it works; and notes on what it cannot isolate."""
    with probe_folder() as folder:
        try:
            if mode is Mode.LANDLOCK:
                refuse_large(cwd)
            place = cwd if mode is Mode.OVERLAY and os.access(cwd, os.W_OK) else folder
            return _probe(mode, place, folder / "log")
        except GpurunError as error:
            return error.what, []


def _probe(mode: Mode, place: Path, log: Path) -> tuple[str | None, list[str]]:
    """Change files in a sandbox: it must succeed there and leave nothing here."""
    target = place / f".gpurun-probe-{os.urandom(8).hex()}"  # a name that nobody can have taken
    layer = log.parent / "layer"
    place_files(layer / target.relative_to("/"))
    argv = (sys.executable, "-I", "-S", "-c", CHANGES, target.name)
    spec = LaunchSpec(argv, dict(os.environ), place, (), (layer,), mode, log)
    with Sandbox(spec) as sandbox:
        try:
            code = sandbox.wait(PROBE_SECONDS)
        except subprocess.TimeoutExpired:
            return "a probe did not end", []
    if target.exists():
        discard(target)
        return "a probe's file reached the real folder", []
    if code != PROBE_CODE:
        lines = log.read_text(errors="replace").splitlines()
        return f"a probe could not write ({lines[-1] if lines else f'exit code {code}'})", []
    return None, sandbox.notes
