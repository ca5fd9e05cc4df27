"""Records the first steps of a trial, from which the loss guard compares trainings.

Looking closely costs synchronisations and copies, so it ends before anything is measured; only
learning rates and the order of samples are followed to the end. It draws no random numbers, changes
no tensor, and keeps its copies in the host's memory. Meanwhile samples draw theirs by their index.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gpurun.records.events import BUFFERS, AuditEvent, RatesEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.seeds import generator_state
from gpurun.runtime.core.tensor_values import host_copy, is_tensor, moved_by, norm, tensors, values
from gpurun.runtime.observe.optimizers import hyperparameters
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.watched_loaders import LOADERS
from gpurun.runtime.trial.sample_passes import SamplesAudit
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS

GRADIENT_VALUES = 2048
"""Of all gradients of a step."""
SETTINGS_LENGTH = 120
RATE_CHANGES = 20_000
"""Changes of the learning rates remembered a trial."""

Find = Callable[[], list[Tensor]]
"""Finds tensors that move without being optimized: buffers, a copy of a model, a table of tensors.
A module may replace the tensor of a buffer."""


class TrainingAudit:
    """Audits the first `steps` steps; the order of samples is remembered to the end.

    With a folder, `samples_in`, the samples of these steps are loaded again at their end. Values of
    gradients are kept of the first `values_of` steps: in the first one the parameters of two trials
    are equal.
    """

    def __init__(self, steps: int, samples_in: Path | None, values_of: int = 1) -> None:
        self._steps = steps
        self._values_of = values_of
        self._active = steps > 0
        self._process = os.getpid()
        self._samples_in = samples_in
        self._samples = SamplesAudit(steps)
        self._hook: Callable[[Optimizer], None] = guarded("audit of gradients", self._before_step)
        self._listener: Callable[[int], None] = guarded("audit of rates", self._rates_now)
        self._step = 1
        self._names: dict[int, str] = {}
        self._roots_named = 0
        self._unoptimized: dict[str, tuple[Find, list[Tensor]]] | None = None
        self._rates: list[tuple[int, tuple[float | None, ...]]] = []
        self._forget_step()

    def _forget_step(self) -> None:
        self._gradients: dict[str, float | None] = {}
        self._gradient_values: dict[str, tuple[float, ...]] = {}
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        self._input_values: tuple[float, ...] = ()
        self._drawn: int | None = None
        self._draws: bool | None = None
        self._modules: dict[str, str] = {}

    def begin(self) -> None:
        """Start looking."""
        CLOCK.listeners.append(self._listener)
        LOADERS.on_batch = guarded("audit of batches", self._samples.batch)
        if self._active:
            ROOTS.on_inputs = guarded("audit of inputs", self._root_inputs)
            SAMPLE_SEEDS.begin()
            CLOCK.before_step.append(self._hook)
        else:
            self._samples.looking = False

    def after_step(self, step: int) -> None:
        """Write what was seen in this step; after the last one stop looking."""
        try:
            RECORDER.event(self._event(step))
        except Exception as error:
            RECORDER.hook_failed("audit of a step", error)
        self._forget_step()
        self._step = step + 1
        if step >= self._steps:
            if self._samples_in is not None:
                self._samples.load_again(self._samples_in)
            SAMPLE_SEEDS.end()
            self._stop_looking()

    def abandon(self) -> None:
        """A better clock was found: another audit takes over, this one leaves nothing behind."""
        CLOCK.listeners.remove(self._listener)
        if self._active:
            self._stop_looking()

    def _stop_looking(self) -> None:
        self._active = False
        ROOTS.on_inputs = None
        CLOCK.before_step.remove(self._hook)
        self._unoptimized = {}
        self._samples.looking = False

    def finish(self) -> None:
        """Write what was remembered of the whole trial."""
        if os.getpid() == self._process:  # a child forked by the script ends by the same exit
            RECORDER.event(RatesEvent(tuple(self._rates)))
            self._samples.finish()

    def _rates_now(self, step: int) -> None:
        """In every step of the trial, so cheap: no tensor is looked at."""
        rates = tuple(
            rate if type(rate := group.get("lr")) is float else None
            for optimizer in CLOCK.optimizers
            for group in optimizer.param_groups
        )
        known = self._rates
        if (not known or known[-1][1] != rates) and len(known) < RATE_CHANGES:
            known.append((step, rates))

    def _root_inputs(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not torch.is_grad_enabled():
            return
        first = next(tensors((args, kwargs)), None)
        if first is not None and not self._input_values:
            self._input_values = values(first)
        if self._step in (1, self._steps):
            number = next((i for i, m in enumerate(ROOTS.modules()) if m is module), 0)
            for name, part in module.named_modules():
                mode = "training" if part.training else "evaluating"
                text = f"{type(part).__name__}({part.extra_repr()}), {mode}"
                self._modules[f"{number}.{name}"] = text[:SETTINGS_LENGTH]
        self._drawn = generator_state()

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._drawn is not None:
            self._draws = bool(self._draws) or generator_state() != self._drawn
        if self._roots_named != len(ROOTS.known):
            self._roots_named = len(ROOTS.known)
            for number, root in enumerate(ROOTS.modules()):
                for name, parameter in root.named_parameters():
                    self._names.setdefault(id(parameter), f"{number}.{name}")
        own = f"optimizer {CLOCK.optimizers.get(optimizer) or 0}"
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        each = max(2, GRADIENT_VALUES // max(1, len(parameters)))
        for position, parameter in enumerate(parameters):
            name = self._names.get(id(parameter), f"{own}, parameter {position}")
            gradient = parameter.grad
            self._gradients[name] = None if gradient is None else norm(gradient)
            if gradient is not None and self._step <= self._values_of and not gradient.is_sparse:
                self._gradient_values[name] = values(gradient, each)
            if name not in self._before:
                self._before[name] = (parameter, host_copy(parameter))

    def _event(self, step: int) -> AuditEvent:
        updates = {name: _update(*kept) for name, kept in self._before.items()}
        sampled = [self._gradient_values[name] for name in sorted(self._gradient_values)]
        return AuditEvent(
            step=step,
            loss=CLOCK.last_loss(),
            hyperparameters=tuple(
                hyperparameters(group) for o in list(CLOCK.optimizers) for group in o.param_groups
            ),
            gradient_norms=self._gradients,
            update_norms={name: distance for name, (distance, _) in updates.items()},
            updates_near_zero=tuple(name for name, (_, near) in updates.items() if near),
            side_update_norms=self._side_updates(),
            gradient_values=tuple(x for values in sampled for x in values),
            gradient_counts=tuple(map(len, sampled)),
            input_values=self._input_values,
            draws=self._draws,
            modules=self._modules,
        )

    def _side_updates(self) -> dict[str, float]:
        """Return how far buffers and copies of the model moved since the step before."""
        if self._unoptimized is None:
            found = _unoptimized(ROOTS.modules())
            self._unoptimized = {name: (find, [*map(host_copy, find())]) for name, find in found}
            return {}
        moved = {}
        for name, (find, old) in self._unoptimized.items():
            fresh = [*map(host_copy, find())]
            sides = zip(find(), old, fresh, strict=False)
            moved[name] = math.hypot(
                *(moved_by(t, before, now) for t, before, now in sides if now.shape == before.shape)
            )
            self._unoptimized[name] = (find, fresh)
        return moved


def _update(parameter: Tensor, before: Tensor) -> tuple[float, bool]:
    """How far a parameter moved, and whether it did by the least that its type can hold.

    Then each of its numbers is the same as before, or one of the next two.
    """
    now = host_copy(parameter)
    distance = moved_by(parameter, before, now)
    if not distance or not before.is_floating_point():
        return distance, False
    spacing = torch.finfo(before.dtype).eps * before.abs()
    return distance, bool(((now - before).abs() <= spacing).all())


# -- what moves without being optimized ------------------------------------------------------------


def _unoptimized(roots: list[nn.Module]) -> Iterator[tuple[str, Find]]:
    """Buffers, modules of a root's class that are no roots, tables of tensors by a root's names."""
    for number, root in enumerate(roots):
        for name, module in root.named_modules():
            buffers = module.named_buffers(recurse=False)
            own = [key for key, buffer in buffers if buffer.is_floating_point()]
            if own:
                yield f"{BUFFERS}{number}.{name}", partial(_buffers, module, own)
    inside = {id(m) for root in roots for m in root.modules()}
    classes = {type(root) for root in roots}
    tables = [{n: t.shape for n, t in root.state_dict().items()} for root in roots]
    modules = tables_found = 0
    for thing in gc.get_objects():
        if type(thing) in classes and id(thing) not in inside:
            yield f"{type(thing).__name__} {modules}", partial(_parameters, thing)
            modules += 1
        elif type(thing) is dict and thing and any(_is_table(thing, t, roots) for t in tables):
            yield f"table of parameters {tables_found}", partial(_buffers, thing)
            tables_found += 1


def _parameters(module: nn.Module) -> list[Tensor]:
    return list(module.parameters())


def _buffers(held: Any, names: list[str] | None = None) -> list[Tensor]:
    """The tensors under these names of a module, or all of a table."""
    found = held.values() if names is None else (getattr(held, name, None) for name in names)
    return [tensor for tensor in found if is_tensor(tensor)]


def _is_table(thing: dict[Any, Any], shapes: dict[str, Any], roots: list[nn.Module]) -> bool:
    """True if a dict holds tensors of its own under the names of a root's parameters."""
    if len(thing) < 2 or not all(type(k) is str and k in shapes for k in thing):
        return False
    if not all(is_tensor(t) and t.shape == shapes[k] for k, t in thing.items()):
        return False
    own = {t.data_ptr() for root in roots for t in (*root.parameters(), *root.buffers())}
    return not any(t.data_ptr() in own for t in thing.values())
