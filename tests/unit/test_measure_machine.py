"""Cores, devices and fingerprints: what the process may use here, not what the machine holds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpurun.measure.fingerprint import differences, fingerprint
from gpurun.measure.machine import (
    available_cores,
    available_memory,
    busy_seconds_in,
    machine,
    slow_governor,
)
from gpurun.measure.resource_use import Samples, host_use, read_samples
from gpurun.measure.sampler import HostSampler, RunSampler
from gpurun.measure.visible_gpus import visible_order
from gpurun.records.samples import HostSample

ALIKE = [("GPU-aaa", "H200"), ("GPU-bbb", "H200"), ("GPU-ccc", "H200")]
MIXED = [("GPU-aaa", "T4"), ("GPU-bbb", "H200")]


def test_a_cgroup_v2_quota_bounds_the_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_cgroup_v1_quota_bounds_the_cores(tmp_path: Path) -> None:
    folder = tmp_path / "cpu"
    folder.mkdir()
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("150000\n")
    if not _names_v1("cpu"):
        pytest.skip("this machine's processes are in no cgroup v1 of the cpu controller")
    assert available_cores(tmp_path) == min(1.5, len(os.sched_getaffinity(0)))
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))


def _names_v1(controller: str) -> bool:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return any(controller in line.split(":")[1].split(",") for line in lines)


def test_the_affinity_mask_bounds_the_cores() -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from gpurun.measure.machine import available_cores; print(available_cores())"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert float(output) <= 1.0


def test_a_cgroup_limit_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    assert available_memory(tmp_path) == 1_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 1_000_000


def test_the_machine_is_described_without_a_gpu() -> None:
    here = machine()
    assert here.cores > 0
    assert here.memory_bytes > 0


@pytest.mark.parametrize(
    ("environment", "order"),
    [
        ({}, [(0, 0), (1, 1), (2, 2)]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [(2, 0), (0, 1)]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b"}, [(1, 0)]),
        ({"CUDA_VISIBLE_DEVICES": "1,7,0"}, [(1, 0)]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, [(0, None), (1, None), (2, None)]),
    ],
)
def test_visible_devices_are_numbered_as_cuda_does(
    environment: dict[str, str], order: list[tuple[int, int | None]]
) -> None:
    assert visible_order(ALIKE, environment) == order


def test_numbers_of_unlike_devices_are_not_guessed() -> None:
    assert visible_order(MIXED, {}) == [(0, None), (1, None)]
    assert visible_order(MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == [(0, 0), (1, 1)]
    assert visible_order(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-bbb"}) == [(1, 0)]


def test_the_sampler_sees_the_whole_process_tree(tmp_path: Path) -> None:
    code = "sum(range(3_000_000)); input()"
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
        "stdin=subprocess.PIPE); sys.stdin.readline(); p.communicate(b'\\n')"
    )
    process = subprocess.Popen([sys.executable, "-c", parent, code], stdin=subprocess.PIPE)
    sampler = RunSampler(tmp_path)
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            sampler.tick(process.pid)
            use = host_use(read_samples(tmp_path))
            if use is not None and use.processes == 2 and use.cpu_percent:
                break
            time.sleep(0.05)
    finally:
        process.communicate(b"\n")
    assert use is not None
    assert use.processes == 2
    assert use.peak_rss_bytes is not None
    assert use.peak_rss_bytes > 1_000_000
    sampler.tick(process.pid)
    sampler.close()


BUSY_CHILD = """
import subprocess, sys
spin = "import time; print(flush=True); end = time.process_time() + 2\\n"
spin += "while time.process_time() < end: pass"
subprocess.run([sys.executable, "-c", spin]); sys.stdin.readline()
"""


def test_a_programs_own_children_are_not_among_the_others(tmp_path: Path) -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # one core: counted twice, they would be more than it has
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    sampler = RunSampler(tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the child has begun to spin"
        deadline = time.monotonic() + 300
        use = None
        while time.monotonic() < deadline:
            sampler.tick(process.pid)
            use = host_use(read_samples(tmp_path))
            if use is not None and use.others_cpu_percent is not None:
                break
            time.sleep(0.05)
    finally:
        process.communicate(b"\n")
        os.sched_setaffinity(0, cores)
    samples = [s for s in read_samples(tmp_path).host if s.others_cpu_seconds is not None]
    assert use is not None
    assert use.others_cpu_percent is not None
    spent = samples[-1].cpu_seconds - samples[0].cpu_seconds
    assert spent > 0.1
    seconds = (samples[-1].unix_time_ns - samples[0].unix_time_ns) / 1e9
    assert use.others_cpu_percent / 100 * seconds + spent < 1.15 * seconds


def test_what_programs_beside_have_started_is_not_among_the_others(tmp_path: Path) -> None:
    beside = subprocess.Popen(
        [sys.executable, "-c", BUSY_CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        try:
            assert beside.stdout is not None
            assert beside.stdout.readline() == b"\n", "its child has begun to spin"
            knows, stranger = HostSampler(idle.pid, (beside.pid,)), HostSampler(idle.pid)
            time.sleep(1.0)
            told, counted = stranger.sample(), knows.sample()
        finally:
            beside.communicate(b"\n")
            idle.communicate(b"\n")
    assert told is not None
    assert counted is not None
    assert told.others_cpu_seconds is not None
    assert counted.others_cpu_seconds is not None
    spun = told.others_cpu_seconds - counted.others_cpu_seconds
    assert spun > 0.2, "its start and at least a part of the second that its child has spun"


STAT = """cpu  900 0 90 9000 9 0 9 9 0 0
cpu0 100 20 30 5000 5 6 7 1000 50 0
cpu1 800 0 60 4000 4 0 2 9 0 0
intr 1 2 3
"""


def test_only_our_cores_and_only_processes_count_as_busy() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    assert busy_seconds_in(STAT, {0}) == pytest.approx((100 + 20 + 30 + 6 + 7) / tick)
    assert busy_seconds_in(STAT, {0, 1}) == pytest.approx((163 + 862) / tick)
    assert busy_seconds_in("", {0}) == 0


def test_the_sampler_outlives_the_process_that_it_watches(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    sampler = RunSampler(tmp_path)
    sampler.tick(process.pid)
    sampler.close()
    assert read_samples(tmp_path).host == ()


def test_a_jump_of_the_clock_does_not_lengthen_what_was_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    sampler, hour, begun = RunSampler(tmp_path), 3600 * 10**9, time.monotonic()
    try:
        sampler.tick(process.pid)
        monkeypatch.setattr("time.time_ns", lambda: int(time.time() * 1e9) + hour)
        while len(read_samples(tmp_path).host) < 2:
            sampler.tick(process.pid)
            time.sleep(0.05)
    finally:
        process.communicate(b"\n")
    sampler.close()
    first, second = (sample.unix_time_ns for sample in read_samples(tmp_path).host)
    assert 0 < (second - first) / 1e9 <= time.monotonic() - begun


def test_measuring_imports_neither_numpy_nor_torch_and_psutil_only_to_sample() -> None:
    code = (
        "import sys, gpurun.measure.run_summary, gpurun.measure.sampler;"
        "import gpurun.measure.fingerprint;"
        "print(*{'numpy', 'torch', 'scipy', 'psutil', 'pynvml'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert output.split() == []


def test_a_fingerprint_tells_what_has_changed_in_words(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    before = fingerprint(["train.py", "--lr", "1"], tmp_path, script)
    assert differences(before, fingerprint(["train.py", "--lr", "1"], tmp_path, script)) == ()
    script.write_text("print(2)\n")
    after = fingerprint(["train.py", "--lr", "2"], tmp_path, Path("train.py"))
    assert differences(after, before) == (
        "the script's text has changed",
        "arguments: train.py --lr 2, was train.py --lr 1",
    )
    assert differences({**before, "torch": "2.13", "cores": 16.0}, {**before, "torch": None}) == (
        f"cores: 16, was {before['cores']:g}",
        "torch: 2.13, was none",
    )


def test_a_fingerprint_is_the_same_in_another_checkout(tmp_path: Path) -> None:
    prints = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text("print(1)\n")
        prints.append(fingerprint(["train.py"], folder, folder / "train.py"))
    assert differences(*prints) == ()


def test_the_fingerprint_covers_modules_beside_the_script_and_the_users_knobs(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import model\nfrom parts import data\n")
    (tmp_path / "model.py").write_text("width = 1\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "data.py").write_text("rows = 1\n")
    (tmp_path / "unrelated.py").write_text("x = 1\n")
    knob = tmp_path / "my_knob.py"
    knob.write_text("name = 'a'\n")

    def now() -> dict[str, object]:
        return fingerprint([], tmp_path, script, [str(knob)])

    before = now()
    (tmp_path / "unrelated.py").write_text("x = 2\n")
    assert differences(now(), before) == ()
    (tmp_path / "parts" / "data.py").write_text("rows = 2\n")
    assert differences(now(), before) == ("a module beside the script has changed",)
    (tmp_path / "parts" / "data.py").write_text("rows = 1\n")
    knob.write_text("name = 'b'\n")
    assert differences(now(), before) == ("your own knobs have changed",)


def test_the_cpu_time_of_the_measured_steps_is_told_apart_from_the_start() -> None:
    """Three seconds on one core, then two on three."""
    second = 1_000_000_000
    used = [0.0, 1.0, 2.0, 3.0, 6.0, 9.0]
    host = tuple(HostSample(n * second, cpu, 1, 1) for n, cpu in enumerate(used))
    use = host_use(Samples(host, ()), (3 * second, 5 * second))
    assert use is not None
    assert use.cpu_percent == pytest.approx(180.0)
    assert use.steady_cpu_percent == pytest.approx(300.0)
    short = host_use(Samples(host, ()), (3 * second, 3 * second + 1))
    assert short is not None
    assert short.steady_cpu_percent is None


@pytest.mark.parametrize(
    ("governor", "driver", "slow"),
    [
        ("powersave", "acpi-cpufreq", "powersave"),
        ("powersave", "intel_pstate", None),
        ("conservative", "cppc_cpufreq", "conservative"),
        ("performance", "acpi-cpufreq", None),
    ],
)
def test_a_governor_that_holds_the_clocks_down_is_seen(
    tmp_path: Path, governor: str, driver: str, slow: str | None
) -> None:
    (tmp_path / "scaling_governor").write_text(f"{governor}\n")
    (tmp_path / "scaling_driver").write_text(f"{driver}\n")
    assert slow_governor(tmp_path) == slow


def test_a_machine_that_tells_no_governor_has_no_slow_one(tmp_path: Path) -> None:
    assert slow_governor(tmp_path) is None
