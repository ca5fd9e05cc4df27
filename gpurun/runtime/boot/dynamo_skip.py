"""Keep torch.compile's frame evaluation off our functions.

While a compiled function runs, dynamo looks at every python frame below it, ours too. It would
compile the hooks as if they were the model, and drop branches that depend on `is_compiling`. Marked
code runs as it is. Code that a knob compiles is not marked (`device_requirements.traced`).
(Functions that dynamo inlines into a graph, such as a root's `__call__`, ask `is_compiling` first
and are then plain calls.)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType

import torch

from gpurun.knobs.device_requirements import TRACED
from gpurun.runtime.core.post_import import when_imported


def install() -> None:
    """Mark our code as soon as dynamo is there: every optimizer brings it, `import torch` not."""
    when_imported("torch._dynamo.eval_frame", lambda dynamo: _mark(dynamo.skip_code))


def _mark(skip: Callable[[CodeType], None]) -> None:
    """Mark all our modules, and the function of torch that runs the optimizers' hooks."""
    for name, module in list(sys.modules.items()):
        if name.startswith("gpurun."):
            for value in vars(module).values():
                for code in _codes(value, name):
                    skip(code)
    skip(torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__)


def _codes(value: object, module: str) -> Iterator[CodeType]:
    if getattr(value, "__module__", None) != module or getattr(value, TRACED, False):
        return
    if isinstance(value, FunctionType):
        yield from _with_inner(value.__code__)
    elif isinstance(value, type):
        for member in vars(value).values():
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)  # of a static or a class method
            if isinstance(function, FunctionType):
                yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
