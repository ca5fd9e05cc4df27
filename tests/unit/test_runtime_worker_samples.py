"""A loader's worker samples its own stack, in the time in which it fetches batches."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from gpurun.records.events import HostSamplesEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.profile import worker_samples


def idle(seconds: float) -> None:
    time.sleep(seconds)


def read(seconds: float) -> None:
    time.sleep(seconds)


class Fetcher:
    def fetch(self, batches: int) -> None:
        for _ in range(batches):
            read(0.02)


def worker_loop(batches: int) -> None:
    for _ in range(batches):
        idle(0.03)
        Fetcher().fetch(1)


def test_a_worker_tells_the_functions_in_which_it_fetches_and_not_where_it_idles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[HostSamplesEvent] = []
    monkeypatch.setattr(RECORDER, "event", events.append)
    fetchers = {name: type(name, (Fetcher,), {}) for name in worker_samples.FETCHERS}
    worker, fetch = SimpleNamespace(_worker_loop=worker_loop), SimpleNamespace(**fetchers)
    utils = SimpleNamespace(worker=worker, fetch=fetch)
    torch = SimpleNamespace(utils=SimpleNamespace(data=SimpleNamespace(_utils=utils)))
    monkeypatch.setitem(worker_loop.__globals__, "Fetcher", fetchers["_MapDatasetFetcher"])
    worker_samples.install(torch)
    worker._worker_loop(30)
    event = events[-1]
    seen = {each.function: each.total_seconds for each in event.functions}
    assert seen["read"] > 0.7 * event.seconds > 0
    assert seen.get("idle", 0.0) < 0.1 * event.seconds
    assert event.moments == ()
    assert [each.samples for each in events[:-1]] == [64], "for a worker that is killed"
