"""Install the gradient probe in this process, once torch is imported, and end it in time."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from gpurun.knobs.callers import is_users
from gpurun.records.events import ProbeEvent
from gpurun.records.spec import Exchange, ProbeSpec
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
from gpurun.runtime.ddp.rank_info import RankInfo
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.probe.deterministic_layers import disable_dropout, disable_tf32
from gpurun.runtime.probe.gradient_sketches import GradientSketches
from gpurun.runtime.probe.partial_batches import PartialBatches
from gpurun.runtime.probe.prepare_probe import ScriptProcess
from gpurun.runtime.probe.refused_scripts import refuse_starter
from gpurun.runtime.probe.whole_batch_rng import WholeBatchRNG, seed_all


def install(probe: ProbeSpec) -> None:
    """Measure the gradients of the script's first process; any other one must not train."""
    if ScriptProcess.is_main:
        GradientProbe(probe).install()
    else:
        _refuse_training()


class GradientProbe:
    """One launch of the probe: its partial batches, their random numbers and their gradients."""

    def __init__(self, probe: ProbeSpec) -> None:
        self._seed = probe.seed
        self._pid = os.getpid()
        self._rng = WholeBatchRNG(probe.start, probe.step)
        self._drawing = False
        self._ddp = HiddenDDP(RankInfo(0, probe.ranks), RankRNG(0), Exchange())
        self._batches = PartialBatches(probe, self._ddp, self._around_batch)
        self._sketches = GradientSketches(self._batches, self._end, refuse_starter)

    def install(self) -> None:
        """Stand in for loaders, random numbers, backward passes and calls of root modules."""
        disable_dropout()
        self._batches.install()
        replace(torch.distributed, "init_process_group", self._watch_process_group)
        self._sketches.install()
        ROOTS.route = self._route
        atexit.register(self._script_ended)

    def _around_batch(self, number: int, handed: bool) -> None:
        """Seed before batch `number` is read, and again when it is handed out."""
        self._rng.own = self._rng.total = 0
        seed_all(self._seed + 2 * number + handed)
        if handed:
            disable_tf32()
            self._rng.own, self._rng.total = self._batches.own, self._batches.total
            if not self._drawing:
                self._drawing = True
                self._rng.__enter__()

    def _route(self, original: Callable[..., Any], module: torch.nn.Module) -> Callable[..., Any]:
        for called in self._ddp.on_call:
            called()
        return original

    def _watch_process_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A script that begins a process group is distributed by itself."""

        def init_process_group(*args: object, **kwargs: object) -> NoReturn:
            if os.getpid() != self._pid:
                refuse_starter()
            self._end("distributed")

        return init_process_group

    def _end(self, reason: str) -> NoReturn:
        RECORDER.event(self._event(reason))
        RECORDER.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _script_ended(self) -> None:
        self._sketches.refuse_unseen()
        error = getattr(sys, "last_value", None)
        event = self._event("ended" if error is None else "failed")
        if error is not None:
            text = traceback.format_exception_only(error)[-1].strip()[:300]
            event = dataclasses.replace(event, error=text, where=_users_line(error))
        RECORDER.event(event)
        RECORDER.flush()

    def _event(self, reason: str) -> ProbeEvent:
        files = ScriptProcess.files
        return ProbeEvent(
            reason,
            tuple(sorted(self._batches.training)),
            missed=self._batches.missed,
            files=None if files is None else files.names(),
            own_generator=self._rng.own_generator,
        )


def _refuse_training() -> None:
    """A process that the script started must not train."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: object, **kwargs: object) -> NoReturn:
            refuse_starter()

        return refuse

    replace(torch.autograd, "backward", watch)
    replace(torch.distributed, "init_process_group", watch)


def _users_line(error: BaseException) -> str:
    """The innermost line of the user's own code in a traceback, with its text."""
    where = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if is_users(frame) and not file.startswith("<"):
            import linecache

            text = linecache.getline(file, number).strip()[:80]
            where = f"{os.path.basename(file)}:{number}: {text}"
    return where
