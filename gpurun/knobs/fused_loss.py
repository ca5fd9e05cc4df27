"""Compute the loss of half-precision outputs in fused kernels, without a float32 copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.compilations import MOST_WORDS, Compilations
from gpurun.knobs.compile_tools import missing_on, missing_tool, traced
from gpurun.knobs.outputs import STAND_INS
from gpurun.knobs.uncast import (
    Computed,
    half_of,
    in_float32,
    is_plain_training,
    of_half,
    uncast,
    without_gaps,
)
from gpurun.records.facts import Facts

LEAST_ELEMENTS = 1 << 24
"""A smaller output is cast and read so fast that our own work in python would cost more."""
PATIENCE = 3
"""After this many steps without a loss that it can compute the knob stands aside."""
ROWS = 16
"""So much of the first batch is compared with what torch computes."""
LOSS_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 2e-2
"""Relative: gradients are rounded to half precision either way."""

Call = tuple[Any, Any, int, str, float]
"""Target, weight, ignored index, reduction, label smoothing of a call of `cross_entropy`."""


class FusedLoss(KnobBase):
    """One compiled kernel for cast, log-softmax and loss where `cross_entropy` takes large logits.

    Beside `autocast`. What the model returns is not cast to float32 but handed out as a tensor that
    is cast when the script first reads its numbers; `torch.nn.functional.cross_entropy` computes in
    float32 all the same, without writing float32 logits or their gradient to memory. Helps where
    vocabularies are large: eager cast, loss and backward move some ten times what it does.

    How it bites: other rounding in the loss. `type(logits)` is a subclass of Tensor, each `grad_fn`
    has another name, and gradients of logits are rounded to half precision before a script sees
    them. Extension modules that take the address of logits past torch raise. Compiling takes
    seconds at the first step. Left alone are a loss inside the model's forward, scripts that
    compile, checkpoints around the loss, and other losses: those get the logits cast as before.
    """

    name: ClassVar[str] = "fused_loss"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 41
    acts_on: ClassVar[str] = "model"
    likely: ClassVar[bool] = True
    startup_seconds: ClassVar[float] = 8.0

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """On top of autocast; how large the outputs are is seen when it runs."""
        if "compile" in facts.traits or any(root.compiled for root in facts.roots):
            return Skip("the script compiles by itself")
        if "autocast" not in facts.current:
            return Skip("it goes with autocast, whose cast it spares")
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        return ["cross_entropy"] if missing is None else Skip(missing)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand by for what roots return in half precision."""
        if value != "cross_entropy":
            hooks.skipped(f"unknown loss {value!r}")
            return
        losses = _Losses(hooks)
        STAND_INS.append(losses)
        hooks.on_root(losses.root_found)
        hooks.on_step(losses.step_done)
        hooks.around_root_call(nullcontext, inputs=losses.inputs)


