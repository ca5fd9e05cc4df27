"""The model computes each sample by itself, so that ranks can be compared with one process.

Dropout is off, BatchNorm normalises by its running statistics, autocast and TF32 do not round.
After a loader has handed out a batch, and until it is asked for the next one, what the script draws
is the same for each row of a tensor, and a permutation leaves all in place. All this holds for the
whole process, a short trial.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gpurun.knobs.callers import users_line
from gpurun.records.events import TraitEvent
from gpurun.records.messages.traits import STARTS_PROCESSES, STARTS_PROGRAMS
from gpurun.runtime.core.dropout_off import switch_off_dropout
from gpurun.runtime.core.patching import replace, stands_in
from gpurun.runtime.core.recorder import RECORDER

DRAWS = (
    "bernoulli",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
)
DRAWS_IN_PLACE = ("bernoulli_", "cauchy_", "exponential_", "normal_", "random_", "uniform_")


class SampleBySample:
    """The draws of this process. `handed`: a batch was handed out, and no other is asked for.

    `shares`: the samples of a batch come in the order of the shares of so many ranks.
    """

    def __init__(self, shares: int = 0) -> None:
        self._shares = shares
        self.handed = False
        self._drawn = 0
        self._starts: set[str] = set()
        """Lines of the script at which it has started processes."""

    def install(self) -> None:
        """Stand in for all that makes a sample depend on others, or on its place in a batch."""
        switch_off_dropout()
        replace(functional, "batch_norm", _by_running_statistics)
        replace(torch.amp.autocast_mode.autocast, "__init__", _disabled)
        iterator: Any = torch.utils.data.dataloader._BaseDataLoaderIter
        replace(iterator, "__next__", self._watch_next)
        if self._shares:
            fetcher: Any = torch.utils.data._utils.fetch._BaseDatasetFetcher
            replace(fetcher, "__init__", self._share_by_share)
        for name in DRAWS:
            replace(torch, name, self._watch_draw)
        for name in DRAWS_IN_PLACE:
            replace(Tensor, name, self._watch_draw)
        replace(torch, "randperm", self._watch_permutation)
        replace(BaseProcess, "start", self._watch_start)
        replace(subprocess.Popen, "__init__", self._watch_start)

    @stands_in
    def _watch_start(
        self, original: Callable[..., None], process: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Processes may train: a refusal then names the line. Loader workers are daemons."""
        daemon = getattr(process, "daemon", False)
        line = "" if daemon else users_line(sys._getframe(1))
        if line and line not in self._starts:
            self._starts.add(line)
            python = isinstance(process, BaseProcess)
            trait = STARTS_PROCESSES if python else STARTS_PROGRAMS
            RECORDER.event(TraitEvent(trait=trait, detail=line))
        original(process, *args, **kwargs)

    @stands_in
    def _watch_next(self, original: Callable[..., Any], iterator: Any) -> Any:
        self.handed = False
        batch = original(iterator)
        self.handed = True
        _compute_in_full()
        return batch

    @stands_in
    def _share_by_share(
        self,
        original: Callable[..., None],
        fetcher: Any,
        dataset: Any,
        collates: bool,
        collate: Callable[..., Any],
        *args: Any,
    ) -> None:
        """Samples are put in order once they are read, so that streams are, too."""

        def by_share(batch: Any) -> Any:
            if collates and isinstance(batch, list):
                size = self._shares
                batch = [sample for rank in range(size) for sample in batch[rank::size]]
            return collate(batch)

        original(fetcher, dataset, collates, by_share, *args)

    @stands_in
    def _watch_draw(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.handed:
            return original(*args, **kwargs)
        # by its number, and put back: how much was drawn before differs between ranks and one
        self._drawn += 1
        kwargs.pop("generator", None)
        with torch.random.fork_rng():
            # `torch.manual_seed` is the script's: ranks would leave their step
            for generator in (torch.default_generator, *torch.cuda.default_generators):
                generator.manual_seed(self._drawn)
            drawn = original(*args, **kwargs)
        return _rows_alike(drawn)

    @stands_in
    def _watch_permutation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self.handed:
            return original(*args, **kwargs)
        with torch.random.fork_rng():  # ranks draw fewer numbers, and the next epoch the same
            order = original(*args, **kwargs)
        return order.copy_(torch.arange(len(order)))


def _compute_in_full() -> None:
    """Products in full single precision, whatever the script has set meanwhile."""
    with suppress(Exception):  # a script that uses torch's newer names may not use the older ones
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def _rows_alike(drawn: Tensor) -> Tensor:
    with torch.no_grad():
        if drawn.dim() and len(drawn) > 1:
            drawn.copy_(drawn[:1].clone().expand_as(drawn))
    return drawn


def _by_running_statistics(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def batch_norm(
        input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None,
        training: bool = False, *args: object, **kwargs: object,
    ) -> Tensor:  # fmt: skip
        of_batch = running_mean is None and training
        return original(input, running_mean, running_var, weight, bias, of_batch, *args, **kwargs)

    return batch_norm


def _disabled(original: Callable[..., None]) -> Callable[..., None]:
    return lambda cast, device_type, dtype=None, enabled=True, cache_enabled=None: original(
        cast, device_type, dtype, False, cache_enabled
    )
