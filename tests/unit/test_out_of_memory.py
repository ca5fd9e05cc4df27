"""A run that ran out of memory says what held it and what would have fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpurun.measure import summarise_run
from gpurun.records.events import OutOfMemoryEvent
from gpurun.runtime.safety.out_of_memory import REST, out_of_memory
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
                block(3, 20),
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
    3: (REST, "logits (train.py:88)"),
}


def event(asked: int = 8, free: int = 2) -> OutOfMemoryEvent:
    return out_of_memory(SNAPSHOT, OWNERS, 0, (asked * GIB, 64 * GIB, free * GIB), "train.py:88")


def test_the_largest_allocations_have_their_names_and_lines() -> None:
    found = event()
    assert found.reserved_bytes == 60 * GIB
    assert found.part_bytes == {"parameters": 10 * GIB, "gradients": 10 * GIB, REST: 38 * GIB}
    assert [(words, size // GIB) for words, size in found.largest] == [
        ("logits (train.py:88)", 20),
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
            "2.00 GiB are reserved in pieces that are too small for it: PYTORCH_CUDA_ALLOC_CONF",
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
    assert "logits (train.py:88) 20.0 GiB, model.py:31 12.0 GiB" in failed.notes[2]


def test_a_script_that_caught_it_and_ended_well_gets_no_note(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), event()])
    ended = summarise_run(tmp_path, exit_code=0, wall_seconds=3.0)
    assert not [note for note in ended.notes if "memory" in note]