class _Losses:
    """The losses of this process; it is what `outputs.STAND_INS` asks for."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._compilations = Compilations(self._give_up, half_cross_entropy.__name__)
        self._compiled: dict[Any, Any] = {}
        self._known: set[tuple[Any, ...]] = set()
        """The kinds of loss that were found right."""
        self._active = True
        self._seen = self._made = False

    def root_found(self, module: Any) -> None:
        """Look at a new root: nothing may compile but we."""
        device = next(module.parameters()).device
        if self._hooks.has_trait("compile") is not None or hasattr(module, "_orig_mod"):
            self._give_up("the script compiles by itself")
        else:
            missing = missing_on(device)
            if missing is not None:
                self._give_up(missing)

    def step_done(self, step: int) -> None:
        """Stand aside where there is no loss to compute."""
        if step < PATIENCE or not self._active or self._known:
            return
        if self._made:
            self._give_up("no cross entropy is taken of what the model returns")
        elif self._seen:
            self._give_up("what the model returns is small")
        else:
            self._give_up("the model returns nothing in half precision")

    def inputs(self, given: Any) -> Any:
        """What a root is given, cast: what was compiled reads the memory of its inputs."""
        return in_float32(given) if self._made else given

    # -- what is handed out --------------------------------------------------------------------

    def fits(self, tensor: Any) -> bool:
        """See `outputs.StandIn`."""
        if not self._active:
            return False
        self._seen = True
        return (
            tensor.requires_grad
            and tensor.dim() >= 2
            and tensor.numel() >= LEAST_ELEMENTS
            and is_plain_training()
        )

    def make(self, tensor: Any) -> Any:
        """See `outputs.StandIn`."""
        try:
            made = uncast(without_gaps(tensor), self._loss)
        except Exception as error:
            self._fail(error)
            return tensor.float()
        self._made = True
        return made

    # -- the loss ------------------------------------------------------------------------------

    def _loss(self, logits: Any, further: tuple[Any, ...], named: dict[str, Any]) -> Any | None:
        """A `uncast.Loss`: None, for torch to compute it, where we cannot."""
        import torch

        call = _call(further, named)
        half = half_of(logits)
        if not self._active or call is None or half is None:
            return None
        target, weight, *options = call

        def gradient(half: Any, slope: Any, target: Any, weight: Any) -> Any:
            given = (half, slope, target, weight, *options)
            try:
                return self._run(half_cross_entropy_gradient, *given)
            except Exception as error:  # in a thread of autograd torch suppresses none
                self._fail(error)
            return half_cross_entropy_gradient(*given)

        def plainly(logits: Any, target: Any, weight: Any) -> Any:
            return half_cross_entropy(logits, target, weight, *options)

        try:
            with torch.no_grad():
                value = self._run(half_cross_entropy, half, *call)
                kind = (half.dtype, half.dim(), target.dtype, weight is None, *options)
                if kind not in self._known:
                    gradient(half, torch.ones_like(value), target, weight)  # compiled for its size
                    self._prove(half[:ROWS], target[:ROWS], *call[1:])
                    self._known.add(kind)
        except Exception as error:  # if the script is at fault, torch says so
            self._fail(error)
        if not self._active:
            return None
        self._hooks.applied(f"cross entropy of {str(half.dtype).removeprefix('torch.')} logits")
        return of_half(logits, Computed(value, gradient, plainly), (target, weight))

    def _run(self, function: Any, half: Any, *others: Any) -> Any:
        import torch

        if not self._compiled:
            self._compilations.install()
            self._compiled = {f: torch.compile(f) for f in COMPILED}
        given = [x.detach() if hasattr(x, "detach") else x for x in (half, *others)]
        for tensor in given:  # the last batch of an epoch may be smaller
            if hasattr(tensor, "dim") and tensor.dim() and len(tensor) == len(half):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return self._compilations.run_alone(self._compiled[function], *given)

    def _prove(self, half: Any, *call: Any) -> None:
        """Compare loss and gradient of some rows with what torch computes of them."""
        slope = half_cross_entropy(half, *call).cos()
        for function, given, tolerance in (
            (half_cross_entropy, call, LOSS_TOLERANCE),
            (half_cross_entropy_gradient, (slope, *call), GRADIENT_TOLERANCE),
        ):
            ours, right = self._run(function, half, *given), function(half, *given)
            least = tolerance * float(right.float().nan_to_num().abs().max())
            if not ours.allclose(right, tolerance, least, equal_nan=True):
                raise ArithmeticError("loss or gradient differ from what torch computes")

    def _fail(self, error: Exception) -> None:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        self._give_up(f"it could not be computed: {said[:MOST_WORDS]}")

    def _give_up(self, reason: str) -> None:
        if self._active:
            self._active = False
            self._hooks.revoked(reason)


def _call(further: tuple[Any, ...], named: dict[str, Any]) -> Call | None:
    """What is asked for beside the logits; None if that is not ours to compute."""
    import torch

    given = {**dict(zip(("target", "weight"), further, strict=False)), **named}
    target, weight = given.get("target"), given.get("weight")
    parts = [target] if weight is None else [target, weight]
    ours = all(type(part) is torch.Tensor and not part.requires_grad for part in parts)
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if old or not ours:
        return None
    ignored, reduction = given.get("ignore_index", -100), given.get("reduction", "mean")
    return target, weight, ignored, reduction, given.get("label_smoothing", 0.0)


@traced
def half_cross_entropy(
    half: Any, target: Any, weight: Any, ignored: Any, reduction: Any, smoothing: Any
) -> Any:
    """The loss, of what is compiled; as torch computes it under autocast."""
    import torch

    return torch.nn.functional.cross_entropy(
        half.float(),
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )


@traced
def half_cross_entropy_gradient(half: Any, slope: Any, *call: Any) -> Any:
    """Its gradient, in half precision; the softmax is computed again, as nothing is kept of it."""
    import torch

    def loss_of(half: Any) -> Any:
        return half_cross_entropy(half, *call)

    return torch.func.vjp(loss_of, half)[1](slope)[0]


COMPILED = (half_cross_entropy, half_cross_entropy_gradient)
