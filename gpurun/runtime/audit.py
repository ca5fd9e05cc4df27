"""What the loss guard compares between trials, from first steps outside the measured window.

Looking closely costs synchronisations and copies, so it ends before anything is measured. It draws
no random numbers and changes no tensor.
"""

from __future__ import annotations

import gc
import math
import random
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from gpurun.records.events import AuditEvent, SamplesEvent
from gpurun.runtime.loaders import LOADERS
from gpurun.runtime.optimizers import hyperparameters
from gpurun.runtime.patching import guarded
from gpurun.runtime.recorder import RECORDER
from gpurun.runtime.roots import ROOTS
from gpurun.runtime.steps import CLOCK, LoaderState

COPY_LIMIT_BYTES = 2 << 30
"""Parameters beyond this size are not copied to measure their change."""
REFETCH_SAMPLES = 8
REFETCH_SEED = 20011
ORDER_LIMIT = 500_000
"""Data-set indices remembered a pass over a loader."""


class Audit:
    """Audits the first `steps` steps; the order of samples is remembered to the end."""

    def __init__(self, torch: Any, steps: int) -> None:
        self._torch = torch
        self._steps = steps
        self._active = steps > 0
        self._names: dict[int, str] = {}
        self._gradients: dict[str, float | None] = {}
        self._before: dict[str, Any] = {}
        self._inputs = 0
        self._sides: dict[str, tuple[Any, Any]] | None = None
        self._orders: dict[tuple[int, int], list[int]] = {}
        self._checksums: dict[tuple[int, int], dict[str, tuple[int, ...]]] = {}

    def begin(self) -> None:
        """Start looking."""
        LOADERS.on_batch = guarded("audit of batches", self._batch)
        if self._active:
            ROOTS.on_inputs = guarded("audit of inputs", self._root_inputs)
            CLOCK.before_step.append(guarded("audit of gradients", self._before_step))

    def after_step(self, step: int) -> None:
        """Write what was seen in this step; after the last one stop looking."""
        try:
            RECORDER.event(self._event(step))
        except Exception as error:
            RECORDER.hook_failed("audit of a step", error)
        self._gradients, self._before, self._inputs = {}, {}, 0
        if step >= self._steps:
            self._active = False
            ROOTS.on_inputs = None
            CLOCK.before_step.clear()
            self._sides = {}

    def finish(self) -> None:
        """Write the order of samples, a pass an event."""
        for (loader, number), order in self._orders.items():
            checksums = self._checksums.get((loader, number), {})
            RECORDER.event(
                SamplesEvent(
                    loader=loader,
                    epoch=number,
                    order=tuple(order),
                    checksums=checksums,
                    repeatable=guarded("second fetch", self._repeatable)(loader, checksums),
                )
            )
        self._orders, self._checksums = {}, {}

    # -- what is looked at ---------------------------------------------------------------------

    def _batch(self, loader: LoaderState, indices: Any, batch: Any) -> None:
        if not self._torch.is_grad_enabled() or not isinstance(indices, (list, tuple)):
            return
        if not indices or not isinstance(indices[0], int):
            return
        key = (loader.number, loader.passes)
        order = self._orders.setdefault(key, [])
        if len(order) < ORDER_LIMIT:
            order.extend(indices)
        if self._active:
            found = self._checksums.setdefault(key, {})
            for position, index in enumerate(indices):
                found[str(index)] = tuple(
                    _checksum(leaf[position]) for leaf in _leaves(batch, len(indices))
                )

    def _repeatable(
        self, number: int, checksums: dict[str, tuple[int, ...]]
    ) -> tuple[bool, ...] | None:
        """Fetch a few samples again under other seeds: which leaves come out as before?

        Only at the end of a trial: it draws random numbers and touches the data set.
        """
        loader = next((x for x, s in LOADERS.states.items() if s.number == number), None)
        if loader is None or not checksums or not loader._auto_collation:
            return None
        self._torch.manual_seed(REFETCH_SEED)
        random.seed(REFETCH_SEED)
        same: list[bool] | None = None
        for index in list(checksums)[:REFETCH_SAMPLES]:
            batch = loader.collate_fn([loader.dataset[int(index)]])
            again = [_checksum(leaf[0]) for leaf in _leaves(batch, 1)]
            if len(again) != len(checksums[index]):
                return None
            equal = [a == b for a, b in zip(again, checksums[index], strict=True)]
            same = equal if same is None else [a and b for a, b in zip(same, equal, strict=True)]
        return None if same is None else tuple(same)

    def _root_inputs(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._torch.is_grad_enabled():
            for value in _tensors((args, kwargs)):
                self._inputs = zlib.crc32(_bytes(value), self._inputs)

    def _before_step(self, optimizer: Any) -> None:
        if not self._names:
            self._name_parameters()
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        copying = sum(p.numel() * p.element_size() for p in parameters) < COPY_LIMIT_BYTES
        for position, parameter in enumerate(parameters):
            name = self._names.setdefault(id(parameter), f"parameter {position}")
            self._gradients[name] = None if parameter.grad is None else _norm(parameter.grad)
            if copying and name not in self._before:
                self._before[name] = (parameter, parameter.detach().clone())

    def _name_parameters(self) -> None:
        for number, root in enumerate(ROOTS.modules()):
            for name, parameter in root.named_parameters():
                self._names[id(parameter)] = f"{number}.{name}"

    def _event(self, step: int) -> AuditEvent:
        changes = [_norm(p.detach() - old) for p, old in self._before.values()]
        loss = CLOCK.last_loss()
        return AuditEvent(
            step=step,
            loss=loss,
            finite=loss is None or math.isfinite(loss),
            hyperparameters=tuple(
                hyperparameters(group) for o in list(CLOCK.optimizers) for group in o.param_groups
            ),
            gradient_norms=dict(self._gradients),
            parameter_norms={name: _norm(p) for name, (p, _) in self._before.items()},
            update_norm=math.sqrt(sum(c * c for c in changes)) if changes else None,
            side_update_norms=self._side_updates(),
            inputs=f"{self._inputs:08x}" if self._inputs else None,
        )

    def _side_updates(self) -> dict[str, float]:
        """How far modules of a root's class that are no roots (EMA copies) moved since then."""
        if self._sides is None:
            self._sides = {name: (m, _copy(m)) for name, m in self._side_modules()}
            return {}
        moved = {}
        for name, (module, old) in self._sides.items():
            fresh = _copy(module)
            moved[name] = math.sqrt(
                sum(_norm(a - b) ** 2 for a, b in zip(fresh, old, strict=False))
            )
            self._sides[name] = (module, fresh)
        return moved

    def _side_modules(self) -> Iterator[tuple[str, Any]]:
        roots = ROOTS.modules()
        inside = {id(m) for root in roots for m in root.modules()}
        classes = {type(root) for root in roots}
        found = [m for m in gc.get_objects() if type(m) in classes and id(m) not in inside]
        for number, module in enumerate(found):
            size = sum(p.numel() * p.element_size() for p in module.parameters())
            if size < COPY_LIMIT_BYTES:
                yield f"{type(module).__name__} {number}", module


def _norm(tensor: Any) -> float:
    return float(tensor.detach().float().norm())


def _copy(module: Any) -> list[Any]:
    return [p.detach().clone() for p in module.parameters()]


def _bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(memoryview(flat.view(torch.uint8).numpy()))


def _checksum(value: Any) -> int:
    if hasattr(value, "is_floating_point"):
        return zlib.crc32(_bytes(value))
    return zlib.crc32(repr(value).encode())


def _tensors(value: Any) -> Iterator[Any]:
    if hasattr(value, "is_floating_point"):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _leaves(batch: Any, size: int) -> list[Any]:
    """The parts of a batch that have one entry a sample, in a fixed order."""
    if hasattr(batch, "is_floating_point"):
        return [batch] if batch.dim() and batch.shape[0] == size else []
    if isinstance(batch, Mapping):
        return [leaf for key in batch for leaf in _leaves(batch[key], size)]
    if isinstance(batch, (list, tuple)):
        if len(batch) == size and not any(hasattr(x, "is_floating_point") for x in batch):
            return [batch]
        return [leaf for item in batch for leaf in _leaves(item, size)]
    return []
