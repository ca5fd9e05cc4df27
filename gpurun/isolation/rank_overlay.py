"""Builds the private layer of a rank around this very process, which then becomes the script."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpurun.errors import visible
from gpurun.isolation import syscalls
from gpurun.isolation.folder_removal import hold, new_scratch
from gpurun.isolation.isolation_mode import MEMORY, ROOT, UPPERS, Mode, SupervisorSpec
from gpurun.isolation.namespaces import enter_mount_namespace
from gpurun.isolation.overlay_root import OverlayRoot, prepare_memory

REAL = ("/dev/shm", "/run", "/tmp/nvidia-mps")
"""Memory that ranks share (NCCL, gloo) and sockets of services: an overlay would cut them off."""

REAL_FOLDER_VARIABLES = (b"CUDA_MPS_PIPE_DIRECTORY",)
REAL_FILE_VARIABLES = (b"TORCHELASTIC_ERROR_FILE",)
"""Files that the agent reads."""


def enter_layer(
    order_text: str, command: tuple[str, ...], environment: Mapping[bytes, bytes]
) -> None:
    """From here on this process sees the files through a layer of its own. `OSError` if not.

    If the order says `probe`, imperfections of the layer are written to standard error.
    """
    order = json.loads(order_text)
    cwd, death_signal = os.getcwd(), syscalls.parent_death_signal()
    folder = _make_folder(order, cwd)
    locked = enter_mount_namespace()
    prepare_memory(folder)
    writable = {*order["writable"], *_real_folders(environment)}
    spec = SupervisorSpec(
        Mode.OVERLAY, command, {}, cwd, tuple(sorted(writable)), layers=(),
        familiar=tuple(order["familiar"]), scratch=folder, terminal=-1, report=-1,
    )  # fmt: skip
    root = OverlayRoot(spec, locked)
    if cwd in root.descended:
        raise OSError(f"other file systems are mounted below {cwd}")
    root.build()
    syscalls.mount("/proc", f"{root.root}/proc", flags=syscalls.MS_BIND | syscalls.MS_REC)
    root.enter()
    os.chdir(cwd)
    if death_signal:  # the kernel has taken it from us with our change of namespaces
        syscalls.die_with_parent(death_signal)
    if order["probe"]:
        os.write(2, "".join(f"{visible(note)}\n" for note in root.notes).encode())


def _make_folder(order: dict[str, Any], cwd: str) -> str:
    """A folder for what this rank writes, held by the rank and its children until they end."""
    places = list(map(os.path.realpath, order["places"]))
    outside = [place for place in places if place != cwd and not place.startswith(cwd + "/")]
    failure: OSError | None = None
    for place in outside or places:
        try:
            folder = new_scratch(Path(place), order["prefix"])
        except OSError as error:
            failure = error
            continue
        os.set_inheritable(hold(folder), True)
        for name in (MEMORY, ROOT, UPPERS):
            (folder / name).mkdir()
        return str(folder)
    raise failure or FileNotFoundError("no place for the rank's files")


def _real_folders(environment: Mapping[bytes, bytes]) -> set[str]:
    named = [environment.get(name, b"") for name in REAL_FOLDER_VARIABLES]
    named += [os.path.dirname(environment.get(name, b"")) for name in REAL_FILE_VARIABLES]
    places = {*REAL, *map(os.fsdecode, named)}
    return {os.path.realpath(place) for place in places if place and os.path.isdir(place)}
