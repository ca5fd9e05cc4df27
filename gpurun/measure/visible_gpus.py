"""The GPUs, or slices of them (MIG), that the script can see. The caller hands over pynvml."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One GPU that the script can see. `cuda_index` is None where CUDA's order is not certain."""

    handle: Any
    uuid: str
    name: str
    cuda_index: int | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None


def visible_gpus(nvml: Any) -> list[Gpu]:
    """The GPUs under CUDA_VISIBLE_DEVICES.

    A GPU that is cut into slices (MIG) never runs anything as a whole. CUDA shows the named slices,
    else the first; NVML's figures of the whole GPU are not the script's.
    """
    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = [ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    found = [_gpu(nvml, handle) for handle in handles if handle is not None]
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if listed.strip().startswith("MIG"):
        return _named([s for g in found for s in _slices(nvml, g)], listed)
    order = visible_order([(g.uuid, g.name) for g in found], os.environ)
    gpus = [replace(found[position], cuda_index=index) for position, index in order]
    return [_as_shown(nvml, gpu, alone=len(gpus) == 1) for gpu in gpus]


def visible_order(
    gpus: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> list[tuple[int, int | None]]:
    """Positions of the GPUs (UUID, name) that CUDA shows, each with its CUDA index.

    CUDA sorts the fastest first unless CUDA_DEVICE_ORDER says otherwise, NVML by bus: numbers mean
    the same only among GPUs of one kind. Where they do not, every GPU is given with an index of
    None.
    """
    uncertain: list[tuple[int, int | None]] = [(i, None) for i in range(len(gpus))]
    same_order = (
        len({name for _, name in gpus}) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    )
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [(i, i) for i in range(len(gpus))] if same_order else uncertain
    order: list[tuple[int, int | None]] = []
    for word in (w.strip() for w in listed.split(",")):
        if word.startswith("MIG"):
            return uncertain
        if word.startswith("GPU-"):
            position = next((i for i, g in enumerate(gpus) if g[0].startswith(word)), -1)
        elif not same_order:
            return uncertain
        else:
            position = int(word) if word.isdigit() else -1
        if not 0 <= position < len(gpus):
            break  # CUDA, too, ignores what follows a device that is not there
        order.append((position, len(order)))
    return order


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Gpu(
        handle=handle,
        uuid=text(ask(nvml.nvmlDeviceGetUUID, handle)) or "",
        name=text(ask(nvml.nvmlDeviceGetName, handle)) or "GPU",
        cuda_index=None,
        memory_bytes=None if memory is None else int(memory.total),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
    )


def _slices(nvml: Any, gpu: Gpu) -> list[Gpu]:
    """The MIG slices of a GPU, [] where it is not cut."""
    mode = ask(getattr(nvml, "nvmlDeviceGetMigMode", None), gpu.handle)
    if not mode or not mode[0]:
        return []
    most = ask(nvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0
    handles = [ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, i) for i in range(most)]
    slices = [_gpu(nvml, handle) for handle in handles if handle is not None]
    return [
        replace(s, compute_capability=s.compute_capability or gpu.compute_capability)
        for s in slices
    ]


def _named(slices: Sequence[Gpu], listed: str) -> list[Gpu]:
    """The slices that CUDA_VISIBLE_DEVICES names, in its order."""
    words = [word.strip() for word in listed.split(",")]
    named = [s for word in words if word for s in slices if s.uuid.startswith(word)]
    return [replace(s, cuda_index=index) for index, s in enumerate(named)]


def _as_shown(nvml: Any, gpu: Gpu, alone: bool) -> Gpu:
    """A GPU, or its first slice where it is cut into some."""
    slices = _slices(nvml, gpu)
    return replace(slices[0], cuda_index=gpu.cuda_index if alone else None) if slices else gpu


def ask(query: Callable[..., Any] | None, *arguments: Any) -> Any:
    """NVML's answer; None where it or the device does not know."""
    if query is None:
        return None
    try:
        return query(*arguments)
    except Exception:
        return None  # NVMLError, or an old driver's library that lacks the function


def error_text(error: Exception) -> str:
    """Why NVML does not answer: "insufficient permissions", "not supported"."""
    return " ".join(str(error).split()).lower() or type(error).__name__


def text(value: str | bytes | None) -> str | None:
    """A name, which older versions of pynvml give as bytes."""
    return value.decode() if isinstance(value, bytes) else value
