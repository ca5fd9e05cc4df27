"""Run the model's forward in bfloat16, or on older GPUs in float16, where that is safe."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.root_contexts import RootContext
from gpurun.knobs.applied.root_outputs import COPIED_LATER, stand_in_for
from gpurun.knobs.applied.tensor_trees import map_tensors
from gpurun.knobs.precision.applied.loss_scale import LossScale
from gpurun.knobs.precision.tensor_cores import is_ampere, is_float16_only
from gpurun.records.facts import Facts

OWN = {
    "autocast": "the script autocasts itself",
    "grad_scaler": "the script scales its gradients itself",
}
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}
HALF = "the model holds half-precision parameters"
NATIVE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of /proc/cpuinfo (the last is Arm's) of processors that compute in bfloat16."""


class Autocast(KnobBase):
    """`torch.autocast` with bfloat16 ("bf16") around the root module's forward.

    Helps wherever matrix products and convolutions take the time: tensor cores are many times
    faster in half precision, and activations take half the memory. Floating outputs are cast back
    to float32, so the loss and everything after it sees what it saw before. "fp16" is for GPUs
    whose tensor cores know no bfloat16: the loss is scaled while `backward` runs (`loss_scale`).

    How it bites: eight bits of mantissa, so the loss guard has to agree. Casting large logits back
    to float32 costs memory, unless `fused_loss` spares it. A launch-bound model gets slower.
    Scripts that autocast, scale their gradients or hold half-precision parameters are left alone,
    as are processors that emulate it. In float16 large activations overflow: such a step is passed
    over, though not by the learning rate's schedule, each step waits to know, and code that reads
    gradients inside `backward`, closures and optimizers with a `step` of their own end it.
    """

    name: ClassVar[str] = "autocast"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 40
    acts_on: ClassVar[str] = "model"
    likely: ClassVar[bool] = True
    saves_memory: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """bfloat16, where the hardware computes in it and the script leaves it to us.

        float16 is asked for by hand: its range is small, and the scale has to find its place.
        """
        own = next((OWN[trait] for trait in OWN if trait in facts.traits), None)
        if own is not None:
            return Skip(own)
        if not facts.roots:
            return Skip("no module is called while training")
        if facts.out_of_memory and not facts.current:
            return Skip("its rounding could not be compared with a script that does not run")
        if any(dtype in ("float16", "bfloat16") for r in facts.roots for dtype in r.dtypes):
            return Skip(HALF)
        capability = facts.machine.compute_capability
        if facts.device == "cuda" and is_float16_only(capability):
            return Skip('this GPU has no bfloat16 tensor cores; "fp16" is there by --settings')
        if facts.device == "cuda" and not is_ampere(capability):
            return Skip("this GPU has no tensor cores for half precision")
        if facts.device == "cpu" and not native_on_cpu():
            return Skip("this processor only emulates bfloat16")
        return ["bf16"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand around the calls of the roots."""
        if value not in PRECISIONS:
            hooks.skipped(f"unknown precision {value!r}")
            return
        cast = _Cast(hooks, value)
        if value == "fp16":
            LossScale(hooks, cast.is_on, cast.refuse)
        COPIED_LATER.append(cast.copies)
        hooks.on_root(cast.root_found)
        hooks.around_root_call(lambda: cast, cast.output)


class _Cast(RootContext):
    """The context of a root's call; it stands aside as soon as something speaks against it.

    A class rather than a generator, so that an exception of the model passes through no frame here.
    """

    def __init__(self, hooks: Hooks, value: str) -> None:
        self._hooks = hooks
        self._value = value
        self._device: str | None = None
        self._refused = False

    def root_found(self, module: Any) -> None:
        """Look at a new root: its device, its parameters, what the hardware can do."""
        if self._refused:
            return
        parameters = list(module.parameters())
        device = parameters[0].device.type
        reason = self._script_forbids(device) or _unfit(device, parameters, self._value)
        if reason is None:
            self._device = device
            self._hooks.applied(f"{PRECISIONS[self._value]} on {device}")
        else:
            self.refuse(reason)

    def is_on(self) -> bool:
        """Whether roots run in half precision."""
        return self._device is not None and not self._refused

    def refuse(self, reason: str) -> None:
        """Stand aside from now on."""
        if not self._refused:
            self._refused = True
            self._hooks.revoked(reason)

    def __enter__(self) -> None:
        import torch

        self.inner = None
        if self._device is None or self._refused:
            return
        reason = self._script_forbids(self._device)
        if reason is not None:
            self.refuse(reason)
            return
        self.inner = torch.autocast(self._device, getattr(torch, PRECISIONS[self._value]))
        self.inner.__enter__()

    def output(self, value: Any) -> Any:
        """What the root returned, in float32 if it ran in half precision."""
        return value if self.inner is None else map_tensors(value, self._to_float32)

    def copies(self, tensor: Any) -> bool:
        """Whether `output` will cast this tensor of what the root returned."""
        return self.inner is not None and self._is_half(tensor) and stand_in_for(tensor) is None

    def _to_float32(self, tensor: Any) -> Any:
        if not self._is_half(tensor):
            return tensor
        stand_in = stand_in_for(tensor)
        return tensor.float() if stand_in is None else stand_in.make(tensor)

    def _is_half(self, tensor: Any) -> bool:
        import torch

        return tensor.dtype is getattr(torch, PRECISIONS[self._value])

    def _script_forbids(self, device: str) -> str | None:
        import torch

        if torch.is_autocast_enabled(device):
            return OWN["autocast"]
        return next((OWN[t] for t in OWN if self._hooks.has_trait(t) is not None), None)


def native_on_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this machine's processor computes in bfloat16 rather than emulating it."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((x for x in lines if x.lower().startswith(("flags", "features"))), "")
    return not NATIVE_FLAGS.isdisjoint(flags.split())


def _unfit(device: str, parameters: list[Any], value: str) -> str | None:
    import torch

    if any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters):
        return HALF
    if value == "fp16":
        return _no_float16(device, torch)
    if device == "cpu":
        return None if native_on_cpu() else "this processor only emulates bfloat16"
    if device == "cuda" and is_ampere(torch.cuda.get_device_capability(parameters[0].device)):
        return None
    return f"no bfloat16 tensor cores on {device}"


def _no_float16(device: str, torch: ModuleType) -> str | None:
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
