"""A run that ran out of memory says what held it and what would have fitted."""

from __future__ import annotations

import atexit
import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpurun.measure import summarise_run
from gpurun.measure.full_run import what_fits
from gpurun.records.events import OutOfMemoryEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.safety.out_of_memory import REST, out_of_memory, watch
from tests.unit.recorded_runs import loader, write_events

GIB = 1 << 30
FRAMES = [{"filename": "/usr/lib/python3/site-packages/torch/nn.py", "line": 9}]
FRAMES += [{"filename": "/home/user/model.py", "line": 31}]


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size * GIB, "state": state, **more}


SNAPSHOT = {
    "segments": [
        {"device": 1, "total_size": 50 * GIB, "blocks": [block(1, 50)]},
        {
            "device": 0,
            "total_size": 60 * GIB,
            "blocks": [
                block(1, 10),
                block(2, 10),
                block(3, 20, frames=[{"filename": "/home/user/train.py", "line": 88}]),
                block(4, 12, frames=FRAMES),
                block(5, 6),
                block(6, 2, "inactive"),
            ],
        },
    ]
}
OWNERS = {
    1: ("parameters", "head.weight"),
    2: ("gradients", "gradient of head.weight"),
}


def event(asked: int = 8, free: int = 2) -> OutOfMemoryEvent:
    return out_of_memory(SNAPSHOT, OWNERS, 0, (asked * GIB, 64 * GIB, free * GIB), "train.py:88")


def test_the_largest_allocations_have_their_names_and_lines() -> None:
    found = event()
    assert found.reserved_bytes == 60 * GIB
    assert found.part_bytes == {"parameters": 10 * GIB, "gradients": 10 * GIB, REST: 38 * GIB}
    assert [(words, size // GIB) for words, size in found.largest] == [
        ("train.py:88", 20),
        ("model.py:31", 12),
        ("head.weight", 10),
        ("gradient of head.weight", 10),
        ("not named", 6),
    ]


@pytest.mark.parametrize(
    ("asked", "free", "fits"),
    [
        (46, 2, "at most 50.0 % of this batch would have fitted (4 of 8); "),  # 42 of 84 GiB
        (
            3,
            1,
            "torch holds 2.00 GiB in free pieces that are too small for this allocation: PYTORCH_C",
        ),
    ],
)
def test_a_failed_run_says_what_would_have_fitted(
    tmp_path: Path, asked: int, free: int, fits: str
) -> None:
    write_events(tmp_path, [loader(), event(asked, free)])
    failed = summarise_run(tmp_path, exit_code=1, wall_seconds=3.0)
    assert failed.notes[0].startswith(f"out of memory at train.py:88: {asked}")
    assert failed.notes[0].endswith(
        "parameters 10.0 GiB, gradients 10.0 GiB, " + REST + " 38.0 GiB"
    )
    assert failed.notes[1].startswith(fits)
    assert "train.py:88 20.0 GiB, model.py:31 12.0 GiB" in failed.notes[2]


def test_a_script_that_caught_it_and_ended_well_gets_no_note(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), event()])
    ended = summarise_run(tmp_path, exit_code=0, wall_seconds=3.0)
    assert not [note for note in ended.notes if "memory" in note]


def test_a_limit_of_the_scripts_own_is_no_lack_of_room() -> None:
    assert "although the GPU has room" in what_fits(event(1, 2), None)
    limited = replace(event(3, 50), total_bytes=61 * GIB)
    assert what_fits(limited, None).startswith("torch holds 2.00 GiB in free pieces"), "1 GiB left"


def test_segments_that_can_grow_already_are_no_cure() -> None:
    segments = [{**each, "is_expandable": True} for each in SNAPSHOT["segments"]]
    sizes = (3 * GIB, 64 * GIB, GIB)
    grown = out_of_memory({"segments": segments}, OWNERS, 0, sizes, "")
    assert what_fits(grown, None).endswith("too small for this allocation")


class Watched:
    """A watched process: `fails` is torch's observer, `ends` exits by an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.events, self._patch = folder, list[Any](), monkeypatch
        found: list[Callable[..., None]] = []
        at_exit: list[Callable[[], None]] = []
        monkeypatch.setattr(ROOTS, "on_root", [])
        monkeypatch.setattr(RECORDER, "event", self.events.append)
        monkeypatch.setattr(atexit, "register", at_exit.append)
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: SNAPSHOT)
        core = "_cuda_attach_out_of_memory_observer"
        monkeypatch.setattr(torch._C, core, found.append, raising=False)
        watch(folder)
        parameter = SimpleNamespace(is_cuda=True)
        ROOTS.on_root[0](SimpleNamespace(parameters=lambda: [parameter]))  # type: ignore[arg-type]
        (self.fails,), (self._exit,) = found, at_exit

    def ends(self, error: BaseException | None) -> None:
        self._patch.setattr(sys, "last_value", error, raising=False)
        self._exit()


class Batch:
    """Stands for a tensor of a function's own."""


def test_a_batch_that_the_script_deletes_after_the_failure_is_freed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = Watched(monkeypatch, tmp_path)

    def train() -> bool:
        batch = Batch()
        there = weakref.ref(batch)
        watched.fails(0, 8 * GIB, 64 * GIB, 2 * GIB)
        del batch
        return there() is None

    def leave() -> weakref.ref[Batch]:
        batch = Batch()
        watched.fails(0, 8 * GIB, 64 * GIB, 2 * GIB)
        return weakref.ref(batch)

    gc.disable()  # no cycle of frames may hold it either
    try:
        assert train()
        assert leave()() is None
    finally:
        gc.enable()
    watched.ends(torch.cuda.OutOfMemoryError())
    assert watched.events[0].where.startswith("test_out_of_memory.py:")


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), RuntimeError("out of memory")])
def test_only_the_failure_that_ends_the_process_is_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException | None
) -> None:
    watched = Watched(monkeypatch, tmp_path)
    for gib in (9, 8, 7, 6, 5):
        watched.fails(0, gib * GIB, 64 * GIB, 2 * GIB)
    watched.ends(error)
    assert (watched.events, list(tmp_path.iterdir())) == ([], [])
    watched.ends(torch.cuda.OutOfMemoryError())
    assert [each.asked_bytes for each in watched.events] == [5 * GIB]
    assert len(list(tmp_path.glob("*out-of-memory.pickle"))) == 1
