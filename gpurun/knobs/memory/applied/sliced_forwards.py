"""Run the forward of root modules on slices of each batch, and join what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.autograd_state import recorded_otherwise
from gpurun.knobs.applied.call_types import Args, Forward, Kwargs
from gpurun.knobs.applied.replaced_forwards import ReplacedForwards, cannot_choose
from gpurun.knobs.applied.tensor_trees import foreign, leaves, map_tensors
from gpurun.knobs.memory.applied.batch_slices import (
    NotPerSample,
    join,
    kinds_of_output,
    rows_from,
    rows_of,
    signature_of,
    slice_sizes,
)
from gpurun.knobs.memory.applied.recompute import (
    TOLERANCE,
    Moment,
    Place,
    checkpointed,
    rehearse,
)
from gpurun.knobs.memory.memory_need import unfit_root

TRIED_ROWS = 4
"""So many rows of the first batch show whether slices make the whole; a batch need not fit."""
Signature = tuple[tuple[int, bool], ...]
ROUNDING = 0.005
"""Relative difference of float32 outputs of other batch sizes: kernels sum in another order."""


class _Root:
    """`kinds`: by what it is given, of each tensor that it returns whether it has rows."""

    def __init__(self, module: Module) -> None:
        self.norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
        self.kinds: dict[Signature, list[bool]] = {}


class SlicedForwards:
    """Runs the forwards of the roots in slices."""

    def __init__(self, parts: int, hooks: Hooks) -> None:
        self._forwards: ReplacedForwards[_Root] = ReplacedForwards(self._run)
        self._parts = parts
        self._hooks = hooks

    def root_found(self, module: Module) -> None:
        """Replace the forward of a new root."""
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        reason = unfit_root(module, self._hooks) or cannot_choose(module)
        if reason is None:
            self._forwards.choose(module, _Root(module))
        else:
            self._hooks.skipped(reason)

    def _run(
        self, module: Module, root: _Root, original: Forward, args: Args, kwargs: Kwargs
    ) -> object:
        if not (module.training and torch.is_grad_enabled()) or recorded_otherwise((args, kwargs)):
            return original(module, *args, **kwargs)
        rows = rows_of((args, kwargs))
        sizes = slice_sizes(rows, self._parts)
        if len(sizes) < 2:
            return original(module, *args, **kwargs)
        try:
            kinds = _kinds(module, root, original, args, kwargs)
        except Exception as reason:
            return self._leave(module, original, args, kwargs, reason)
        parts, start = [], 0
        for size in sizes:
            some, named = rows_from((args, kwargs), rows, start, size)
            parts.append(checkpointed(original, module, some, named, Moment(())))
            start += size
        try:
            output = join(parts, sizes, kinds)
        except Exception as reason:
            return self._leave(module, original, args, kwargs, reason)
        self._hooks.applied(f"{type(module).__name__}: {self._parts} slices a batch")
        return output

    def _leave(
        self, module: Module, original: Forward, args: Args, kwargs: Kwargs, reason: Exception
    ) -> object:
        self._forwards.leave(module)
        text = str(reason) if isinstance(reason, NotPerSample) else type(reason).__name__
        self._hooks.revoked(f"{type(module).__name__}: {text}")
        return original(module, *args, **kwargs)


def _kinds(
    module: Module, root: _Root, original: Forward, args: Args, kwargs: Kwargs
) -> list[bool]:
    """The kinds of the module's output. Raises NotPerSample if it cannot run in slices."""
    norm = next((norm for norm in root.norms if norm.training), None)
    if norm is not None:
        name = type(norm).__name__
        raise NotPerSample(f"{name} takes its statistics over the whole batch")
    strange = foreign((args, kwargs))
    if strange is not None:
        raise NotPerSample(f"it is given an object ({strange})")
    signature = signature_of((args, kwargs), rows_of((args, kwargs)))
    if signature not in root.kinds:
        root.kinds[signature] = _rehearsed(module, original, (args, kwargs))
    return root.kinds[signature]


def _rehearsed(module: Module, original: Forward, given: tuple[Args, Kwargs]) -> list[bool]:
    """Compare a few rows at once with their halves."""
    rows = rows_of(given)
    tried = min(rows, TRIED_ROWS)
    sizes = slice_sizes(tried, 2)
    low = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))

    def run(start: int, size: int) -> tuple[object, list[Place]]:
        few = rows_from(given, rows, start, size)
        few = map_tensors(few, lambda tensor: tensor.detach().clone())
        versions = [tensor._version for tensor in leaves(few)]
        try:
            found = rehearse(module, original, *few)
        except Exception as error:
            raise NotPerSample(f"it cannot run on {size} rows ({type(error).__name__})") from None
        if versions != [tensor._version for tensor in leaves(few)]:
            raise NotPerSample("it changes its input in place")
        return found

    places = run(0, tried)[1]
    if places:
        raise NotPerSample(f"its forward changes a buffer ({places[0][1]})")
    with _evaluating(module):
        whole = run(0, tried)[0]
        parts = [run(sum(sizes[:i]), size)[0] for i, size in enumerate(sizes)]
    return kinds_of_output(whole, parts, sizes, TOLERANCE if low else ROUNDING)


@contextmanager
def _evaluating(module: Module) -> Iterator[None]:
    """Without dropout; the flags are set, not `eval` called, which models extend."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
