"""Compute the loss of half-precision outputs in fused kernels, without a float32 copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.root_outputs import STAND_INS
from gpurun.knobs.compiling.applied.compilations import MOST_WORDS, Compilations
from gpurun.knobs.compiling.applied.graph_rewrites import REWRITES
from gpurun.knobs.compiling.compiler_requirements import missing_on, missing_tool, traced
from gpurun.knobs.loss.applied.padded_logits import ENDS_IN_ZEROS, PADDED, columns, confirm, padding
from gpurun.knobs.loss.applied.uncast import (
    Computed,
    half_of,
    in_float32,
    is_plain_training,
    of_half,
    uncast,
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
    vocabularies are large: eager cast, loss and backward move some ten times what it does. Where
    the model is compiled as well, and ends in a linear layer, that computes rows of whole cache
    lines.

    How it bites: other rounding in the loss. `type(logits)` is a subclass of Tensor, each `grad_fn`
    has another name, and gradients of logits are rounded to half precision before a script sees
    them. Extension modules that take the address of logits past torch raise. Compiling takes
    seconds at the first step. Left alone are a loss inside the model's forward, scripts that
    compile, checkpoints around the loss, targets that are probabilities, and other losses: those
    get the logits cast as before.
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
        REWRITES.append(padding(losses.pads))
        hooks.on_root(losses.root_found)
        hooks.on_step(losses.step_done)
        hooks.around_root_call(nullcontext, inputs=losses.inputs)


class _Losses:
    """The losses of this process; it is what `root_outputs.STAND_INS` asks for."""

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

    def pads(self, elements: int) -> bool:
        """Whether logits of a graph are padded: they are to be handed out in half precision."""
        import torch

        autocast = any(map(torch.is_autocast_enabled, ("cuda", "cpu")))
        return self._active and autocast and elements >= LEAST_ELEMENTS

    # -- what is handed out --------------------------------------------------------------------

    def fits(self, tensor: Any) -> bool:
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

    def make(self, tensor: Any) -> Any:
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

    def _loss(self, logits: Any, further: tuple[Any, ...], named: dict[str, Any]) -> Any | None:
        """A `uncast.Loss`: None, for torch to compute it, where we cannot."""
        import torch

        half: Any = half_of(logits)
        call = None if half is None else _call(half, further, named)
        if not self._active or call is None:
            return None
        target, weight, options = call[0], call[1], call[2:]
        extra = _extra(half)

        def gradient(half: Any, slope: Any, target: Any, weight: Any, scale: Any) -> Any:
            given = (half, scale, slope, target, weight, *options, extra)
            try:
                whole = self._run(half_cross_entropy_gradient, *given)
            except Exception as error:  # in a thread of autograd torch suppresses none
                self._fail(error)
                whole = half_cross_entropy_gradient(*given)
            if not extra:
                return whole
            found = columns(whole, half.shape[1])
            ENDS_IN_ZEROS.add(found, half.shape[1], whole.shape[1])
            return found

        def plainly(logits: Any, target: Any, weight: Any, scale: Any) -> Any:
            return _by_torch(logits, target, weight, *options)

        try:
            with torch.no_grad():
                value, scale = self._run(half_cross_entropy, half, *call)
                kind = (half.dtype, half.dim(), target.dtype, weight is None, *options, extra)
                if kind not in self._known:
                    slope = torch.ones_like(value)
                    gradient(half, slope, target, weight, scale)  # compiled for its size
                    self._prove(extra, half[:ROWS], target[:ROWS], *call[1:])
                    self._known.add(kind)
        except Exception as error:  # if the script is at fault, torch says so
            self._fail(error)
        if not self._active:
            return None
        self._hooks.applied(f"cross entropy of {str(half.dtype).removeprefix('torch.')} logits")
        return of_half(logits, Computed(value, gradient, plainly), (target, weight, scale))

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

    def _prove(self, extra: int, half: Any, *call: Any) -> None:
        """Compare loss and gradient of some rows with what torch computes of them."""
        import torch

        def by_torch(half: Any) -> Any:
            return _by_torch(half.float(), *call)

        found: Any = torch.func.vjp(by_torch, half)
        right, gradient_of = found
        slope = right.cos()
        value, scale = self._run(half_cross_entropy, half, *call)
        gradient = self._run(half_cross_entropy_gradient, half, scale, slope, *call, extra)
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


def _call(half: Any, further: tuple[Any, ...], named: dict[str, Any]) -> Call | None:
    """What is asked for beside the logits; None if that is not ours to compute."""
    import torch

    given = {**dict(zip(("target", "weight"), further, strict=False)), **named}
    target: Any = given.get("target")
    weight = given.get("weight")
    parts = [target] if weight is None else [target, weight]
    ours = all(type(part) is torch.Tensor and not part.requires_grad for part in parts)
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if old or not ours or half.dim() < 2:
        return None
    if target.dtype is not torch.long or target.shape != half.shape[:1] + half.shape[2:]:
        return None
    ignored, reduction = given.get("ignore_index", -100), given.get("reduction", "mean")
    return target, weight, ignored, reduction, given.get("label_smoothing", 0.0)


def _extra(half: Any) -> int:
    """Columns between one row and the next that nobody knows; 0 but for a table of padded rows."""
    length = PADDED.length(half) if half.dim() == 2 else None
    return length - half.shape[1] if length is not None and half.stride(0) == length else 0


def _by_torch(
    logits: Any, target: Any, weight: Any, ignored: int, reduction: str, smoothing: float
) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(
        logits,
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )


@traced
def half_cross_entropy(
    half: Any, target: Any, weight: Any, ignored: int, reduction: str, smoothing: float
) -> tuple[Any, Any]:
    """The loss, of what is compiled, as torch computes it under autocast; and what its gradient
    needs to know of each row: the logarithm of the sum of the exponentials.
    """
    logits = half.float()
    top = logits.amax(1, keepdim=True)
    mass = (logits - top).exp().sum(1, keepdim=True)
    scale = top + mass.log()
    taken, counts, weights = weigh(logits, target, weight, ignored)
    loss = ((scale - logits.gather(1, taken)) * weights).where(counts, 0.0)
    if smoothing:
        uniform = scale * logits.shape[1] - logits.sum(1, keepdim=True)
        if weight is not None:
            weighted = logits * spread(weight, logits)
            uniform = scale * weight.sum() - weighted.sum(1, keepdim=True)
        share = smoothing / logits.shape[1]
        loss = (1 - smoothing) * loss + share * uniform.where(counts, 0.0)
    if reduction == "none":
        return loss.squeeze(1), scale
    total = loss.sum()
    return (total / weights.sum() if reduction == "mean" else total), scale


@traced
def half_cross_entropy_gradient(
    half: Any, scale: Any, slope: Any, target: Any, weight: Any,
    ignored: int, reduction: str, smoothing: float, extra: int,
) -> Any:  # fmt: skip
    """Its gradient, in half precision, with so many columns of zeros at its end."""
    import torch

    logits = half.float()
    taken, counts, weights = weigh(logits, target, weight, ignored)
    classes = spread(torch.arange(logits.shape[1], device=half.device), logits)
    ours: Any = (1 - smoothing) * weights
    whole, others = ours, 0.0
    if smoothing:
        share = smoothing / logits.shape[1] * counts
        others = share if weight is None else share * spread(weight, logits)
        whole = ours + share * (logits.shape[1] if weight is None else weight.sum())
    found = (logits - scale).exp() * whole - others - torch.where(classes == taken, ours, 0.0)
    if reduction == "none":
        slope = slope.unsqueeze(1)
    elif reduction == "mean":
        slope = slope / weights.sum()
    found = (found * slope).where(counts, 0.0).to(half.dtype)
    return torch.nn.functional.pad(found, (0, extra)) if extra else found


@traced
def weigh(logits: Any, target: Any, weight: Any, ignored: int) -> tuple[Any, Any, Any]:
    """The classes of the targets, which of them count, and what each weighs."""
    target = target.unsqueeze(1)
    counts = target != ignored
    taken = target.where(counts, 0)
    return taken, counts, counts.to(logits.dtype) * (1 if weight is None else weight[taken])


@traced
def spread(classes: Any, logits: Any) -> Any:
    """Values by class, so that they meet the logits."""
    return classes.view(-1, *[1] * (logits.dim() - 2))


COMPILED = (half_cross_entropy, half_cross_entropy_gradient)
