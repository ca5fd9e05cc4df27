"""Arguments of a DataLoader with which workers would hang, crash, or race with the script.

Whether workers hand out the same samples is no question of these: trials show it
(`gpurun.same.sample_distances`).
"""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import os
import pickle
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gpurun.knobs.api import LoaderCall
from gpurun.knobs.loading.added_workers import why_shared
from gpurun.knobs.loading.dataset_attributes import attributes

MIXED = "forked workers would mix up reads from the open {}"
WAITING = "a forked worker would wait for ever for the {}"
NOT_FORKED = {
    ("lmdb", "Environment"): MIXED,
    ("lmdb", "Transaction"): MIXED,
    ("sqlite3", "Connection"): MIXED,
    ("sqlite3", "Cursor"): MIXED,
    ("concurrent.futures._base", "Executor"): WAITING,
    ("joblib", "Parallel"): WAITING,
    ("multiprocessing.pool", "Pool"): WAITING,
}
"""Classes by module whose objects a fork breaks: they know which locks they hold, which is untrue
then, or have threads and connections that a forked worker does not."""
PARTS = ("dataset", "collate_fn", "worker_init_fn")
"""Arguments of a loader that its workers get."""
ARRAYS = ("Tensor", "ndarray", "memmap")
"""Classes whose objects a data set may fill again for each batch."""


def why_no_workers(call: LoaderCall, no_guard: bool) -> str | None:
    """Why this loader must stay without worker processes; None if it may have them.

    `no_guard`: the script has no `if __name__ == "__main__"`, so a spawned worker would run it.
    """
    dataset = call.arguments.get("dataset")
    if call.subclass:
        return "a subclass of DataLoader, whose own rules are not known"
    if on_cuda(dataset):
        return "the data set holds CUDA tensors"
    if call.arguments.get("batch_size", 1) is None and any(
        type(value).__name__ in ARRAYS for _, value in attributes(dataset)
    ):
        return (
            "without a batch size it may hand out a tensor that the data set keeps: a worker "
            "would overwrite it while the script reads it"
        )
    for name, value in _reached(call.arguments):
        if isinstance(value, Iterator) and not hasattr(type(value), "seek"):
            return f"each worker would read the {name} from where it stands now"
    if start_method(call.arguments) == "fork":
        return why_no_fork(call.arguments)
    if no_guard:
        return "the script has no __main__ guard: each worker would run it again"
    return unpicklable(call.arguments)


def start_method(arguments: dict[str, Any]) -> str:
    """The start method of a loader's workers with these arguments: "fork", "spawn" or
    "forkserver"."""
    context = arguments.get("multiprocessing_context")
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    # asking for the default outright would fix it before the script can set its own
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def _reached(arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the workers of a loader with these arguments reach, with words for it."""
    for owner in PARTS:
        for name, value in attributes(arguments.get(owner)):
            yield f"{name} of the {owner.replace('dataset', 'data set')}", value


def why_no_fork(arguments: Mapping[str, Any]) -> str | None:
    """Why forked processes cannot load what a loader with these arguments does; None if they can.

    A pool's threads and connections are not there; reads of one pipe, socket or data base are mixed
    up. Files are no matter: forked processes have positions of their own (see `added_workers`).
    """
    for name, value in _reached(arguments):
        for (module, kind), why in NOT_FORKED.items():
            if isinstance(value, getattr(sys.modules.get(module), kind, ())):
                return why.format(name)
        if _is_stream(value):
            return MIXED.format(name)
    stuck = why_shared()
    return stuck and f"forked workers would share the position of a file: {stuck}"


def holds_written_file(dataset: object) -> bool:
    """True if the data set holds an open file for reading and writing: a script that writes to it
    between epochs would not reach what a worker has read ahead."""
    files = (value for _, value in attributes(dataset) if isinstance(value, io.IOBase))
    return any(not x.closed and x.readable() and x.writable() and not _in_memory(x) for x in files)


def on_cuda(dataset: object) -> bool:
    """True if the data set holds tensors on a CUDA device."""
    return any(getattr(value, "is_cuda", False) is True for _, value in attributes(dataset))


def unpicklable(arguments: dict[str, Any]) -> str | None:
    """Why a spawned worker could not receive the loader's parts; None if it could."""
    for name in PARTS:
        try:
            with open(os.devnull, "wb") as nowhere:
                pickle.Pickler(nowhere).dump(arguments.get(name))
        except Exception as error:
            return f"the {name} cannot be pickled for a worker: {error}"
    return None


def _in_memory(file: io.IOBase) -> bool:
    try:
        return file.fileno() < 0
    except OSError:
        return True


def _is_stream(value: object) -> bool:
    """True for an open pipe or socket that can be read, of whatever class."""
    if not callable(getattr(type(value), "fileno", None)):
        return False
    try:
        number: int = value.fileno()  # type: ignore[attr-defined]
        kind, flags = os.fstat(number).st_mode, fcntl.fcntl(number, fcntl.F_GETFL)
    except Exception:
        return False  # closed, or in memory only
    reads = number > 2 and flags & os.O_ACCMODE != os.O_WRONLY
    return reads and (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind))
