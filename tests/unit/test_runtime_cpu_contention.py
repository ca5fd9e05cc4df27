"""What others had of the cores, by the kernel's count; one real wait behind another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from gpurun.runtime.observe.cpu_contention import (
    CpuReading,
    contention_between,
    read_cpu_counts,
)
from tests.conftest import REPOSITORY

SHARED = """
import json, os, subprocess, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from gpurun.runtime.observe.cpu_contention import contention_between, read_cpu_counts
spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(0.2)
before = read_cpu_counts()
end = time.perf_counter() + 1.0
while time.perf_counter() < end:
    pass
lost = contention_between(before, read_cpu_counts())
spinning.kill()
print(json.dumps([lost.waited_ns, lost.end_ns - lost.begin_ns]))
"""


def test_a_process_that_shares_its_core_is_seen_to_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHARED],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
    )
    waited, span = json.loads(done.stdout)
    assert waited > 0.1 * span


def test_the_thread_that_waited_most_counts_unless_it_hardly_runs() -> None:
    before = CpuReading(0, {"1": (0, 0), "2": (0, 0), "3": (0, 0)}, 50)
    after = CpuReading(1000, {"1": (900, 60), "2": (800, 100), "3": (10, 990), "4": (9, 9)}, 80)
    lost = contention_between(before, after)
    assert (lost.begin_ns, lost.end_ns) == (0, 1000)
    assert (lost.waited_ns, lost.stolen_ns) == (100, 30)


def test_what_the_system_does_not_count_is_none() -> None:
    lost = contention_between(CpuReading(0, {}, None), CpuReading(1000, {}, 5))
    assert (lost.waited_ns, lost.stolen_ns) == (None, None)
    assert read_cpu_counts().threads.keys() == set(os.listdir("/proc/self/task"))
