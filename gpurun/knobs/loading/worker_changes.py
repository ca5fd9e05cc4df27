"""Workers that live on say, once an epoch has ended, whether their copy of the data set changed.

A data set may fill a cache in its workers alone. The script then changes a file, and clears its own
cache, which was empty before: only the workers can tell. The script's process puts a question into
the queue of each worker. Its loop in torch does not see the question: the queue's `get` sends an
answer in place of a batch. All batches of the epoch are out by then, so the queues are empty.
"""

from __future__ import annotations

import queue
import time
from typing import Any

from gpurun.knobs.loading.dataset_state import State, dataset_state
from gpurun.records.frames import transparent

ANSWER_SECONDS = 10.0
"""A worker that has not answered by then is taken for one that changed: new ones replace it."""
DATASET, INDEX_QUEUE, DATA_QUEUE, COLLATE_FN = 1, 2, 3, 6
"""Arguments of torch's `_worker_loop` by position, in 2.4 to 2.13."""


class Question:
    """Has your copy changed since you began?"""


def workers_changed(iterator: Any) -> bool:
    """Ask the workers of a loader's iterator, whose epoch has ended; True too if one is gone."""
    try:
        for waiting in iterator._index_queues:
            waiting.put(Question())
        for _ in iterator._index_queues:
            answered, answer = iterator._try_get_data(ANSWER_SECONDS)
            if not answered or answer[1]:
                return True
    except Exception:  # torch raises one where a worker has ended
        return True
    return False


def answering(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a worker's loop, with an index queue that answers questions."""
    changed = list(arguments)
    changed[INDEX_QUEUE] = _Answering(arguments)
    return tuple(changed)


class _Answering:
    """The index queue of a worker, as its loop sees it."""

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self._queue, self._answers = arguments[INDEX_QUEUE], arguments[DATA_QUEUE]
        self._read = arguments[DATASET], arguments[COLLATE_FN]
        self._begun: tuple[State | None] | None = None
        self._since = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    @transparent
    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next indices. The loop asks for them once `worker_init_fn` is done."""
        if self._begun is None:
            self._since = time.time()
            self._begun = (dataset_state(*self._read, since=self._since),)
        asked = self._queue.get(*args, **kwargs)
        if not isinstance(asked, Question):
            return asked
        now = dataset_state(*self._read, since=self._since)
        self._answers.put((None, now is None or (now,) != self._begun))
        raise queue.Empty  # torch's loop then waits again
