"""`gpurun doctor --gpu`: the cards themselves at work, which takes some seconds a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpurun.doctor.driver_probe import answer_of
from gpurun.formatting.number_text import count, number, percent
from gpurun.measure.compute_use import peak_flops_per_second
from gpurun.records.command_reports import Check, State

PROBE_SECONDS = 180.0
GPU_PROGRAM = """
import json, subprocess, time, torch

def told(function, *arguments):
    try:
        return function(*arguments)
    except Exception:
        return None

def nvml_of(number):
    try:
        import pynvml
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(number).uuid
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
    except Exception:
        return None, None

def look(number):
    torch.cuda.set_device(number)
    nvml, handle = nvml_of(number)
    size, turns = 8192, 20
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    one, other = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    product = one @ other
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(turns):
        torch.mm(one, other, out=product)
    begin.record()
    for _ in range(turns):
        torch.mm(one, other, out=product)
    end.record()
    seen = {}
    if nvml is not None:
        rows = told(nvml.nvmlDeviceGetRemappedRows, handle)
        seen = {
            "sm_clock_mhz": told(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            "max_sm_clock_mhz": told(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            "throttle_bits": told(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
            "ecc_errors": told(nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 1),
            "rows_pending": None if rows is None else bool(rows[2]),
            "rows_failed": None if rows is None else bool(rows[3]),
        }
    end.synchronize()
    flops = turns * 2 * size**3 / (begin.elapsed_time(end) / 1000)
    return {"name": torch.cuda.get_device_name(number), "flops_per_second": flops, **seen}

def all_reduce(numbers):
    from torch.cuda import nccl
    tensors = [torch.ones(64 << 20, device=f"cuda:{n}") for n in numbers]
    def turns(many):
        for _ in range(many):
            nccl.all_reduce(tensors)
        for n in numbers:
            torch.cuda.synchronize(n)
    turns(3)
    begin = time.monotonic()
    turns(10)
    seconds = (time.monotonic() - begin) / 10
    return 2 * (len(numbers) - 1) / len(numbers) * tensors[0].nbytes / seconds

def xids():
    log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10)
    return None if log.returncode else log.stdout.count("NVRM: Xid")

def device(number):
    try:
        return look(number)
    except Exception as error:
        name = torch.cuda.get_device_name(number)
        return {"name": name, "error": f"{type(error).__name__}: {error}".splitlines()[0]}

numbers = range(torch.cuda.device_count())
print(json.dumps({
    "devices": [device(number) for number in numbers],
    "bus_bytes_per_second": told(all_reduce, numbers) if len(numbers) > 1 else None,
    "xids": told(xids),
}))
"""

LEAST_SHARE = 0.5
"""Of the peak. A large product reaches 60 to 80 % of it on a GPU that nothing slows down."""
SLOWED = {0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "a power brake"}
"""Bits of NVML's reasons for a lower clock that mean trouble; others are normal under load."""
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


@dataclass(frozen=True)
class GpuProbe:
    """One GPU under a large matrix product. None: not told. `error`: why there was none."""

    name: str
    flops_per_second: float | None = None
    sm_clock_mhz: float | None = None
    max_sm_clock_mhz: float | None = None
    throttle_bits: int | None = None
    ecc_errors: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    error: str = ""


@dataclass(frozen=True)
class GpuProbes:
    """All visible GPUs. `bus_bytes_per_second`: of an all-reduce among them (bus bandwidth).
    `xids`: errors of the driver in the kernel's log; None where that cannot be read."""

    devices: tuple[GpuProbe, ...]
    bus_bytes_per_second: float | None = None
    xids: int | None = None


def gpu_checks(has_gpu: bool) -> Iterable[Check]:
    """The checks of the cards, and of what feeds them."""
    if has_gpu:
        yield from checks_of(answer_of(GpuProbes, GPU_PROGRAM, PROBE_SECONDS))
    else:
        yield Check("GPUs at work", State.UNNEEDED, "no GPU")
    yield governor_check()


def checks_of(found: GpuProbes | str) -> Iterable[Check]:
    """What the probe found; a text is the reason why it found nothing."""
    if isinstance(found, str) or not found.devices:
        why = found if isinstance(found, str) else "torch sees none of them"
        yield Check("GPUs at work", State.MISSING, why, "the GPUs were not tried")
        return
    for place, gpu in enumerate(found.devices):
        yield product_check(place, gpu)
        if gpu.sm_clock_mhz is not None:
            yield clock_check(place, gpu)
        yield memory_check(place, gpu)
    if found.bus_bytes_per_second is not None:
        rate = f"{number(found.bus_bytes_per_second / 1e9)} GB/s bus bandwidth"
        yield Check("all-reduce", State.OK, f"{count(len(found.devices), 'GPU')}: {rate}")
    if found.xids is None:
        yield Check("XID errors", State.UNNEEDED, "unknown: the kernel's log cannot be read")
    elif found.xids:
        cost, todo = "a GPU or its driver failed since the machine started", "see dmesg: NVRM: Xid"
        yield Check("XID errors", State.LIMITED, f"{found.xids} in the kernel's log", cost, todo)
    else:
        yield Check("XID errors", State.OK, "none in the kernel's log")


def product_check(place: int, gpu: GpuProbe) -> Check:
    """The speed of a matrix product of half precision against the peak."""
    what = f"GPU {place} product"
    if gpu.flops_per_second is None:
        why = gpu.error or "it gave no time"
        return Check(what, State.MISSING, why, "the GPU did not compute a matrix product")
    reached = f"{number(gpu.flops_per_second / 1e12)} TFLOP/s"
    peak = peak_flops_per_second(gpu.name)
    if peak is None:
        return Check(what, State.OK, f"{reached}; the peak of {gpu.name} is not known")
    share = gpu.flops_per_second / peak
    found = f"{reached}, {percent(share)} of the peak"
    if share >= LEAST_SHARE:
        return Check(what, State.OK, found)
    cost = "it computes slower than such a GPU should"
    return Check(what, State.LIMITED, found, cost, "look for other processes, heat, a power limit")


def clock_check(place: int, gpu: GpuProbe) -> Check:
    """The clock under that load, and what lowers it."""
    of = "" if gpu.max_sm_clock_mhz is None else f" of {gpu.max_sm_clock_mhz:.0f}"
    found = f"{gpu.sm_clock_mhz:.0f}{of} MHz under load"
    bits = gpu.throttle_bits or 0
    reasons = list(dict.fromkeys(name for bit, name in SLOWED.items() if bits & bit))
    if not reasons:
        return Check(f"GPU {place} clock", State.OK, found)
    cost = f"slowed down by {' and '.join(reasons)}"
    return Check(f"GPU {place} clock", State.LIMITED, found, cost, "check cooling and power supply")


def memory_check(place: int, gpu: GpuProbe) -> Check:
    """Errors of its memory that could not be corrected, and rows that wait for a repair."""
    what = f"GPU {place} memory errors"
    if gpu.rows_failed:
        cost = "results can be wrong, and processes end"
        return Check(what, State.LIMITED, "a row could not be remapped", cost, "replace the GPU")
    if gpu.rows_pending:
        cost = "a bad row is in use until the next reset"
        return Check(what, State.LIMITED, "rows wait to be remapped", cost, "reset the GPU")
    if gpu.ecc_errors is None:
        return Check(what, State.UNNEEDED, "the GPU counts none")
    if gpu.ecc_errors:
        cost = "each of them ended a process"
        return Check(what, State.LIMITED, f"{gpu.ecc_errors} not corrected in its life", cost)
    return Check(what, State.OK, "none that were not corrected")


def governor_check(file: Path = GOVERNOR) -> Check:
    """The governor of the cores that launch the kernels."""
    what = "CPU governor"
    try:
        governor = file.read_text().strip()
    except OSError:
        return Check(what, State.UNNEEDED, "the system tells none")
    if (governor == "powersave" and "intel_pstate" not in _driver(file)) or governor == "ondemand":
        cost = "cores begin slowly: short kernels wait for the host"
        return Check(what, State.LIMITED, governor, cost, "cpupower frequency-set -g performance")
    return Check(what, State.OK, governor)


def _driver(file: Path) -> str:
    """Intel's own driver calls its normal, fast mode "powersave"."""
    try:
        return (file.parent / "scaling_driver").read_text().strip()
    except OSError:
        return ""
