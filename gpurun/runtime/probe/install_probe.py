"""Arm the gradient probe in this process, and end it when enough was seen."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpurun.knobs.callers import is_users
from gpurun.records.events import ProbeEvent
from gpurun.records.spec import Exchange, ProbeSpec, RunSpec
from gpurun.runtime.core import hub_uploads, seeds
from gpurun.runtime.core.patching import replace as replace_attribute
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.ddp.rank_info import RankInfo, line_of, or_stop_rank, stop_rank
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.probe.files_read import FilesRead

if TYPE_CHECKING:
    from gpurun.runtime.probe.partial_batches import PartialBatches

STARTED_AT = "GPURUN_STARTED_AT"
"""The variable that tells a process where the script started it."""
_main = False
"""Whether this is the script's first process, or was forked from it."""
_files: FilesRead | None = None
"""What the script has read."""
WITHOUT = "run it without --ddp"


def prepare(probe: ProbeSpec, run_dir: str) -> None:
    """First stage, before torch is imported."""
    global _files, _main
    _main = _is_main(Path(run_dir))
    if _main:
        _files = FilesRead(run_dir)
        _files.begin()
    seeds.seed_everything(probe.seed, 0)
    hub_uploads.block_uploads()
    for name, kind in (("accelerate.accelerator", "Accelerator"), ("deepspeed", None)):
        when_imported(name, _refuse_library(name.partition(".")[0], kind))
    _note_starts()


def arm(spec: RunSpec, torch: Any) -> None:
    """Second stage, before anything else looks at torch."""
    from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
    from gpurun.runtime.ddp.rank_rng import RankRNG
    from gpurun.runtime.probe.equal_randomness import (
        drawing,
        in_full_precision,
        seed_all,
        without_dropout,
    )
    from gpurun.runtime.probe.gradient_sketches import GradientSketches
    from gpurun.runtime.probe.partial_batches import PartialBatches

    assert spec.probe is not None
    probe = spec.probe
    if not _main:
        _watch_other(torch)
        return
    without_dropout(torch)
    mode = drawing(torch, probe.start, probe.step)
    active = False

    def around(number: int, handed: bool) -> None:
        nonlocal active
        mode.own = mode.total = 0
        seed_all(torch, probe.seed + 2 * number + handed)
        if handed:
            in_full_precision(torch)
            mode.own, mode.total = partial_batches.own, partial_batches.total
            if not active:
                active = True
                mode.__enter__()

    first, where = os.getpid(), RankInfo(0, probe.ranks)
    ddp = HiddenDDP(torch, where, RankRNG(torch, 0), Exchange())
    partial_batches = PartialBatches(torch, probe, ddp, around)
    partial_batches.install()

    def end(reason: str) -> NoReturn:
        RECORDER.event(_over(reason, partial_batches))
        RECORDER.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def joins(*args: Any, **kwargs: Any) -> None:
        if os.getpid() != first:
            refuse_starter()
        end("distributed")

    replace_attribute(torch.distributed, "init_process_group", lambda original: joins)
    sketches = GradientSketches(torch, partial_batches, end, refuse_starter)
    sketches.install()

    def route(original: Any, module: Any) -> Any:
        for called in ddp.on_call:
            called()
        return original

    ROOTS.route = route

    def ended() -> None:
        sketches.refuse_unseen()
        error = getattr(sys, "last_value", None)
        if error is None:
            RECORDER.event(_over("ended", partial_batches))
        else:
            text = traceback.format_exception_only(error)[-1].strip()[:300]
            RECORDER.event(
                dataclasses.replace(
                    _over("failed", partial_batches), error=text, where=_users_line(error)
                )
            )
        RECORDER.flush()

    atexit.register(ended)


def _over(reason: str, partial_batches: PartialBatches) -> ProbeEvent:
    return ProbeEvent(
        reason,
        tuple(sorted(partial_batches.training)),
        missed=partial_batches.missed,
        files=None if _files is None else _files.names(),
    )


def _is_main(run_dir: Path) -> bool:
    """Whether this is the script's first process: that one says so in a file."""
    mark = run_dir / "main"
    try:
        with mark.open("x") as file:
            file.write(str(os.getpid()))
        return True
    except FileExistsError:
        return mark.read_text() == str(os.getpid())


# -- what cannot be run on ranks -------------------------------------------------------------------


def _note_starts() -> None:
    """Tell each process where the script started it."""
    from multiprocessing import process

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            where = line_of(sys._getframe(1))
            if where:
                os.environ[STARTED_AT] = where
            return original(*args, **kwargs)

        return start

    replace_attribute(process.BaseProcess, "start", watch)

    def imported(module: Any) -> None:
        replace_attribute(module.Popen, "__init__", watch)

    when_imported("subprocess", imported)


def _watch_other(torch: Any) -> None:
    """A process that the script started must not train."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*args: Any, **kwargs: Any) -> Any:
            refuse_starter()

        return refuse

    replace_attribute(torch.autograd, "backward", watch)
    replace_attribute(torch.distributed, "init_process_group", watch)


def refuse_starter() -> NoReturn:
    """A process that the script started trains."""
    where = os.environ.get(STARTED_AT)
    stop_rank(
        f"the script starts training processes of its own{f' at {where}' if where else ''}: each "
        "would join the ranks of --ddp",
        f"{WITHOUT}; if it is written for torchrun: gpurun --nproc-per-node N",
    )


def _refuse_library(library: str, kind: str | None) -> Callable[[Any], None]:
    """Refuse a script that a library distributes, once it says so."""

    def imported(module: Any) -> None:
        owner, name = (
            (module, "initialize") if kind is None else (getattr(module, kind), "__init__")
        )
        replace_attribute(owner, name, lambda original: or_stop_rank(library, refuse))

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        where, frame = "", sys._getframe(1)
        trainer = False
        while frame is not None and not where:
            trainer = trainer or frame.f_globals.get("__name__") == "transformers.trainer"
            where = line_of(frame) if is_users(frame) else ""
            if frame.f_back is None:
                break
            frame = frame.f_back
        name = "the Hugging Face Trainer" if trainer else library
        stop_rank(
            f"the script is distributed by {name}{f' at {where}' if where else ''}, which gives "
            "each rank batches of its own: under --ddp their batches would add up to a larger one",
            "run gpurun --nproc-per-node N without --ddp; its batch size is then that of a device",
        )

    return imported


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
