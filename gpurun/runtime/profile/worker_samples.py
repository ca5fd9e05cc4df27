"""Samples of the stacks of a loader's worker processes, while they fetch a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.profile.phase_ranges import PhaseRanges
from gpurun.runtime.profile.stack_samples import StackSamples

MOST_SAMPLES = 4000
"""Of one worker: those of 20 s of fetching tell what it does."""
FETCHERS = ("_MapDatasetFetcher", "_IterableDatasetFetcher")


def install(torch: Any) -> None:
    """Have each worker that this process starts by fork sample itself."""
    inside = PhaseRanges()
    utils = torch.utils.data._utils

    def sampled(original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def worker_loop(*args: Any, **kwargs: Any) -> Any:
            samples = StackSamples(inside, MOST_SAMPLES, RECORDER.event)
            guarded("worker samples", samples.begin)()
            try:
                return original(*args, **kwargs)
            finally:
                guarded("worker samples", lambda: RECORDER.event(samples.finish()))()

        return worker_loop

    def marked(original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def fetch(*args: Any, **kwargs: Any) -> Any:
            inside.current.append("data")
            try:
                return original(*args, **kwargs)
            finally:
                inside.current.pop()

        return fetch

    replace(utils.worker, "_worker_loop", sampled)
    for name in FETCHERS:
        replace(getattr(utils.fetch, name), "fetch", marked)
