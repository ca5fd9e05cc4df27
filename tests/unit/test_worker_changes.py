"""What kept workers answer, whatever stands between them and the loader."""

from __future__ import annotations

import os
import queue
import signal
import time
from argparse import Namespace
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker as torchs_worker

from gpurun.knobs.loading import worker_changes
from gpurun.knobs.loading.added_workers import KEPT_MARK, settings_of_children
from gpurun.knobs.loading.worker_changes import Question, answering, workers_changed
from gpurun.runtime.observe import orphan_workers


class Cached(Dataset[int]):
    def __init__(self, keeps: bool) -> None:
        self.cache: dict[int, int] = {}
        self.keeps = keeps

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if self.keeps:
            self.cache[index] = index
        return index


Opened = Callable[..., Any]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Opens an iterator whose two workers are kept, and reads an epoch of it."""
    monkeypatch.setattr(torchs_worker, "_worker_loop", torchs_worker._worker_loop)
    orphan_workers.guard(torchs_worker)
    monkeypatch.setitem(settings_of_children(), KEPT_MARK, True)
    return _opened


def _opened(keeps: bool = False, **arguments: Any) -> Any:
    arguments |= {"multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(Cached(keeps), batch_size=1, num_workers=2, **arguments)
    iterator: Any = iter(loader)
    assert [int(x) for x in iterator] == [0, 1, 2, 3]
    return iterator


@pytest.mark.parametrize("keeps", [False, True])
def test_workers_tell_whether_their_copy_changed(opened: Opened, keeps: bool) -> None:
    iterator = opened(keeps)
    assert workers_changed(iterator) == keeps
    iterator._shutdown_workers()


def test_an_answer_leaves_the_next_epoch_as_it_is(opened: Opened) -> None:
    iterator = opened()
    for _ in range(2):
        assert not workers_changed(iterator)
    loader = Namespace(_IterableDataset_len_called=None, generator=None)
    iterator._reset(loader)
    assert [int(x) for x in iterator] == [0, 1, 2, 3]
    iterator._shutdown_workers()


def _set_up(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.cache = {-1: worker}  # type: ignore[attr-defined]


def test_what_the_scripts_own_start_of_a_worker_sets_is_no_change(opened: Opened) -> None:
    iterator = opened(worker_init_fn=_set_up)
    assert not workers_changed(iterator)
    iterator._shutdown_workers()


def _ended_by(iterator: Any, number: int) -> None:
    """Torch's handler of SIGCHLD would raise the same error wherever the script is by then."""
    torchs_own: Any = torch.utils.data._utils.signal_handling
    torchs_own._remove_worker_pids(id(iterator))
    iterator._worker_pids_set = False
    os.kill(iterator._workers[0].pid, number)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
def test_a_worker_that_was_killed_or_hangs_counts_as_changed(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, by: signal.Signals
) -> None:
    monkeypatch.setattr(worker_changes, "ANSWER_SECONDS", 0.5)
    iterator = opened()
    _ended_by(iterator, by)
    begun = time.monotonic()
    assert workers_changed(iterator)
    assert time.monotonic() - begun < 5
    if by == signal.SIGSTOP:
        os.kill(iterator._workers[0].pid, signal.SIGCONT)
    iterator._shutdown_workers()


def test_the_thread_that_pins_passes_an_answer_on() -> None:
    """Torch's loop of that thread, on what a worker puts into the queue; there is no GPU here."""
    pinning: ModuleType = torch.utils.data._utils.pin_memory
    data, asked, answers = Cached(False), queue.Queue[Any](), queue.Queue[Any]()
    loop = (0, data, asked, answers, None, True, None)
    get = answering(loop)[2].get
    pinned: queue.Queue[Any] = queue.Queue()
    for change in (0, 1):
        asked.put(Question())
        data.cache = {1: 1} if change else data.cache
        with pytest.raises(queue.Empty):
            get(timeout=1)
        index, answer = answers.get_nowait()
        pinned.put((index, pinning.pin_memory(answer)))
    ask = Namespace(
        _index_queues=[asked], _try_get_data=lambda seconds: (True, pinned.get(timeout=seconds))
    )
    assert [workers_changed(ask), workers_changed(ask)] == [False, True]
