"""Which loaders may have workers: judged by what their arguments hold."""

from __future__ import annotations

import csv
import io
import itertools
import logging
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from gpurun.knobs.api import LoaderCall
from gpurun.knobs.loading.loader_fitness import holds_written_file, on_cuda, why_no_workers


class Holding(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def why(dataset: Any, no_guard: bool = False, **arguments: Any) -> str | None:
    arguments.setdefault("multiprocessing_context", "fork")
    call = LoaderCall("train.py:1#0", {"dataset": dataset, **arguments}, None, iterable=False)
    return why_no_workers(call, no_guard)


def test_plain_data_sets_may_have_them() -> None:
    assert why(TensorDataset(torch.zeros(4))) is None
    assert why([1, 2, 3]) is None
    assert why(TensorDataset(torch.zeros(4)), multiprocessing_context="spawn") is None


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_connection_forbids_forked_workers_wherever_the_data_set_keeps_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    for kept in ({"parts": [ends[0]]}, Slotted(ends[0]), ends[0].recv, partial(str, ends[0])):
        held: Any = Holding(kept=kept)
        dataset: Any
        for dataset in (held, Subset(held, [0]), ConcatDataset([held, held])):
            assert "from the open" in (why(dataset) or ""), dataset
    ends[0].close()
    assert why(held) is None


def test_a_program_that_answers_through_pipes_forbids_them() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert "from the open" in (why(Holding(program=program)) or "")
        mine, its = multiprocessing.Pipe()
        assert "from the open mine" in (why(Holding(mine=mine, its=its)) or "")
        assert program.stdin is not None
        assert why(Holding(log=program.stdin)) is None, "nobody reads from it"


def test_a_data_base_forbids_them(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "a.db")
    assert "from the open" in (why(Holding(connection=connection)) or "")
    connection.close()


def test_queues_and_shared_values_of_multiprocessing_do_not() -> None:
    with multiprocessing.Manager() as manager:
        shared = manager.dict()
        shared["known"] = 1
        queue: Any = multiprocessing.Queue()
        assert why(Holding(shared=shared, queue=queue, value=multiprocessing.Value("i"))) is None


def test_a_pool_of_processes_or_threads_forbids_them() -> None:
    with ThreadPool(1) as pool, ThreadPoolExecutor(1) as executor:
        assert "would wait for ever" in (why(Holding(pool=pool)) or "")
        assert "would wait for ever" in (why(Subset(Holding(parts=[executor]), [0])) or "")


def test_buffers_loggers_and_files_do_not(tmp_path: Path) -> None:
    logger = logging.getLogger("test of knobs")
    logger.addHandler(logging.StreamHandler(sys.stderr))
    with open(tmp_path / "log", "w+") as log:
        assert why(Holding(buffer=io.BytesIO(b""), logger=logger, log=log)) is None


def test_what_is_read_in_turn_forbids_them(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n")
    with open(tmp_path / "rows.csv") as file:
        for held in (csv.reader(file), (x for x in "ab"), itertools.cycle([1, 2]), iter([1])):
            for dataset in (Holding(rows=held), Subset(Holding(kept=[held]), [0])):
                assert "from where it stands now" in (why(dataset) or ""), held
        assert why(Holding(file=file)) is None, "each worker has a position of its own"
        assert why(Holding(rows=[1, 2], names=range(3), map={"a": 1})) is None


TURNS, CONNECTIONS = itertools.cycle([1, 2]), list[Any]()
LOADED = iter([1])
"""What a script's training loop alone reads."""


def take_turn() -> int:
    return next(TURNS)


class Turning(Holding):
    def __getitem__(self, index: int) -> int:
        return index + take_turn()


class Asking(Holding):
    def __getitem__(self, index: int) -> int:
        connection: Any
        for connection in CONNECTIONS:
            connection.recv(1)
        return index


class Counted(Holding):
    numbers = itertools.count()


def of(rows: Iterator[int]) -> Any:
    return lambda samples: [next(rows) for _ in samples]


def by_default(samples: list[int], rows: Iterator[int] = TURNS) -> list[int]:
    return [next(rows) for _ in samples]


def test_what_code_reads_in_turn_forbids_them() -> None:
    turned = {"_": None, "transform": of(iter([1]))}
    for dataset in (Turning(), Subset(Turning(), [0]), Counted(), Holding(**turned)):
        assert "of the data set from where it stands now" in (why(dataset) or ""), dataset
    collate: Any
    for collate in (of(iter([1])), by_default, partial(by_default), lambda _: take_turn()):
        for name in ("collate_fn", "worker_init_fn"):
            refused = why([1], **{name: collate})
            assert f"of the {name} from where it stands now" in (refused or ""), collate


def test_a_connection_that_code_names_forbids_forked_workers(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    assert why(Asking()) is None
    CONNECTIONS.append(ends[0])
    try:
        assert "from the open CONNECTIONS of the data set" in (why(Asking()) or "")
    finally:
        CONNECTIONS.clear()


class Trainer:
    def __init__(self) -> None:
        self.batches = iter([1])
        self.model = torch.nn.Linear(1, 1)

    def train(self) -> None:
        next(LOADED)


class Built(Holding):
    """Reads what is read in turn once, when it is built."""

    def __init__(self) -> None:
        super().__init__(rows=[next(TURNS), next(LOADED, 0)])


def test_what_code_does_not_name_forbids_nothing() -> None:
    trainer = Trainer()
    trainer.model.rows = iter([1])  # type: ignore[assignment]
    model, log = trainer.model, logging.getLogger("test of knobs")

    def collate(samples: list[int]) -> Any:
        log.debug("%s", os.fspath("."))
        return model(torch.tensor(samples))

    assert why(Built(), collate_fn=collate, worker_init_fn=torch.manual_seed) is None
    assert why(Holding(), collate_fn=torch.utils.data.default_collate) is None


def test_a_file_that_is_written_too_forbids_lasting_workers_alone(tmp_path: Path) -> None:
    with open(tmp_path / "bank", "w+b") as bank, open(tmp_path / "bank", "rb") as file:
        assert why(Holding(bank=bank)) is None
        assert holds_written_file(Subset(Holding(kept=[bank]), [0]))
        assert not holds_written_file(Holding(file=file, memory=io.BytesIO(b"")))
    assert not holds_written_file(Holding(bank=bank)), "closed"


def test_spawned_workers_need_a_guard_and_a_data_set_that_pickles() -> None:
    local = Holding(transform=lambda x: x)
    assert "cannot be pickled" in (why(local, multiprocessing_context="spawn") or "")
    assert why(local) is None
    assert "guard" in (why([1], no_guard=True, multiprocessing_context="forkserver") or "")
    assert why([1], no_guard=True) is None
    collate = why([1], multiprocessing_context="spawn", collate_fn=lambda x: x)
    assert "collate_fn" in (collate or "")


def test_a_data_set_that_refers_to_itself_is_walked_once() -> None:
    loop = Holding()
    loop.__dict__["me"] = [loop]
    assert why(loop) is None


@pytest.mark.gpu
def test_tensors_on_the_gpu_forbid_workers() -> None:
    data = TensorDataset(torch.zeros(4, device="cuda"))
    assert on_cuda(data)
    assert "CUDA" in (why(data) or "")
