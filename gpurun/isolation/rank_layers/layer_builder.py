"""Builds the private layer of a rank around this very process, which then becomes the script."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence

from gpurun.errors import visible
from gpurun.isolation import syscalls
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.namespaces import enter_mount_namespace
from gpurun.isolation.overlay_root import OverlayRoot, prepare_memory
from gpurun.isolation.rank_layers import layer_cleaner, view_daemon
from gpurun.isolation.rank_layers.rank_view import RankView, is_below
from gpurun.isolation.supervisor_spec import MEMORY, ROOT, UPPERS, SupervisorSpec

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
    cwd = os.getcwd()
    process, death_signal = os.getpid(), syscalls.parent_death_signal()
    outside = [place for place in order["places"] if not is_below(os.path.realpath(place), cwd)]
    folder, lock = layer_cleaner.make_folder(outside or order["places"], order["run"])
    for name in (MEMORY, ROOT, UPPERS):
        os.mkdir(f"{folder}/{name}")
    _start_apart(lambda: layer_cleaner.clean_up_after(process, folder), keep=(lock,))
    locked = enter_mount_namespace()
    prepare_memory(folder)
    writable = tuple(sorted({*order["writable"], *_real_folders(environment)}))
    root = _build(_spec(command, cwd, folder, writable, order["familiar"]), locked)
    layered = [pair for pair in root.overlays if not any(is_below(pair[0], x) for x in writable)]
    began = order["start_ns"], order["start_clock_ns"]
    view = RankView(root.root, layered, locked, *began)
    ours, theirs = socket.socketpair()
    _start_apart(
        lambda: view_daemon.keep(process, view, theirs), keep=(theirs.fileno(), *view.descriptors)
    )
    theirs.close()
    _enter(root)
    os.chdir(cwd)
    if death_signal:  # the kernel has taken it from us with our change of namespaces
        syscalls.die_with_parent(death_signal)
    _hand_over(ours)
    if order["probe"]:
        os.write(2, "".join(f"{visible(note)}\n" for note in root.notes).encode())


def _spec(
    command: tuple[str, ...],
    cwd: str,
    scratch: str,
    writable: tuple[str, ...],
    familiar: Sequence[str],
) -> SupervisorSpec:
    return SupervisorSpec(
        mode=Mode.OVERLAY,
        argv=command,
        env={},
        cwd=cwd,
        writable=writable,
        layers=(),
        familiar=tuple(familiar),
        scratch=scratch,
        terminal=-1,
        report=-1,
    )


def _build(spec: SupervisorSpec, locked: bool) -> OverlayRoot:
    root = OverlayRoot(spec, locked)
    if spec.cwd in root.descended:
        raise OSError(f"other file systems are mounted below {spec.cwd}")
    root.build()
    syscalls.mount("/proc", f"{root.root}/proc", flags=syscalls.MS_BIND | syscalls.MS_REC)
    return root


def _enter(root: OverlayRoot) -> None:
    """See the new root as "/". The view daemon's later mounts in its copy appear here too."""
    syscalls.mount("none", root.root, flags=syscalls.MS_REC | syscalls.MS_SHARED)
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_SLAVE)
    root.enter()


def _real_folders(environment: Mapping[bytes, bytes]) -> set[str]:
    named = [environment.get(name, b"") for name in REAL_FOLDER_VARIABLES]
    named += [os.path.dirname(environment.get(name, b"")) for name in REAL_FILE_VARIABLES]
    places = {*REAL, *map(os.fsdecode, named)}
    return {os.path.realpath(place) for place in places if place and os.path.isdir(place)}


def _hand_over(daemon: socket.socket) -> None:
    """Tell the view daemon which namespace it serves, and wait until it does."""
    daemon.send(os.readlink("/proc/self/ns/mnt").encode())
    if daemon.recv(1) != view_daemon.READY:
        raise OSError("its view daemon has ended")
    daemon.close()


def _start_apart(work: Callable[[], None], keep: tuple[int, ...]) -> None:
    """Do `work` in a process that is not our child, has no terminal and holds no file of ours."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_IGN)
            _close_all_but(keep)
            work()
    finally:
        os._exit(0)


def _close_all_but(keep: tuple[int, ...]) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the listing's own
                pass
