"""Run the model on slices of each batch, so that the activations of one slice live at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
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
    checkpointed,
    recorded_otherwise,
    rehearse,
)
from gpurun.knobs.memory.memory_need import not_needed, unfit_root
from gpurun.records.facts import Facts

VALUES = (2, 4, 8)
TRIED_ROWS = 4
"""So many rows of the first batch show whether slices make the whole; a batch need not fit."""
Signature = tuple[tuple[int, bool], ...]
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
    """`kinds`: by what it is given, of each tensor that it returns whether it has rows."""

    def __init__(self, module: Any) -> None:
        from torch.nn.modules.batchnorm import _BatchNorm

        self.norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm)]
        self.kinds: dict[Signature, list[bool]] = {}


class _Slices:
    """Runs the forwards of the roots in slices."""

    def __init__(self, parts: int, hooks: Hooks) -> None:
        self.forwards: ReplacedForwards[_Root] = ReplacedForwards(self._run)
        self._parts = parts
        self._hooks = hooks

    def _run(self, module: Any, root: _Root, original: Any, args: Any, kwargs: Any) -> Any:
        import torch

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

    def _leave(self, module: Any, original: Any, args: Any, kwargs: Any, reason: Exception) -> Any:
        self.forwards.leave(module)
        text = str(reason) if isinstance(reason, NotPerSample) else type(reason).__name__
        self._hooks.revoked(f"{type(module).__name__}: {text}")
        return original(module, *args, **kwargs)


def _kinds(module: Any, root: _Root, original: Any, args: Any, kwargs: Any) -> list[bool]:
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


def _rehearsed(module: Any, original: Any, given: Any) -> list[bool]:
    """Compare a few rows at once with their halves."""
    import torch

    rows = rows_of(given)
    tried = min(rows, TRIED_ROWS)
    sizes = slice_sizes(tried, 2)
    low = any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))

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
