"""Blocks of a model of which only the inputs are kept, each judged at its first training call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.autograd_state import recorded_otherwise
from gpurun.knobs.applied.replaced_calls import (
    Args,
    Forward,
    Kwargs,
    ReplacedForwards,
    cannot_choose,
)
from gpurun.knobs.applied.root_calls import foreign, leaves, map_tensors
from gpurun.knobs.memory.applied.recompute import (
    Buffer,
    Moment,
    agree,
    checkpointed,
    rehearse,
)


@dataclass
class _Block:
    """`places`: the buffers that its forward changes, None before its first training call."""

    family: str
    places: list[Buffer] | None = None


class CheckpointedBlocks:
    """The chosen blocks of this process."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._forwards: ReplacedForwards[_Block] = ReplacedForwards(self._run)
        self._waiting = False

    def choose(self, root: Module, blocks: list[Module]) -> None:
        """Checkpoint these blocks of `root` from their next training call on."""
        if not blocks:
            self._skip(f"{type(root).__name__} has no repeated blocks")
            return
        reason = next((r for block in blocks if (r := _unfit_block(block)) is not None), None)
        if reason is not None:
            self._skip(f"{type(blocks[0]).__name__}: {reason}")
            return
        self._waiting = True
        family = f"{len(blocks)} × {type(blocks[0]).__name__}"
        for block in blocks:
            self._forwards.choose(block, _Block(family))

    def step_done(self, step: int) -> None:
        """Say so if nobody calls the blocks."""
        if step == 2 and self._waiting:
            self._skip("the forward of the model's blocks is not called")

    def _skip(self, reason: str) -> None:
        self._waiting = False
        self._hooks.skipped(reason)

    def _run(
        self, module: Module, block: _Block, original: Forward, args: Args, kwargs: Kwargs
    ) -> object:
        if not (module.training and torch.is_grad_enabled()) or recorded_otherwise((args, kwargs)):
            return original(module, *args, **kwargs)
        if (name := foreign((args, kwargs))) is not None:
            return self._leave(module, original, args, kwargs, f"it is given an object ({name})")
        if block.places is not None:
            return checkpointed(original, module, args, kwargs, Moment(block.places))
        reason = _study(module, block, original, args, kwargs)
        if reason is not None:
            return self._leave(module, original, args, kwargs, reason)
        self._waiting = False
        self._hooks.applied(block.family)
        return self._first_call(module, block, original, args, kwargs)

    def _first_call(
        self, module: Module, block: _Block, original: Forward, args: Args, kwargs: Kwargs
    ) -> object:
        """With copies of the inputs, so that it is right even if the script changes them later."""

        def changed() -> None:
            self._forwards.leave(module)
            self._skip(f"{type(module).__name__}: its input is changed in place after it ran")

        moment = _Watched(block.places or [], leaves((args, kwargs)), changed)
        args, kwargs = map_tensors((args, kwargs), lambda tensor: tensor.clone())
        return checkpointed(original, module, args, kwargs, moment)

    def _leave(
        self, module: Module, original: Forward, args: Args, kwargs: Kwargs, reason: str
    ) -> object:
        self._forwards.leave(module)
        self._skip(f"{type(module).__name__}: {reason}")
        return original(module, *args, **kwargs)


class _Watched(Moment):
    """A moment that tells, when it comes again, if tensors were changed in place since."""

    def __init__(
        self, places: list[Buffer], tensors: list[Tensor], changed: Callable[[], None]
    ) -> None:
        super().__init__(places)
        # detached tensors share the version, and keep no graph alive
        self._tensors = [(tensor.detach(), tensor._version) for tensor in tensors]
        self._changed = changed

    def __enter__(self) -> None:
        if any(tensor._version != version for tensor, version in self._tensors):
            self._changed()
        super().__enter__()


def _study(
    module: Module, block: _Block, original: Forward, args: Args, kwargs: Kwargs
) -> str | None:
    """Why a block's forward cannot be run again, None if it can; finds the buffers it changes."""
    results = []
    try:
        for _ in range(2):
            given = map_tensors((args, kwargs), lambda tensor: tensor.detach().clone())
            versions = [tensor._version for tensor in leaves(given)]
            result, places = rehearse(module, original, *given)
            if versions != [tensor._version for tensor in leaves(given)]:
                return "it changes its input in place"
            results.append(result)
        if not agree(results[0], results[1]):
            return "its forward returns another result when it runs again"
    except Exception as error:
        return f"it cannot run twice ({type(error).__name__})"
    block.places = places
    return None


def _unfit_block(block: Module) -> str | None:
    if any(isinstance(module, torch.nn.SyncBatchNorm) for module in block.modules()):
        return "SyncBatchNorm would communicate a second time"
    return cannot_choose(block)


SHARE = 0.8
"""Classes that hold this part of the most parameters that any holds are as good as that one."""
LEAST = 2
"""A block that does not repeat is no block."""


def repeated_blocks(root: Module) -> list[Module]:
    """The model's blocks in the order in which it names them, none if nothing repeats.

    A block has modules of its own (a lone layer keeps little beside its input) and lies in no other
    block. It takes the most numerous of the classes that hold most parameters: the bottlenecks of a
    ResNet, not its four stages. Among equals it takes the outermost.
    """
    found: dict[type, list[Module]] = {}
    _collect(root, found, frozenset())
    repeated = {cls: blocks for cls, blocks in found.items() if len(blocks) >= LEAST}
    held = {cls: sum(_parameters(block) for block in blocks) for cls, blocks in repeated.items()}
    most = max(held.values(), default=0)
    if not most:
        return []
    large = [blocks for cls, blocks in repeated.items() if held[cls] >= SHARE * most]
    return max(large, key=len)


def _collect(module: Module, found: dict[type, list[Module]], around: frozenset[type]) -> None:
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    for child in module.children():
        cls = type(child)
        inner = around
        if next(child.children(), None) is not None and not isinstance(child, containers):
            if cls not in around and not any(child is block for block in found.get(cls, ())):
                found.setdefault(cls, []).append(child)
            inner = around | {cls}
        _collect(child, found, inner)


def _parameters(module: Module) -> int:
    return sum(p.numel() for p in module.parameters())
