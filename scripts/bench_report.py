"""Time, memory and size of `gpurun report` on a long run: its bars are 5 s, 500 MB and 3 MB.

    python scripts/bench_report.py [STEPS]      100,000 steps by default

The run folder is made up: one rank, a step of 0.2 s, samples of 8 GPUs and of the host as often as
the launcher takes them. The run was cut off, so that its result has to be computed from its events.
"""

from __future__ import annotations

import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gpurun.measure.sampler import (  # noqa: E402
    LONGEST_SECONDS,
    SHARE_OF_AGE,
    SHORTEST_SECONDS,
)

STEP_NS = 200_000_000
GPUS = 8
ROWS = 64
"""Step rows a line, as the recorder writes them."""
START = 1_795_000_000_000_000_000
BARS = {"seconds": 5.0, "megabytes": 500.0, "page_megabytes": 3.0}


def main() -> int:
    """Make the run, report it, print the three figures; exit code 1 if a bar is missed."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "20260101-000000-abcdef")
        run.mkdir()
        write_events(run / "events-1.jsonl", steps)
        write_samples(run / "samples.jsonl", steps * STEP_NS // 1_000_000_000)
        read = sum(path.stat().st_size for path in run.iterdir())
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gpurun", "report", "--quiet", str(run)], check=True)
        figures = {
            "seconds": time.perf_counter() - begin,
            "megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000,
            "page_megabytes": (run / "report.html").stat().st_size / 1e6,
        }
    print(f"{steps:,} steps, {read / 1e6:.0f} MB of records")
    for name, value in figures.items():
        print(f"{name:15} {value:8.2f}  (at most {BARS[name]:g})")
    return int(any(figures[name] > bar for name, bar in BARS.items()))


def write_events(path: Path, steps: int) -> None:
    """One process that trains with one loader."""
    chance = random.Random(0)
    head = [
        {"event": "process", "pid": 1, "rank": None, "local_rank": None, "world_size": None,
         "argv": ["train.py"], "python": "3.12.0", "unix_time_ns": START, "clock_ns": 0},
        {"event": "loader", "loader": 0, "key": "train.py:10#0", "class_name": "DataLoader",
         "subclass": False, "dataset_class": "Images", "dataset_length": 1_000_000,
         "length": 31_250, "batch_size": 32, "workers": 4, "prefetch_factor": 2,
         "persistent_workers": False, "pin_memory": True, "drop_last": False, "iterable": False,
         "custom_batch_sampler": False, "start_method": None, "batch_size_argument": None},
        {"event": "root", "root": 0, "class_name": "Net", "parameters": 10**8,
         "parameter_bytes": 4 * 10**8, "dtypes": ["float32"], "device": "cuda:0",
         "module_types": {}, "input_shape": [32, 3, 64, 64], "input_dtype": "float32",
         "compiled": False},
    ]  # fmt: skip
    with path.open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in head)
        for first in range(0, steps, ROWS):
            rows = [_row(n, chance) for n in range(first, min(first + ROWS, steps))]
            file.write(json.dumps({"event": "steps", "clock": "optimizer", "rows": rows}) + "\n")


def _row(number: int, chance: random.Random) -> list[object]:
    end = (number + 1) * STEP_NS + chance.randrange(10_000_000)
    loss = 10 * math.exp(-number / 30_000) + chance.random()
    parts = [40_000_000, 50_000_000, 90_000_000, 5_000_000]
    return [0, end, *parts, 1, 32, 0, {"0": [32, 1]}, loss, None, None, 1]


def sample_times(seconds: float) -> Iterator[float]:
    """Seconds at which the launcher samples: rarer and rarer."""
    now = 0.0
    while now < seconds:
        yield now
        now += min(max(now * SHARE_OF_AGE, SHORTEST_SECONDS), LONGEST_SECONDS)


def write_samples(path: Path, seconds: int) -> None:
    """Samples of the host and of each GPU."""
    chance = random.Random(1)
    with path.open("w") as file:
        for second in sample_times(seconds):
            now = START + int(second * 1e9)
            host = {"event": "host", "unix_time_ns": now, "cpu_seconds": 2.0 * second,
                    "rss_bytes": 4_000_000_000, "processes": 5}  # fmt: skip
            file.write(json.dumps(host) + "\n")
            for index in range(GPUS):
                file.write(json.dumps(_device(index, now, second, chance)) + "\n")


def _device(index: int, now: int, second: float, chance: random.Random) -> dict[str, object]:
    activity = chance.uniform(60, 95)
    return {
        "event": "device", "unix_time_ns": now, "uuid": f"GPU-{index}", "name": "NVIDIA H200",
        "cuda_index": index, "utilization_percent": activity, "memory_used_bytes": 60 * 10**9,
        "memory_total_bytes": 140 * 10**9, "power_watts": 5 * activity,
        "energy_joules": 400.0 * second, "temperature_celsius": 60.0, "sm_clock_mhz": 1900.0,
        "throttle_reasons": [], "foreign_processes": 0, "graphics_activity_percent": activity,
        "sm_activity_percent": activity, "tensor_activity_percent": activity / 3,
        "dram_activity_percent": activity / 2,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
