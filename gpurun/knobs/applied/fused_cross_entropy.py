"""Take the cross entropy of half-precision logits in compiled kernels, where that is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpurun.knobs.api import SCRIPT_COMPILES, Hooks
from gpurun.knobs.applied.autograd_state import is_plain_training
from gpurun.knobs.applied.compiling.compilations import MOST_WORDS, Compilations
from gpurun.knobs.applied.cross_entropy_kernels import (
    half_cross_entropy,
    half_cross_entropy_gradient,
)
from gpurun.knobs.applied.padded_logits import ENDS_IN_ZEROS, PADDED, columns, confirm
from gpurun.knobs.applied.replaced_calls import Args, Kwargs
from gpurun.knobs.applied.uncast import Computed, half_of, in_float32, of_half, uncast
from gpurun.knobs.device_requirements import missing_on

LEAST_ELEMENTS = 1 << 24
"""A smaller output is cast and read so fast that our own work in python would cost more."""
PATIENCE = 3
"""After this many steps without a loss that it can compute the knob stands aside."""
ROWS = 16
"""So much of the first batch is compared with what torch computes."""
LOSS_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 2e-2
"""Relative: gradients are rounded to half precision either way."""

Kernel = Callable[..., Any]
KERNELS: tuple[Kernel, ...] = (half_cross_entropy, half_cross_entropy_gradient)


class Options(NamedTuple):
    """The arguments of a call of `cross_entropy` that are no tensors, as the kernels take them."""

    ignored: int
    reduction: str
    smoothing: float


class Call(NamedTuple):
    """A call of `cross_entropy`, without the logits."""

    target: Tensor
    weight: Tensor | None
    options: Options


class FusedCrossEntropy:
    """The losses of this process; it is what `root_outputs.STAND_INS` asks for."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._compilations = Compilations(hooks, self._give_up, half_cross_entropy.__name__)
        self._compiled: dict[Kernel, Kernel] = {}
        self._known: set[tuple[object, ...]] = set()
        """The kinds of loss that were found right."""
        self._active = True
        self._seen = self._made = False

    def root_found(self, module: torch.nn.Module) -> None:
        """Look at a new root: nothing may compile but we."""
        device = next(module.parameters()).device
        if self._hooks.has_trait("compile") is not None or hasattr(module, "_orig_mod"):
            self._give_up(SCRIPT_COMPILES)
        else:
            missing = missing_on(device)
            if missing is not None:
                self._give_up(missing)

    def step_done(self, step: int) -> None:
        """Stand aside where there is no loss to compute."""
        if step < PATIENCE or not self._active or self._known:
            return
        if self._made:
            self._give_up("the script takes no cross entropy of the model's output")
        elif self._seen:
            self._give_up("the model's output is small")
        else:
            self._give_up("the model returns nothing in half precision")

    def inputs(self, given: object) -> object:
        """The inputs of a root, cast: compiled code reads their memory."""
        return in_float32(given) if self._made else given

    def pads(self, elements: int) -> bool:
        """True if logits of a graph are padded, because they will be handed out in half
        precision."""
        autocast = any(map(torch.is_autocast_enabled, ("cuda", "cpu")))
        return self._active and autocast and elements >= LEAST_ELEMENTS

    # -- what is handed out --------------------------------------------------------------------

    def fits(self, tensor: Tensor) -> bool:
        """See `root_outputs.StandIn`."""
        if not self._active:
            return False
        self._seen = True
        return (
            tensor.requires_grad
            and tensor.dim() >= 2
            and tensor.numel() >= LEAST_ELEMENTS
            and is_plain_training()
        )

    def make(self, tensor: Tensor) -> Tensor:
        """See `root_outputs.StandIn`."""
        try:
            made = uncast(tensor, self._loss)
            confirm(tensor)
        except Exception as error:
            self._fail(error)
            return tensor.float()
        self._made = True
        return made

    # -- the loss ------------------------------------------------------------------------------

    def _loss(self, logits: Tensor, further: Args, named: Kwargs) -> Tensor | None:
        """An `uncast_tensor.Loss`: None, for torch to compute it, where we cannot."""
        half = half_of(logits)
        call = None if half is None else _call(half, further, named)
        if half is None or call is None or not self._active:
            return None
        gradient = self._gradient_of(call.options, _extra(half))
        try:
            with torch.no_grad():
                value, scale = self._run(half_cross_entropy, half, *call[:2], *call.options)
                self._prove_once(half, call, gradient, value, scale)
        except Exception as error:  # if the script is at fault, torch says so
            self._fail(error)
        if not self._active:
            return None
        self._hooks.applied(f"cross entropy of {str(half.dtype).removeprefix('torch.')} logits")

        def plainly(logits: Tensor, target: Tensor, weight: Tensor | None, scale: Tensor) -> Tensor:
            return _by_torch(logits, Call(target, weight, call.options))

        return of_half(logits, Computed(value, gradient, plainly), (*call[:2], scale))

    def _gradient_of(self, options: Options, extra: int) -> Callable[..., Tensor]:
        """A function that computes the gradient of the logits from the gradient of the loss."""

        def gradient(
            half: Tensor, slope: Tensor, target: Tensor, weight: Tensor | None, scale: Tensor
        ) -> Tensor:
            given = (half, scale, slope, target, weight, *options, extra)
            try:
                whole: Tensor = self._run(half_cross_entropy_gradient, *given)
            except Exception as error:  # in a thread of autograd torch suppresses none
                self._fail(error)
                whole = half_cross_entropy_gradient(*given)
            if not extra:
                return whole
            found = columns(whole, half.shape[1])
            ENDS_IN_ZEROS.add(found, half.shape[1], whole.shape[1])
            return found

        return gradient

    def _run(self, function: Kernel, half: Tensor, *others: object) -> Any:
        if not self._compiled:
            self._compilations.install()
            self._compiled = {f: torch.compile(f) for f in KERNELS}
        given = [x.detach() if isinstance(x, Tensor) else x for x in (half, *others)]
        for tensor in given:  # the last batch of an epoch may be smaller
            if isinstance(tensor, Tensor) and tensor.dim() and len(tensor) == len(half):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return self._compilations.run_alone(self._compiled[function], *given)

    def _prove_once(
        self,
        half: Tensor,
        call: Call,
        gradient: Callable[..., Tensor],
        value: Tensor,
        scale: Tensor,
    ) -> None:
        """Hold the first loss of a kind against torch's; raises if they differ."""
        target, weight, options = call
        extra = _extra(half)
        kind = (half.dtype, half.dim(), target.dtype, weight is None, *options, extra)
        if kind not in self._known:
            slope = torch.ones_like(value)
            gradient(half, slope, target, weight, scale)  # compiled for its size
            self._prove(extra, half[:ROWS], Call(target[:ROWS], weight, options))
            self._known.add(kind)

    def _prove(self, extra: int, half: Tensor, call: Call) -> None:
        """Compare loss and gradient of some rows with what torch computes of them."""
        given = (*call[:2], *call.options)

        def by_torch(half: Tensor) -> Tensor:
            return _by_torch(half.float(), call)

        right, gradient_of = torch.func.vjp(by_torch, half)[:2]
        slope = right.cos()
        value, scale = self._run(half_cross_entropy, half, *given)
        gradient = self._run(half_cross_entropy_gradient, half, scale, slope, *given, extra)
        gradient, rest = gradient[:, : half.shape[1]], gradient[:, half.shape[1] :]
        for ours, theirs, tolerance in (
            (value, right, LOSS_TOLERANCE),
            (gradient, gradient_of(slope)[0], GRADIENT_TOLERANCE),
        ):
            least = tolerance * float(theirs.float().nan_to_num().abs().max())
            if not ours.allclose(theirs, tolerance, least, equal_nan=True) or rest.any():
                raise ArithmeticError("loss or gradient differ from what torch computes")

    def _fail(self, error: Exception) -> None:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        self._give_up(f"it could not be computed: {said[:MOST_WORDS]}")

    def _give_up(self, reason: str) -> None:
        if self._active:
            self._active = False
            self._hooks.revoked(reason)


def _call(half: Tensor, further: Args, named: Kwargs) -> Call | None:
    """The arguments beside the logits; None if we do not compute such a call."""
    given = {**dict(zip(("target", "weight"), further, strict=False)), **named}
    target, weight = given.get("target"), given.get("weight")
    parts = [target] if weight is None else [target, weight]
    ours = all(type(part) is Tensor and not part.requires_grad for part in parts)
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if old or not ours or target is None or half.dim() < 2:
        return None
    if target.dtype is not torch.long or target.shape != half.shape[:1] + half.shape[2:]:
        return None
    ignored, reduction = given.get("ignore_index", -100), given.get("reduction", "mean")
    options = Options(ignored, reduction, given.get("label_smoothing", 0.0))
    return Call(target, weight, options)


def _extra(half: Tensor) -> int:
    """Columns between one row and the next that nobody knows; 0 but for a table of padded rows."""
    length = PADDED.length(half) if half.dim() == 2 else None
    return length - half.shape[1] if length is not None and half.stride(0) == length else 0


def _by_torch(logits: Tensor, call: Call) -> Tensor:
    target, weight, (ignored, reduction, smoothing) = call
    return torch.nn.functional.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )
