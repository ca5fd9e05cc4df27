"""Compile the repeated blocks of a root module in place; the code around them runs as written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import Module

from gpurun.knobs.applied.autograd_state import is_checkpointed, is_traced
from gpurun.knobs.compiling.applied.graph_rewrites import LEANER, compiled_call
from gpurun.knobs.compiling.applied.plain_calls import or_plain, seen_by_dynamo, trains_as_written
from gpurun.records.frames import drop_frame


def compile_blocks(
    root: Module, groups: Sequence[Sequence[Module]], hooked: Callable[[], None]
) -> None:
    """Give the blocks of each group one compiled code; `hooked` as for `compile_in_place`.

    An int of a module, such as the number of its layer, may differ among the blocks: code for any
    int is compiled with the second. Other attributes that differ and matter cost a compilation
    each, up to torch's limit.
    """
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    calls = _RootCalls()
    for blocks in groups:
        compiled = compiled_call(blocks[0], "default", root)
        for block in blocks:
            call = or_plain(block, partial(compiled, block), hooked, calls.runs_as_written)
            block._compiled_call_impl = call
    root._compiled_call_impl = calls.around(root)


class _RootCalls:
    """Tells the blocks of a root which of its training calls compiled code cannot answer.

    A block that is checkpointed is compiled in all calls: what runs it again in the backward pass
    is no call of the root, and has to run the same code.
    """

    def __init__(self) -> None:
        self._as_written = False

    def around(self, root: Module) -> Callable[..., Any]:
        """The call of the root's own code."""
        own: Callable[..., Any] = root._call_impl
        as_written = trains_as_written(root, bool(LEANER))

        def call(*args: Any, **kwargs: Any) -> Any:
            trains = torch.is_grad_enabled() and not is_traced()
            self._as_written = trains and as_written((args, kwargs))
            try:
                return own(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                self._as_written = False

        return seen_by_dynamo(call, own)

    def runs_as_written(self, given: object) -> bool:
        """True in such a call of the root."""
        return self._as_written and not is_checkpointed()
