"""The rank of this process, and how a rank stops that cannot go on."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gpurun.errors import ExitCode, say
from gpurun.records.events import TraitEvent
from gpurun.records.messages.traits import PARALLEL_REFUSED
from gpurun.runtime.core.recorder import RECORDER

AFTER_YOU_SECONDS = 1.0
"""An error of every rank is reported by rank 0 first, whose output the terminal shows."""
DIVERGED = 1
"""Exit code of ranks that no longer train the same model."""


@dataclass(frozen=True)
class RankInfo:
    """Rank `rank` of `world_size`."""

    rank: int
    world_size: int


def current_rank() -> RankInfo:
    """The rank by torchrun's variables; rank 0 of 1 without them."""
    return RankInfo(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))


def show_one_device(
    shared_gpus: int = 0, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Leave this rank one visible GPU, so that `cuda` and `cuda:0` are its own.

    To be called before CUDA starts. `LOCAL_RANK` becomes 0, as with torchrun's
    `--virtual-local-rank`, for a script that chooses its device by it. `shared_gpus`: the number of
    GPUs, if there are fewer than ranks.
    """
    local = int(environment.get("LOCAL_RANK", "0"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    count = shared_gpus or local + 1
    words = [str(i) for i in range(count)] if visible is None else visible.split(",")
    devices = [word for word in words if word.strip()]
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = devices[local % len(devices)]
    environment["LOCAL_RANK"] = "0"


def or_stop_rank(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call-back without which ranks would diverge: if it raises, the rank stops."""

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            stop_rank(f"the {name} failed: {text}", "without --ddp the script runs on one device")

    return call


def warn(what: str) -> None:
    """Write one line for the user, from rank 0, if stderr is open."""
    if current_rank().rank == 0:
        say(what)


def stop_rank(what: str, todo: str, code: int = int(ExitCode.USAGE)) -> NoReturn:
    """Say why and end this process: no `except` of the script may continue a wrong training."""
    RECORDER.event(TraitEvent(trait=PARALLEL_REFUSED, detail=f"{what}\n{todo}"))
    RECORDER.flush()
    if current_rank().rank:
        time.sleep(AFTER_YOU_SECONDS)
    sys.stdout.flush()
    say(what)
    say(todo)
    os._exit(code)
