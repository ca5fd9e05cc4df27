"""Update all parameters in a few kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.source_forms import OptimizerArgument, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

DEVICES = ("cuda", "cpu")


class FusedOptimizer(Knob):
    """The `fused=True` (or `foreach=True`) path of torch's own optimizers.

    Helps when the optimizer's many small kernels take a share of the step: one fused kernel updates
    a whole list of parameters. On CUDA torch takes the foreach path by itself, on the CPU neither.

    Risks: sums round differently, and torch writes the choice, and the device of its step counters,
    into the state dict. So the path is chosen only while `step` runs. The state dict, the printed
    text and the pickle are those of the untouched optimizer. Loading works both ways. A script that
    sets either path, and optimizers with a `step` of their own, are left alone.
    """

    name = "fused_optimizer"
    answers = (FindingType.LAUNCH_BOUND,)
    effect = Effect.NUMERICS
    choices = ("fused", "foreach")
    order = 30
    acts_on = "optimizer"
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Fused where the class has it, else foreach where torch does not take it by itself."""
        if not facts.optimizers:
            return Skip("there is no optimizer of torch")
        tables = [x.hyperparameters for x in facts.optimizers]
        free = [t for t in tables if t.get("fused") is None and t.get("foreach") is None]
        if not free:
            return Skip("the script chooses the optimizer's path itself")
        if any("fused" in table for table in free):
            return ["fused"]
        if facts.device == "cpu" and any("foreach" in table for table in free):
            return ["foreach"]
        return Skip("this optimizer has no faster path than the one it takes")

    def source_forms(self, value: str) -> Sequence[SourceForm]:
        """The path by its name."""
        return [OptimizerArgument(value, "True")]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Attach to each optimizer that knows the path; it is judged at its first step."""

        def built(optimizer: Optimizer) -> None:
            name = type(optimizer).__name__
            if value not in optimizer.defaults:
                hooks.skipped(f"{name} has no {value} path")
            elif any(g.get(p) is not None for g in optimizer.param_groups for p in _PATHS):
                hooks.skipped(f"{name}: the script chooses its path itself")
            else:
                _Path(optimizer, value, hooks)

        hooks.after_optimizer(built)


_PATHS = ("fused", "foreach")


class _Path:
    """Chooses the path of one optimizer while its `step` runs.

    Hooks of an optimizer are not part of its pickle, so copies of it are plain optimizers.
    """

    def __init__(self, optimizer: Optimizer, path: str, hooks: Hooks) -> None:
        self._path = path
        self._hooks = hooks
        self._judged_groups = 0
        self._without_gradient: list[Tensor] = []
        """Parameters that had none when the optimizer was judged: theirs may be sparse."""
        self._registered = [
            optimizer.register_step_pre_hook(self.begin),
            optimizer.register_step_post_hook(self.end),
            optimizer.register_state_dict_post_hook(self.clean),
            optimizer.register_load_state_dict_post_hook(self.loaded),
        ]

    def begin(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before a step: choose the path, if the optimizer is (still) fit for it."""
        if self._judged_groups != len(optimizer.param_groups) or self._gradients_came():
            reason = _unfit(optimizer, self._path)
            if reason is not None:
                tell = self._hooks.revoked if self._judged_groups else self._hooks.skipped
                tell(f"{type(optimizer).__name__}: {reason}")
                for registered in self._registered[:2]:
                    registered.remove()
                return
            self._judged_groups = len(optimizer.param_groups)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self._without_gradient = [p for p in parameters if p.grad is None]
            self._hooks.applied(f"{type(optimizer).__name__}: {self._path}")
            if self._path == "fused":
                _move_counters(optimizer)
        for group in optimizer.param_groups:
            group[self._path] = True

    def _gradients_came(self) -> bool:
        return any(p.grad is not None for p in self._without_gradient)

    def end(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """After a step: leave the groups as the script made them."""
        for group in optimizer.param_groups:
            group[self._path] = None

    def clean(self, optimizer: Optimizer, document: dict[str, Any]) -> dict[str, Any]:
        """The state dict with step counters on the host, where torch keeps them by default."""
        on_device = {
            index
            for group in document["param_groups"]
            if not group.get("capturable")
            for index in group["params"]
            if getattr(document["state"].get(index, {}).get("step"), "is_cuda", False)
        }
        if not on_device:
            return document
        state = {
            index: {**entry, "step": entry["step"].cpu()} if index in on_device else entry
            for index, entry in document["state"].items()
        }
        return {**document, "state": state}

    def loaded(self, optimizer: Optimizer) -> None:
        """A state dict was loaded: look again before the next step."""
        self._judged_groups = 0


def _unfit(optimizer: Optimizer, path: str) -> str | None:
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    devices = {p.device.type for p in parameters}
    if not getattr(type(optimizer).step, "__module__", "").startswith("torch.optim."):
        return "it has a step of its own"
    if any(g.get("differentiable") for g in optimizer.param_groups):
        return "it is differentiable"
    if any(g.get(p) is not None for g in optimizer.param_groups for p in _PATHS):
        return "the script chooses its path itself"
    if not all(p.is_floating_point() for p in parameters):
        return "its parameters are not all floating-point"
    if len(devices) != 1 or not devices <= set(DEVICES):
        return f"its parameters are on {', '.join(sorted(devices)) or 'no device'}"
    if isinstance(optimizer, torch.optim.Adagrad) and path == "fused" and devices != {"cpu"}:
        return "fused Adagrad runs on the CPU only"
    if any(p.grad is not None and p.grad.layout is not torch.strided for p in parameters):
        return "it has sparse gradients"
    return None


def _move_counters(optimizer: Optimizer) -> None:
    """Bring the step counters of a loaded state dict to where the fused kernel reads them."""
    for parameter, state in optimizer.state.items():
        counter = state.get("step")
        if getattr(counter, "device", parameter.device) != parameter.device:
            state["step"] = counter.to(parameter.device)
