"""Run the model on slices of each batch, so that the activations of one slice live at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.batch_slices import (
    NotPerSample,
    join,
    kinds_of_output,
    rows_from,
    rows_of,
    slice_sizes,
)
from gpurun.knobs.forwards import Forwards, cannot_choose
from gpurun.knobs.memory_need import not_needed, unfit_root
from gpurun.knobs.outputs import foreign, leaves, map_tensors
from gpurun.knobs.recompute import (
    TOLERANCE,
    Moment,
    checkpointed,
    recorded_otherwise,
    rehearse,
)
from gpurun.records.facts import Facts

VALUES = (2, 4, 8)
TRIED_ROWS = 4
"""So many rows of the first batch show whether slices make the whole; a batch need not fit."""
ROUNDING = 0.005
"""Relative difference of float32 outputs of other batch sizes: kernels sum in another order."""


class SplitBatch(KnobBase):
    """The same batch, in 2, 4 or 8 slices: the model's forward runs on one after the other.

    Helps a batch that does not fit. Of each slice only the input and the output are kept; the rest
    is computed again when the backward pass comes to it. The outputs are joined, so the loss, the
    clipping and the optimizer see the whole batch, and the gradients are the same but for rounding.

    How it bites: about a third more time, and smaller kernels. Dropout draws other numbers. Only
    for models of which each sample's output depends on that sample alone, which a few rows of the
    first batch must show: not with BatchNorm that trains, and not where the forward returns the
    loss. The forward runs twice on each slice: what it appends or counts by hand is seen so often.
    """

    name: ClassVar[str] = "split_batch"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 72
    acts_on: ClassVar[str] = "model"
    saves_memory: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """As many slices as the batch has pairs of rows."""
        found = not_needed(facts)
        if found is not None:
            return found
        kinds = {kind for root in facts.roots for kind in root.module_types}
        norm = next((kind for kind in sorted(kinds) if "BatchNorm" in kind), None)
        if norm is not None:
            return Skip(f"{norm} takes its statistics over the whole batch")
        rows = facts.result.batch_size
        values = [value for value in VALUES if rows is None or 2 * value <= rows]
        return values or Skip("the batch is too small to split")

    def apply(self, value: int, hooks: Hooks) -> None:
        """Stand in for the forward of each root when it is found."""
        if type(value) is not int or value < 2:
            hooks.skipped(f"cannot split a batch into {value!r}")
            return
        slices = _Slices(value, hooks)

        def root_found(module: Any) -> None:
            import torch

            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                module = module.module
            reason = unfit_root(module, hooks) or cannot_choose(module)
            if reason is None:
                slices.forwards.choose(module, _Root(module))
            else:
                hooks.skipped(reason)

        hooks.on_root(root_found)


class _Root:
    """`kinds`: of each tensor that it returns whether it has a row a sample, None if not known."""

    def __init__(self, module: Any) -> None:
        from torch.nn.modules.batchnorm import _BatchNorm

        self.norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
        self.kinds: list[bool] | None = None


class _Slices:
    """Runs the forwards of the roots in slices."""

    def __init__(self, parts: int, hooks: Hooks) -> None:
        self.forwards: Forwards[_Root] = Forwards(self._run)
        self._parts = parts
        self._hooks = hooks

    def _run(self, module: Any, root: _Root, original: Any, args: Any, kwargs: Any) -> Any:
        import torch

        rows = rows_of((args, kwargs))
        sizes = slice_sizes(rows, self._parts)
        training = module.training and torch.is_grad_enabled() and not recorded_otherwise()
        if not training or len(sizes) < 2:
            return original(module, *args, **kwargs)
        try:
            _check(module, root, original, args, kwargs)
            return self._in_slices(module, root, original, args, kwargs)
        except NotPerSample as reason:
            self.forwards.leave(module)
            self._hooks.skipped(f"{type(module).__name__}: {reason}")
        return original(module, *args, **kwargs)

    def _in_slices(self, module: Any, root: _Root, original: Any, args: Any, kwargs: Any) -> Any:
        rows = rows_of((args, kwargs))
        sizes = slice_sizes(rows, self._parts)
        parts, start = [], 0
        for size in sizes:
            some, named = rows_from((args, kwargs), rows, start, size)
            parts.append(checkpointed(original, module, some, named, Moment(())))
            start += size
        output = join(parts, sizes, root.kinds or [])
        self._hooks.applied(f"{type(module).__name__}: {self._parts} slices a batch")
        return output


def _check(module: Any, root: _Root, original: Any, args: Any, kwargs: Any) -> None:
    """Whether the module can run in slices. Raises NotPerSample if it cannot."""
    norm = next((norm for norm in root.norms if norm.training), None)
    if norm is not None:
        name = type(norm).__name__
        raise NotPerSample(f"{name} takes its statistics over the whole batch")
    strange = foreign((args, kwargs))
    if strange is not None:
        raise NotPerSample(f"it is given an object ({strange})")
    if root.kinds is None:
        root.kinds = _rehearsed(module, original, (args, kwargs))


def _rehearsed(module: Any, original: Any, given: Any) -> list[bool]:
    """Compare a few rows at once with their halves."""
    import torch

    rows = rows_of(given)
    tried = min(rows, TRIED_ROWS)
    sizes = slice_sizes(tried, 2)
    low = torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()

    def run(start: int, size: int) -> tuple[Any, list[Any]]:
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
def _evaluating(module: Any) -> Iterator[None]:
    """Without dropout; the flags are set, not `eval` called, which models extend."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        yield
    finally:
        for part, mode in modes:
            part.training = mode
