"""The same random numbers, whichever part of a batch is computed.

A part of a batch draws for the whole batch and takes its own rows.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gpurun.runtime.ddp.rank_info import line_of


def seed_all(seed: int) -> None:
    """Seed every generator that scripts draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(seed % 2**32)


class WholeBatchRNG(TorchDispatchMode):
    """The mode in which `samples[start::step]` of a batch draw what the whole batch would.

    `own` and `total`: samples of this part and of the current batch, 0 while there is none.
    """

    def __init__(self, start: int, step: int) -> None:
        super().__init__()
        self.own = self.total = 0
        self.own_generator = ""
        """The user's line that drew for a batch from a generator of the script's own."""
        self._start, self._step = start, step
        self._pid = os.getpid()

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Widen a random operation of this part to the whole batch; run any other as it is."""
        kwargs = kwargs or {}
        seeded = torch.Tag.nondeterministic_seeded in func.tags
        if not self.own or not seeded or os.getpid() != self._pid:
            return func(*args, **kwargs)
        if not self.own_generator and _is_own(kwargs.get("generator")):
            if any(self._of_rows(value) for value in (*args, *kwargs.values())):
                self.own_generator = line_of(sys._getframe(1))
        if func.overloadpacket is torch.ops.aten.randperm:
            return self._permutation(func, args, kwargs)
        return func(*args, **kwargs) if self._step == 1 else self._rows(func, args, kwargs)

    def _permutation(
        self, func: Callable[..., torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> torch.Tensor:
        """A permutation of samples (mixup) stays within the parts of a batch."""
        parts = max(self._step, 2)
        if args[0] != self.own or self.total < parts:
            return func(*args, **kwargs)
        drawn = [
            func(len(range(part, self.total, parts)), *args[1:], **kwargs) for part in range(parts)
        ]
        if self._step > 1:
            return drawn[self._start]
        whole = func(self.total, *args[1:], **kwargs)
        for part, order in enumerate(drawn):
            whole[part::parts] = order * parts + part
        return whole

    def _rows(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw for the whole batch and take the rows of this part."""
        wide = [self._widened(value) for value in args]
        named = {name: self._widened(value) for name, value in kwargs.items()}
        before, after = (*args, *kwargs.values()), (*wide, *named.values())
        if all(new is old for new, old in zip(after, before, strict=True)):
            return func(*args, **kwargs)
        result = func(*wide, **named)
        if func.overloadpacket.__name__.endswith("_"):
            return args[0].copy_(wide[0][self._start :: self._step])
        return tree_map_only(torch.Tensor, self._own_rows, result)

    def _of_rows(self, value: object) -> bool:
        """True for an argument for this part's rows: a tensor of so many, or a list of sizes."""
        if isinstance(value, torch.Tensor):
            return bool(value.dim()) and len(value) == self.own
        return isinstance(value, (list, tuple)) and list(value[:1]) == [self.own]

    def _widened(self, value: Any) -> Any:
        """An argument for the whole batch."""
        if not self._of_rows(value):
            return value
        if isinstance(value, torch.Tensor):
            index = torch.arange(self.total, device=value.device) // self._step
            return value.index_select(0, index.clamp(max=self.own - 1))
        return [self.total, *value[1:]]

    def _own_rows(self, drawn: torch.Tensor) -> torch.Tensor:
        whole = drawn.dim() and len(drawn) == self.total
        return drawn[self._start :: self._step].contiguous() if whole else drawn


def _is_own(generator: Any) -> bool:
    """True for a generator that the script made: nobody but it seeds that.

    Dispatch sees a new object for the same generator, so addresses are compared.
    """
    everyones: tuple[Any, ...] = (torch.default_generator, *torch.cuda.default_generators)
    return generator is not None and all(generator._cdata != one._cdata for one in everyones)
