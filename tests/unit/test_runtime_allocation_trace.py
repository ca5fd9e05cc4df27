"""The allocator's own record, summed by part of the step and by line."""

from __future__ import annotations

from typing import Any

from gpurun.runtime.profile.allocations import BETWEEN, memory_trace

TRAIN = {"filename": "/home/me/train.py", "line": 12, "name": "forward"}
TORCH = {"filename": "/x/site-packages/torch/nn/modules/linear.py", "line": 3, "name": "linear"}
PHASES = [("forward", 100, 200), ("backward", 200, 400)]


def entry(action: str, size: int, at: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "size": size, "time_us": at, "frames": frames, "addr": 0, "stream": 0}


def test_peaks_are_those_of_each_part_with_what_was_held_before() -> None:
    found = memory_trace(
        0,
        [
            entry("alloc", 50, 90, TRAIN),
            entry("alloc", 100, 150, TRAIN),
            entry("free_requested", 100, 180),
            entry("free_completed", 100, 181),
            entry("alloc", 30, 250, TRAIN),
            entry("segment_alloc", 10**6, 260),
        ],
        1000,
        PHASES,
        2,
    )
    assert found.peak_bytes == {BETWEEN: 1050, "forward": 1150, "backward": 1080}


def test_allocations_belong_to_the_innermost_line_of_the_users_own() -> None:
    entries = [entry("alloc", 10, 150, TORCH, TRAIN), entry("alloc", 30, 160, TORCH, TRAIN)]
    (line,) = memory_trace(0, entries, 0, PHASES, 2).allocations
    assert (line.file, line.line, line.function) == ("/home/me/train.py", 12, "forward")
    assert (line.phase, line.calls, line.bytes, line.largest_bytes) == ("forward", 1.0, 20.0, 30)


def test_the_lines_that_allocate_most_come_first_and_those_without_a_stack_count() -> None:
    entries = [
        entry("alloc", 10, 150, TORCH),
        entry("alloc", 99, 160),
        entry("alloc", 20, 900, TRAIN),
    ]
    found = memory_trace(0, entries, 0, PHASES, 1).allocations
    assert [each.bytes for each in found] == [99, 20, 10]
    assert [each.file for each in found] == ["unknown", TRAIN["filename"], TORCH["filename"]]
    assert found[1].phase is None
