"""Checks of what the system permits and has: counters, isolation, cores, shared memory, records."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from gpurun.doctor.driver_probe import ProbedMachine
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count
from gpurun.isolation.isolation_mode import Mode
from gpurun.measure.machine import available_cores
from gpurun.measure.machine_topology import topology
from gpurun.records.command_reports import Check, State
from gpurun.records.result import GpuPair, GpuTopology, Interface, Topology
from gpurun.timeline.report_exports import OPEN_COUNTERS

SMALL_SHARED_MEMORY_BYTES = 2**30
CAP_SYS_ADMIN = 21

REFUSED = "--optimize refuses to run trials without --trials-in-place"
ISOLATION_COST = {
    Mode.LANDLOCK: "trials work on a copy of the folder, and writes elsewhere fail",
    Mode.IN_PLACE: "trials write to your files",
}


def system_checks(machine: ProbedMachine, cwd: Path, out: str | None) -> Iterable[Check]:
    """All checks of what is permitted and there."""
    yield counters_check(bool(machine.gpus))
    yield power_limit_check(bool(machine.gpus))
    yield isolation_check(cwd)
    yield cores_check(available_cores(), os.cpu_count())
    yield from topology_checks(topology())
    yield shared_memory_check()
    yield records_check(cwd, out)


def counters_check(
    has_gpu: bool, parameters: Path = Path("/proc/driver/nvidia/params"), root: bool | None = None
) -> Check:
    """Check that the GPU's hardware counters may be read; `root`: may administer (None: look)."""
    what = "GPU counters"
    if not has_gpu:
        return Check(what, State.UNNEEDED, "no GPU")
    try:
        reserved = "RmProfilingAdminOnly: 1" in parameters.read_text()
    except OSError:
        return Check(what, State.LIMITED, "unknown", "profilers may be refused (ERR_NVGPUCTRPERM)")
    if not reserved or (_may_administer() if root is None else root):
        return Check(what, State.OK, "readable")
    cost = "no figures of single kernels from Nsight Compute (ERR_NVGPUCTRPERM)"
    return Check(what, State.LIMITED, "for administrators only", cost, OPEN_COUNTERS)


def power_limit_check(has_gpu: bool, root: bool | None = None) -> Check:
    """Whether a power limit may be set; `root`: may administer (None: look). gpurun sets none."""
    what = "power limit"
    if not has_gpu:
        return Check(what, State.UNNEEDED, "no GPU")
    if _may_administer() if root is None else root:
        return Check(what, State.OK, "may be set (nvidia-smi -pl WATTS); gpurun sets none")
    return Check(what, State.UNNEEDED, "for administrators only (CAP_SYS_ADMIN); gpurun sets none")


def isolation_check(cwd: Path) -> Check:
    """The isolation of trials: how they are kept from changing files."""
    from gpurun.isolation.available_modes import choose

    what = "isolation"
    try:
        available = choose(cwd, in_place=False)
    except GpurunError as error:
        return Check(what, State.MISSING, error.what, REFUSED)
    if available.mode is None:
        return Check(what, State.MISSING, available.reason, REFUSED)
    cost = ISOLATION_COST.get(available.mode, "")
    note = f" ({available.reason})" if available.reason else ""
    return Check(what, State.LIMITED if cost else State.OK, available.mode.value + note, cost)


def cores_check(available: float, installed: int | None) -> Check:
    """Cores that may be used (cgroup quota, affinity) against those that the machine has."""
    found = f"{available:g} of {installed or 'an unknown number'}"
    if installed is None or available >= installed:
        return Check("CPU cores", State.OK, found)
    cost = "programs that count the machine's cores start too many threads and workers"
    return Check("CPU cores", State.LIMITED, found, cost)


def topology_checks(here: Topology) -> Iterable[Check]:
    """NUMA nodes, the ways between GPUs, and the network; what hurts is a check of its own."""
    each = ", ".join(count(cores, "core") for cores in here.numa_cores)
    yield Check("NUMA nodes", State.OK, f"{len(here.numa_cores)}: {each}")
    for place, gpu in enumerate(here.gpus):
        yield Check(f"GPU {place}", State.OK, _gpu_text(gpu))
    for way, pairs in _ways(here.pairs).items():
        yield Check("GPU pairs", State.OK, f"{', '.join(pairs)}: {way}")
    if here.interfaces:
        yield Check("network", State.OK, ", ".join(map(_interface, here.interfaces)))
    for finding in here.findings:
        found, _, cost = finding.partition(": ")
        yield Check("topology", State.LIMITED, found, cost)


def _gpu_text(gpu: GpuTopology) -> str:
    parts = [
        None if gpu.numa_node is None else f"NUMA node {gpu.numa_node}",
        None if gpu.pcie_switch is None else f"PCIe bridge {gpu.pcie_switch}",
        None if gpu.pcie_width is None else f"{gpu.pcie_width} PCIe lanes",
        None if gpu.nvlinks is None else f"{gpu.nvlinks} NVLinks up",
    ]
    return ", ".join(part for part in (gpu.bus_id, *parts) if part) or "its place is unknown"


def _ways(pairs: Iterable[GpuPair]) -> dict[str, list[str]]:
    """The pairs of GPUs by the way between them."""
    found: dict[str, list[str]] = {}
    for pair in pairs:
        way = "NVLink" if pair.nvlink else pair.path or "unknown"
        told = {True: ", P2P", False: ", no P2P", None: ""}[pair.peer_to_peer]
        found.setdefault(way + told, []).append(f"{pair.one}-{pair.other}")
    return found


def _interface(interface: Interface) -> str:
    speed = interface.megabits_per_second
    return f"{interface.name} {'speed unknown' if speed is None else f'{speed / 1000:g} Gbit/s'}"


def shared_memory_check() -> Check:
    """Room for the batches that loader workers hand over."""
    what, folder = "shared memory", Path("/dev/shm")
    try:
        size = shutil.disk_usage(folder).total
    except OSError:
        cost = "loader workers cannot hand over batches"
        return Check(what, State.MISSING, f"no {folder}", cost)
    found = f"{size / 2**30:.1f} GiB"
    if size < SMALL_SHARED_MEMORY_BYTES:
        cost = "loader workers with large batches die (bus error)"
        return Check(what, State.LIMITED, found, cost, "give a container `--shm-size=8g`")
    return Check(what, State.OK, found)


def records_check(cwd: Path, out: str | None) -> Check:
    """The folder of the records."""
    from gpurun.rundir import FOLDER, find_home

    try:
        home = find_home(cwd, out)
    except (OSError, GpurunError) as error:
        return Check("records", State.MISSING, str(error), "runs are not recorded or measured")
    if out is None and "GPURUN_HOME" not in os.environ and home != (cwd / FOLDER).resolve():
        cost = f"{cwd} is read-only: records of all projects share this folder"
        return Check("records", State.LIMITED, str(home), cost)
    return Check("records", State.OK, str(home))


def _may_administer() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = next(x.split()[1] for x in status.splitlines() if x.startswith("CapEff:"))
    return bool(int(effective, 16) >> CAP_SYS_ADMIN & 1)
