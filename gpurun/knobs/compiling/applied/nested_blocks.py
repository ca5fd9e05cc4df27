"""Compile repeated blocks once: in a model's graph, each of them is a call of one inner graph.

Dynamo makes such a call of a function that `torch.compiler.nested_compile_region` marks, here the
forward of the blocks' class. The whole model is still one graph, for instance one CUDA graph. Its
start takes less time (on an H200 GPT-124M 16 s in place of 26 s, at the same step). Everybody but
our own compiled calls finds the forward as it is: copies, exports, what the script compiles.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.batchnorm import _NormBase
from torch.torch_version import TorchVersion

from gpurun.knobs.applied.call_types import Args, Forward, Kwargs
from gpurun.knobs.applied.replaced_forwards import among, cannot_choose, drop_frames_before
from gpurun.knobs.compiling.applied.nested_graphs import CannotNest
from gpurun.knobs.compiling.applied.repeated_blocks import repeated_blocks
from gpurun.records.frames import drop_frame

SINCE = "2.9"
"""The first torch that hands a block the random numbers of its forward again in its backward."""
MOST_GRAPHS = 1000
"""Inner graphs of a class, from torch 2.12 on: by default it raises an error at the ninth."""
MOST_WORDS = 160


class _Nesting:
    """`active` while a compiled call runs in whose graph blocks are calls of inner graphs."""

    active = False


NESTING = _Nesting()
_marked: set[type[Module]] = set()


def nested_blocks(root: Module) -> tuple[list[list[Module]], str | None]:
    """The groups of blocks to compile once, and why there are none although blocks repeat."""
    if TorchVersion(torch.__version__) < SINCE:
        return [], None
    groups = repeated_blocks(root)
    reason = next((why for blocks in groups if (why := _unfit(blocks)) is not None), None)
    return ([], reason) if reason is not None else (groups, None)


def _unfit(blocks: Sequence[Module]) -> str | None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "torch splits the graph where ranks exchange gradients"
    if not isinstance(type(blocks[0]).forward, FunctionType):
        return f"the forward of {type(blocks[0]).__name__} is no function"
    for part in blocks[0].modules():
        if isinstance(part, _NormBase) and part.track_running_stats:
            return f"{type(part).__name__} writes running averages"
    return next((why for block in blocks if (why := cannot_choose(block)) is not None), None)


class NestedCall:
    """The compiled call of a root, with one graph for all blocks of a group as long as torch can.

    `compiled(nested)` makes the compiled call of the root with or without inner graphs. The first
    of them compiles the root as one graph, or raises an error before anything has run. From then on
    the second one takes its place in training, or else in evaluation, and `gave_up(reason)` is
    called.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Module]],
        compiled: Callable[[bool], Callable[..., Any]],
        gave_up: Callable[[str], None],
    ) -> None:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        for cls in {type(block) for blocks in groups for block in blocks}:
            _mark(cls)
        self._errors = (TorchDynamoException, FailOnRecompileLimitHit)
        self._compiled = compiled
        self._gave_up = gave_up
        self._refused: set[bool] = set()
        """True: calls that record gradients; False: those that do not."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the root."""
        try:
            return self._call(args, kwargs)
        except BaseException as error:
            drop_frame(error, 2)
            raise

    def _call(self, args: Args, kwargs: Kwargs) -> Any:
        trains = torch.is_grad_enabled()
        # in dispatch modes torch compiles nothing, an error where one graph is wanted
        if trains not in self._refused and not torch._C._len_torch_dispatch_stack():
            before, NESTING.active = NESTING.active, True
            try:
                return self._nested(*args, **kwargs)
            except self._errors as error:
                reason = _reason(error)
            finally:
                NESTING.active = before
            self._refused.add(trains)
            self._gave_up(reason if trains else f"{reason} (without gradients)")
        return self._whole(*args, **kwargs)

    @functools.cached_property
    def _nested(self) -> Callable[..., Any]:
        return self._compiled(True)

    @functools.cached_property
    def _whole(self) -> Callable[..., Any]:
        return self._compiled(False)


def _mark(cls: type[Module]) -> None:
    """Have compiled calls of ours find a marked copy of a class's forward."""
    if cls in _marked:
        return
    _marked.add(cls)
    original: Forward = cls.forward
    cls.forward = _marked_forward(original)


def _marked_forward(original: Forward) -> Forward:
    copy = _copy(original)
    region = torch.compiler.nested_compile_region(copy)
    vars(copy).update(__marked_compile_region_max_reuse_entries__=MOST_GRAPHS)
    nesting, drop_frames = NESTING, drop_frames_before

    def forward(module: Module, *args: Any, **kwargs: Any) -> object:
        try:
            return (region if nesting.active else original)(module, *args, **kwargs)
        except BaseException as error:
            drop_frames(error, original)
            raise

    return functools.update_wrapper(among(original, forward), original)


def _copy(original: Forward) -> Forward:
    """The same function: torch keeps notes in attributes of what it marks."""
    assert isinstance(original, FunctionType)
    copy = FunctionType(
        original.__code__,
        original.__globals__,
        original.__name__,
        original.__defaults__,
        original.__closure__,
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    copy.__qualname__, copy.__module__ = original.__qualname__, original.__module__
    return copy


def _reason(error: BaseException) -> str:
    """What torch, or `check_nesting`, says: one line."""
    inner = getattr(error, "inner_exception", error)
    if isinstance(inner, CannotNest):
        return str(inner)
    if type(inner).__name__ == "FailOnRecompileLimitHit":
        return "the model is compiled anew too often"
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    said = lines[:2] if lines[:1] and lines[0].endswith(":") else lines[:1]
    return " ".join(": ".join([type(inner).__name__, *said]).split())[:MOST_WORDS]
