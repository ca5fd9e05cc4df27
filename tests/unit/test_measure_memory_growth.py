"""Memory that grows until it ends a run: on the host, on a GPU, and what only looks like it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from gpurun.measure import memory_growth as growing
from gpurun.measure import summarise_run
from gpurun.measure.memory_growth import memory_growth
from gpurun.measure.resource_use import SAMPLES_FILE, Samples
from gpurun.records.codec import to_json
from gpurun.records.samples import DeviceSample, HostSample
from tests.unit.recorded_runs import UNIX_NS, loader, row, steps, write_events

GIB = 2**30
SECOND = 1_000_000_000


def host(gib: Callable[[float], float], seconds: int = 400) -> tuple[HostSample, ...]:
    """A sample a second; `gib` of the part of the run that is over."""
    return tuple(
        HostSample(UNIX_NS + n * SECOND, 0.0, round(gib(n / seconds) * GIB), 1)
        for n in range(seconds)
    )


def device(gib: Callable[[float], float], others: int = 0) -> tuple[DeviceSample, ...]:
    blank = dict.fromkeys(field.name for field in fields(DeviceSample))
    fixed = {
        **blank,
        "uuid": "GPU-1",
        "name": "NVIDIA H200",
        "cuda_index": 0,
        "memory_total_bytes": 140 * GIB,
        "throttle_reasons": (),
        "foreign_processes": others,
        "refused": (),
        "activity_source": "gpm",
    }
    return tuple(
        DeviceSample(
            **{
                **fixed,
                "unix_time_ns": UNIX_NS + n * SECOND,
                "memory_used_bytes": round(gib(n / 400) * GIB),
            }
        )
        for n in range(400)
    )


@pytest.fixture(autouse=True)
def a_machine_of_64_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "available_memory", lambda: 64 * GIB)


def test_a_list_that_keeps_everything_is_told_with_the_time_that_is_left(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), steps([row(1000 + 200 * i) for i in range(500)])])
    lines = [
        json.dumps({"event": "host", **to_json(one)}) for one in host(lambda part: 4 + 8 * part)
    ]
    (tmp_path / SAMPLES_FILE).write_text("\n".join(lines) + "\n")
    result = summarise_run(tmp_path, exit_code=0, wall_seconds=400.0)
    growth = result.memory_growth
    assert growth is not None
    assert growth.device is None
    assert growth.bytes_per_second == pytest.approx(8 * GIB / 400, rel=0.02)
    assert growth.seconds_left == pytest.approx((64 - 12) / 8 * 400, rel=0.02)
    (note,) = [x for x in result.notes if x.startswith("host memory grows: ")]
    assert note.endswith("at this rate it is full after 43 min 21 s more")


def test_the_memory_that_is_full_first_is_named() -> None:
    both = Samples(host(lambda part: 4 + part), device(lambda part: 100 + 30 * part))
    growth = memory_growth(both)
    assert growth is not None
    assert growth.device == "GPU 0"


@pytest.mark.parametrize(
    "gib",
    [
        lambda part: 8.0,
        lambda part: 2 + 6 * min(part / 0.25, 1),  # caches fill at the beginning
        lambda part: 8 + 4 * min(part / 0.6, 1),  # levels off
        lambda part: 8 + (2 if part > 0.5 else 0),  # one larger evaluation
        lambda part: 8 + 0.1 * part,  # too little to matter
        lambda part: 8 + (part * 100 % 2),  # up and down with epochs
        lambda part: 8 - 4 * part,
    ],
)
def test_memory_that_levels_off_does_not_grow(gib: Callable[[float], float]) -> None:
    assert memory_growth(Samples(host(gib), ())) is None


def test_a_short_run_and_a_shared_gpu_say_nothing() -> None:
    assert memory_growth(Samples(host(lambda part: 4 + 8 * part, seconds=60), ())) is None
    shared = device(lambda part: 20 + 60 * part, others=1)
    assert memory_growth(Samples((), shared)) is None
