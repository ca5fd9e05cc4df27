"""Nsight Compute on the longest kernels, in a launch of its own after the run.

It repeats each kernel several times to read all counters, so that times of this launch say nothing.
The launch is isolated: files that the script writes are dropped.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from gpurun.errors import GpurunError
from gpurun.isolation.available_modes import require
from gpurun.isolation.quiet_services import quiet_services
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.launch_command import child_environment, write_spec
from gpurun.measure.run_events import ProcessLog
from gpurun.profilers.api import Profiler
from gpurun.records.codec import from_json
from gpurun.records.messages.profile_events import ProfileEvent
from gpurun.records.spec import ProfileSpec, RunSpec
from gpurun.timeline import from_ncu
from gpurun.timeline.kernel_groups import kernel_group
from gpurun.timeline.model import Group, Timeline
from gpurun.timeline.report_exports import cure, exported, messages

PAGE = "ncu.csv"
"""File of the profile's folder with the counters, a line for each launch of a kernel."""
MOST_KERNELS = 6
SECTIONS = (
    "SpeedOfLight", "Occupancy", "LaunchStats", "WarpStateStats", "ComputeWorkloadAnalysis",
)  # fmt: skip
MOST_SECONDS = 300.0
ONE_STEP = ProfileSpec(sources=("ncu",), steps=1, max_steps=1, min_seconds=0.0, stop=True)


class Ncu(Profiler):
    """Occupancy, warp efficiency and throughput of the kernels that take longest.

    Another source has to tell which those are. `--sources` asks for it.
    """

    name: ClassVar[str] = "ncu"
    tool: ClassVar[str | None] = "ncu"
    title: ClassVar[str] = "Nsight Compute"
    order: ClassVar[int] = 60
    launches_again: ClassVar[bool] = True

    def after_run(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        run_dir: Path,
        kernels: Sequence[str],
    ) -> bool:
        """Look at one step's launches of these kernels, or of those that were asked for."""
        own = [k for k in kernels if kernel_group(k) is not Group.COMMUNICATION]
        names = list(dict.fromkeys(map(function_name, own)))
        path = run_dir / "spec.json"
        spec = from_json(RunSpec, json.loads(path.read_text(encoding="utf-8")))
        asked = spec.profile or ONE_STEP
        wanted = asked.kernel or f"^({'|'.join(map(re.escape, names[:MOST_KERNELS]))})$"
        if not names and asked.kernel is None:
            raise GpurunError(
                "no kernel was recorded for Nsight Compute to look at",
                "add kineto or nsys to --sources, or name kernels: --kernel REGEX",
            )
        folder = run_dir / "profile" / "ncu"
        folder.mkdir(parents=True, exist_ok=True)
        write_spec(replace(spec, run_dir=str(folder), profile=ONE_STEP, safety=None))
        argv = (*_ncu(folder, wanted, asked), *command)
        _launch(argv, folder, child_environment(folder / "spec.json", environment))
        with exported(folder / "kernels.ncu-rep") as page:
            shutil.copyfile(page, folder.parent / PAGE)
        return True

    def timeline(self, log: ProcessLog, window: ProfileEvent, folder: Path) -> Timeline | None:
        """The counters; they have no place in time."""
        page = folder / PAGE
        if log.process.rank or not page.exists():
            return None
        begin, end = window.begin_ns, window.end_ns
        return replace(from_ncu.read(page), window_begin_ns=begin, window_end_ns=end)


def function_name(kernel: str) -> str:
    """The bare name of a kernel, as Nsight Compute's `--kernel-name` matches it.

    `void at::native::elementwise<4, float>(int)` is `elementwise`.
    """
    plain = re.split(r"[<(]", kernel.replace("(anonymous namespace)", ""))[0]
    words = plain.split("::")[-1].split()
    return words[-1] if words else kernel


def _ncu(folder: Path, wanted: str, asked: ProfileSpec) -> tuple[str, ...]:
    """The command line of ncu; `wanted`: a regular expression for names of kernels."""
    sections = [word for section in SECTIONS for word in ("--section", section)]
    sections += [] if asked.set is None else ["--set", asked.set]
    return (
        "ncu", "--target-processes", "all", "--profile-from-start", "off",
        "--clock-control", "none",
        "--kernel-name", f"regex:{wanted}",
        "--filter-mode", "per-launch-config", "--launch-count", str(asked.launch_count),
        *sections, "-f", "-o", str(folder / "kernels"),
    )  # fmt: skip


def _launch(argv: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> None:
    """Run to the end; `GpurunError` with what ncu said if it wrote no report."""
    mode, _ = require(Path.cwd(), in_place=False)
    log = folder / "output.log"
    env, here = quiet_services(environment), Path.cwd()
    launch = LaunchSpec(
        argv=argv, env=env, cwd=here, writable=(folder,), layers=(), mode=mode, log=log
    )
    with Sandbox(launch) as sandbox:
        try:
            sandbox.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            raise GpurunError(
                f"the launch under Nsight Compute took over {MOST_SECONDS:.0f} s",
                "profile without ncu, or a shorter script",
            ) from None
    if not (folder / "kernels.ncu-rep").exists():
        said = log.read_text(errors="replace").splitlines() if log.exists() else []
        why = (*messages(said), *said[-1:], "it said nothing")[0]
        todo = cure([why]) if messages(said) else f"{log} says more"
        raise GpurunError(f"Nsight Compute wrote no report: {why}", todo)
