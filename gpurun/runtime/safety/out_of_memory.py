"""What held a GPU's memory when it ran out: a snapshot, and the largest allocations by name.

torch calls the observer at the failed allocation, before the exception frees what its frames hold.
gpurun keeps no frame, and does not read `f_locals`: both keep the tensors of a function alive.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gpurun.knobs.callers import is_users_file, users_line
from gpurun.records.events import OutOfMemoryEvent
from gpurun.records.spec import MEMORY_SNAPSHOT
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK

LARGEST = 5
REST = "activations and the rest"
Owners = Mapping[int, tuple[str, str]]
"""By the address of a storage: the part of the training that it is, and what it is in words."""


def watch(run_dir: Path) -> None:
    """Record the failed allocation by which this process ends.

    gpurun looks once a root is on a GPU: earlier, that would start CUDA.
    """
    last: tuple[OutOfMemoryEvent, Mapping[str, Any]] | None = None
    watching = False

    def observe(device: int, asked: int, total: int, free: int) -> None:
        nonlocal last
        snapshot = torch.cuda.memory._snapshot()
        main = threading.main_thread().ident or 0  # a backward pass has no lines of its own
        where = users_line(sys._getframe()) or users_line(sys._current_frames().get(main))
        last = out_of_memory(snapshot, _owners(), device, (asked, total, free), where), snapshot

    def write() -> None:
        error = getattr(sys, "last_value", None)
        if last is not None and isinstance(error, torch.cuda.OutOfMemoryError):
            RECORDER.event(last[0])
            with (run_dir / f"{os.getpid()}-{MEMORY_SNAPSHOT}").open("wb") as file:
                pickle.dump(last[1], file)

    def root(module: nn.Module) -> None:
        nonlocal watching
        if not watching and any(p.is_cuda for p in module.parameters()):
            watching = True
            core: Any = torch._C
            core._cuda_attach_out_of_memory_observer(guarded("out of memory", observe))
            atexit.register(guarded("out of memory", write))

    ROOTS.on_root.append(guarded("out of memory", root))


def out_of_memory(
    snapshot: Mapping[str, Any],
    owners: Owners,
    device: int,
    sizes: tuple[int, int, int],
    where: str,
) -> OutOfMemoryEvent:
    """The event of torch's snapshot. `sizes`: those that the event begins with."""
    segments = [each for each in snapshot["segments"] if each["device"] == device]
    parts: dict[str, int] = {}
    held = []
    for block in (block for each in segments for block in each["blocks"]):
        if block["state"].startswith("active"):
            part, words = owners.get(block["address"], (REST, _recorded_line(block)))
            parts[part] = parts.get(part, 0) + block["size"]
            held.append((words, block["size"]))
    held.sort(key=lambda each: -each[1])
    reserved = sum(each["total_size"] for each in segments)
    expandable = any(each.get("is_expandable") for each in segments)
    return OutOfMemoryEvent(where, *sizes, reserved, parts, tuple(held[:LARGEST]), expandable)


def _recorded_line(block: Mapping[str, Any]) -> str:
    """The user's line that allocated a block, where torch's history was on."""
    own = (f for f in block.get("frames", ()) if is_users_file(f["filename"]))
    return next((f"{os.path.basename(f['filename'])}:{f['line']}" for f in own), "not named")


def _owners() -> Owners:
    """Parameters and gradients of the roots, state of the optimizers."""
    owners = {}
    for name, parameter in (x for module in ROOTS.modules() for x in module.named_parameters()):
        owners[_address(parameter)] = "parameters", name
        if parameter.grad is not None:
            owners[_address(parameter.grad)] = "gradients", f"gradient of {name}"
    for state in (state for each in CLOCK.optimizers for state in each.state.values()):
        tensors = [(key, x) for key, x in state.items() if isinstance(x, Tensor)]
        owners.update((_address(x), ("optimizer state", str(key))) for key, x in tensors)
    return owners


def _address(tensor: Tensor) -> int:
    """The address of a tensor's storage; 0 for a tensor without one, such as a sparse tensor."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
