"""Compile the cross entropy of large logits that the script takes outside of its model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import cross_entropy

from gpurun.knobs.api import SCRIPT_COMPILES, Hooks
from gpurun.knobs.applied.autograd_state import is_plain_training
from gpurun.knobs.applied.compiling.compilations import MOST_WORDS, Compilations
from gpurun.knobs.applied.replaced_calls import Args, Kwargs
from gpurun.knobs.device_requirements import missing_on, traced
from gpurun.records.frames import drop_frame

LEAST_ELEMENTS = 1 << 24
"""The loss of smaller logits is computed so fast that our own work in python would cost more."""
PATIENCE = 3
"""After this many steps without a loss that it can compute the knob stands aside."""
ROWS = 16
"""So much of the first batch is compared with what torch computes."""
TOLERANCE = 1e-3
"""Relative, of loss and gradient in float32."""
POSITIONAL = tuple(inspect.signature(cross_entropy).parameters)


class Call(NamedTuple):
    """A call of `cross_entropy`, as it is compiled."""

    logits: Tensor
    target: Tensor
    weight: Tensor | None
    ignored: int
    reduction: str
    smoothing: float

    @property
    def kind(self) -> tuple[object, ...]:
        """What it shares with calls that run the same compiled code."""
        logits, target, weight, *options = self
        return (logits.dim(), logits.shape[1], target.dtype, weight is None, *options)


@traced
def loss_of_logits(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """The function that is compiled."""
    return cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )


class _Context(FunctionCtx):
    """What the loss keeps for its backward pass."""

    options: tuple[int, str, float]
    compiled: tuple[Tensor, Tensor] | None
    saved_tensors: tuple[Any, ...]


class _CompiledLoss(torch.autograd.Function):
    """The compiled loss. A second pass through it, or one that is differentiated, is torch's."""

    @staticmethod
    def forward(
        ctx: _Context, run: Callable[..., Tensor], logits: Tensor, target: Tensor,
        weight: Tensor | None, *options: Any,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(logits, target, weight)  # type: ignore[arg-type]  # it takes None
        ctx.options = options
        with torch.enable_grad():
            given = logits.detach().requires_grad_()
            loss = run(given, target, weight, *options)
        ctx.compiled = loss, given
        return loss.detach()

    @staticmethod
    def backward(ctx: _Context, slope: Tensor) -> tuple[Tensor | None, ...]:
        logits, target, weight = ctx.saved_tensors
        further = torch.is_grad_enabled()
        compiled, ctx.compiled = ctx.compiled, None
        if compiled is None or further:
            with torch.enable_grad():
                given = logits if further else logits.detach().requires_grad_()
                compiled = loss_of_logits(given, target, weight, *ctx.options), given
        return None, *_gradient(*compiled, slope, further), *[None] * 5


def _gradient(loss: Tensor, given: Tensor, slope: Tensor, further: bool) -> tuple[Tensor, ...]:
    unwatched = inspect.unwrap(torch.autograd.grad)  # the clock counts the script's passes
    found: tuple[Tensor, ...] = unwatched(loss, given, slope, create_graph=further)
    return found


class FusedCrossEntropy:
    """The losses of this process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._compilations = Compilations(hooks, self._give_up, loss_of_logits.__name__)
        self._compiled: Callable[..., Tensor] | None = None
        self._known: set[tuple[object, ...]] = set()
        """The kinds of loss that were found right."""
        self._active = True
        self._small = False

    def install(self) -> None:
        """Stand in for the function; a model that is compiled has it as it is."""

        @functools.wraps(cross_entropy)
        def stand_in(*args: Any, **kwargs: Any) -> Tensor:
            if torch.compiler.is_compiling():
                return cross_entropy(*args, **kwargs)
            loss = self._loss(args, kwargs)
            if loss is not None:
                return loss
            try:
                return cross_entropy(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        torch.nn.functional.cross_entropy = stand_in

    def root_found(self, module: torch.nn.Module) -> None:
        """Look at a new root: nothing may compile but we."""
        if self._hooks.has_trait("compile") is not None or hasattr(module, "_orig_mod"):
            self._give_up(SCRIPT_COMPILES)
        else:
            missing = missing_on(next(module.parameters()).device)
            if missing is not None:
                self._give_up(missing)

    def step_done(self, step: int) -> None:
        """Stand aside where there is no loss to compute."""
        if step >= PATIENCE and self._active and not self._known:
            takes = "the script takes no cross entropy of the model's output"
            self._give_up("the model's output is small" if self._small else takes)

    def _loss(self, args: Args, kwargs: Kwargs) -> Tensor | None:
        """The loss of a call; None for torch to compute it."""
        if not (self._active and is_plain_training()):
            return None
        call = self._call(args, kwargs)
        return None if call is None else self._fused(call)

    def _call(self, args: Args, kwargs: Kwargs) -> Call | None:
        """The call, if it is one that is compiled."""
        given: dict[str, Any] = {**dict(zip(POSITIONAL, args, strict=False)), **kwargs}
        logits, target, weight = (given.get(name) for name in ("input", "target", "weight"))
        if type(logits) is not Tensor or type(target) is not Tensor or logits.dim() < 2:
            return None
        if weight is not None and (type(weight) is not Tensor or weight.requires_grad):
            return None
        old = given.get("size_average") is not None or given.get("reduce") is not None
        classes = target.dtype is torch.long and target.shape == logits.shape[:1] + logits.shape[2:]
        if old or not classes or not logits.requires_grad or logits.dtype is not torch.float32:
            return None
        if logits.numel() < LEAST_ELEMENTS:
            self._small = True
            return None
        ignored, reduction = given.get("ignore_index", -100), given.get("reduction", "mean")
        return Call(logits, target, weight, ignored, reduction, given.get("label_smoothing", 0.0))

    def _fused(self, call: Call) -> Tensor | None:
        """The loss; None where it fails. If the script is at fault, torch says so."""
        try:
            if call.kind not in self._known:
                self._prove(call)
            loss: Tensor = _CompiledLoss.apply(self._run, *call)  # type: ignore[no-untyped-call]
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            self._give_up(f"it could not be computed: {said[:MOST_WORDS]}")
            return None
        if not self._active:
            return None
        if not self._known:
            self._hooks.applied("compiled cross entropy")
        self._known.add(call.kind)
        return loss

    def _run(self, *call: Any) -> Tensor:
        if self._compiled is None:
            self._compilations.install()
            self._compiled = torch.compile(loss_of_logits)
        return self._compilations.run_alone(self._compiled, *call)

    def _prove(self, call: Call) -> None:
        """Compare loss and gradient of some rows with what torch computes; raises if they differ.

        Their number may change, so that the code is compiled for every size of a batch.
        """
        found = []
        for run in (self._run, loss_of_logits):
            rows = call.logits.detach()[:ROWS].clone().requires_grad_()
            target = call.target[:ROWS].clone()
            for tensor in (rows, target):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            loss = run(*call._replace(logits=rows, target=target))
            slope = loss.detach().cos()
            found.append((loss.detach(), *_gradient(loss, rows, slope, further=False)))
        for ours, theirs in zip(*found, strict=True):
            least = TOLERANCE * float(theirs.nan_to_num().abs().max())
            if not ours.allclose(theirs, TOLERANCE, least, equal_nan=True):
                raise ArithmeticError("loss or gradient differ from what torch computes")

    def _give_up(self, reason: str) -> None:
        if self._active:
            self._active = False
            self._hooks.revoked(reason)
