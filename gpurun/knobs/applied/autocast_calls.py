"""Run the calls of root modules under autocast, and hand out what they return in float32."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from gpurun.knobs import device_requirements
from gpurun.knobs.api import EMULATED_BFLOAT16, HALF_PARAMETERS, OWN_PRECISION, Hooks
from gpurun.knobs.applied.root_calls import RootContext, map_tensors
from gpurun.knobs.applied.root_outputs import stand_in_for

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class AutocastCalls(RootContext):
    """The context of a root's call; it stands aside as soon as something speaks against it.

    A class rather than a generator, so that an exception of the model passes through no frame here.
    """

    def __init__(self, hooks: Hooks, value: str) -> None:
        self._hooks = hooks
        self._dtype = DTYPES[value]
        self._device: str | None = None
        self._refused = False

    def root_found(self, module: torch.nn.Module) -> None:
        """Look at a new root: its device, its parameters, what the hardware can do."""
        if self._refused:
            return
        parameters = list(module.parameters())
        device = parameters[0].device.type
        reason = self._script_forbids(device) or _unfit(device, parameters, self._dtype)
        if reason is None:
            self._device = device
            self._hooks.applied(f"{str(self._dtype).removeprefix('torch.')} on {device}")
        else:
            self.refuse(reason)

    def is_on(self) -> bool:
        """True if roots run in half precision."""
        return self._device is not None and not self._refused

    def refuse(self, reason: str) -> None:
        """Stand aside from now on."""
        if not self._refused:
            self._refused = True
            self._hooks.revoked(reason)

    def __enter__(self) -> None:
        self.inner = None
        if self._device is None or self._refused:
            return
        reason = self._script_forbids(self._device)
        if reason is not None:
            self.refuse(reason)
            return
        self.open_inside(torch.autocast(self._device, self._dtype))

    def output(self, value: object) -> object:
        """The root's output, in float32 if it ran in half precision."""
        return value if self.inner is None else map_tensors(value, self._to_float32)

    def copies(self, tensor: Tensor) -> bool:
        """True if `output` will cast this tensor of a root's output."""
        return self.inner is not None and self._is_half(tensor) and stand_in_for(tensor) is None

    def _to_float32(self, tensor: Tensor) -> Tensor:
        if not self._is_half(tensor):
            return tensor
        stand_in = stand_in_for(tensor)
        return tensor.float() if stand_in is None else stand_in.make(tensor)

    def _is_half(self, tensor: Tensor) -> bool:
        return tensor.dtype is self._dtype

    def _script_forbids(self, device: str) -> str | None:
        if torch.is_autocast_enabled(device):
            return OWN_PRECISION["autocast"]
        return next(
            (OWN_PRECISION[t] for t in OWN_PRECISION if self._hooks.has_trait(t) is not None), None
        )


def _unfit(device: str, parameters: list[torch.nn.Parameter], dtype: torch.dtype) -> str | None:
    if any(p.dtype in DTYPES.values() for p in parameters):
        return HALF_PARAMETERS
    if dtype is torch.float16:
        return _no_float16(device)
    if device == "cpu":
        return None if device_requirements.native_on_cpu() else EMULATED_BFLOAT16
    if device == "cuda":
        capability = torch.cuda.get_device_capability(parameters[0].device)
        if device_requirements.is_ampere(capability):
            return None
    return f"no bfloat16 tensor cores on {device}"


def _no_float16(device: str) -> str | None:
    """Why this device cannot take float16; the CPU can in newer torch, slowly."""
    if device == "cuda":
        return None
    try:
        with warnings.catch_warnings(), torch.autocast(device, torch.float16):
            warnings.simplefilter("error")
            torch.nn.functional.linear(*torch.ones(2, 1, 1, device=device))
    except Exception:
        return f"this torch does not autocast to float16 on {device}"
    return None
