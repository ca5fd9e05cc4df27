"""Launch the script as one process, in isolation, on whole batches or on parts of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.quiet_services import quiet_services
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.child_environment import child_environment
from gpurun.launch.compile_caches import shared_cache_environment
from gpurun.launch.launch_command import command_line
from gpurun.launch.spec_file import write_spec
from gpurun.measure.run_events import ProcessLog, read_run
from gpurun.records.events import PARALLEL_REFUSED, GradientEvent, LoaderEvent, ProbeEvent
from gpurun.records.spec import ProbeSpec, RunSpec

LIMIT_SECONDS = 1800.0
POLL_SECONDS = 0.05
LOOK_SECONDS = 0.5
GRACE_SECONDS = 20.0
"""Once one process has ended the probe, the others have so long."""
OF_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ProbeRun:
    """The result of one launch. `exit_code` is None where it did not end in time.

    `refusal`: why ranks cannot train the script, and what to do; "" if nothing says so.
    """

    exit_code: int | None
    refusal: str
    probe: ProbeEvent | None
    gradients: tuple[GradientEvent, ...]
    loaders: tuple[LoaderEvent, ...]
    log: Path

    @property
    def failed(self) -> bool:
        """True if the script failed by itself."""
        return bool(self.exit_code) or (self.probe is not None and self.probe.reason == "failed")


class ProbeLaunch:
    """A running launch of the probe, in a folder of its own."""

    def __init__(
        self,
        options: Options,
        environment: Mapping[str, str],
        mode: Mode,
        folder: Path,
        probe: ProbeSpec,
        training_loaders: tuple[str, ...] = (),
    ) -> None:
        self._folder = folder
        cache = folder / "cache"
        cache.mkdir(parents=True)
        write_spec(
            RunSpec(str(folder), os.getpid(), training_loaders=training_loaders, probe=probe)
        )
        argv = command_line(options.target)
        alone = quiet_services(child_environment(folder / "spec.json", _alone(environment)))
        self._sandbox = Sandbox(
            LaunchSpec(
                argv=argv,
                env=shared_cache_environment(alone, cache, argv[0]),
                cwd=Path.cwd(),
                writable=(folder,),
                layers=(),
                mode=mode,
                log=folder / "output.log",
            )
        )

    def wait(self) -> ProbeRun:
        """Wait for its end: everything that it started ends with it."""
        began = looked = time.monotonic()
        over: float | None = None
        with self._sandbox as sandbox:
            while sandbox.poll() is None:
                time.sleep(POLL_SECONDS)
                now = time.monotonic()
                if over is None and now - looked > LOOK_SECONDS:
                    looked = now
                    over = now if _is_over(read_run(self._folder).processes) else None
                if now - began > LIMIT_SECONDS or (over and now - over > GRACE_SECONDS):
                    break
            exit_code = sandbox.poll()
            if exit_code is None and over is not None:
                exit_code = 0  # its verdict is in its record
        return self._seen(exit_code)

    def close(self) -> None:
        """Kill it."""
        self._sandbox.close()

    def _seen(self, exit_code: int | None) -> ProbeRun:
        logs = read_run(self._folder).processes
        main = next((log for log in logs if log.probe is not None or log.gradients), None)
        return ProbeRun(
            exit_code,
            _refusal(logs),
            None if main is None else main.probe,
            () if main is None else main.gradients,
            () if main is None else main.loaders,
            self._folder / "output.log",
        )


def _alone(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is no rank, sees one device and compiles nothing."""
    alone = {name: value for name, value in environment.items() if name not in OF_RANKS}
    visible = [word for word in alone.get(VISIBLE, "0").split(",") if word.strip()]
    return {**alone, VISIBLE: visible[0] if visible else "", "TORCHDYNAMO_DISABLE": "1"}


def _is_over(logs: tuple[ProcessLog, ...]) -> bool:
    return bool(_refusal(logs)) or any(log.probe is not None for log in logs)


def _refusal(logs: tuple[ProcessLog, ...]) -> str:
    """The refusal of the process that started last: in a script whose children train, they know the
    reason."""
    told = [x.detail for log in logs for x in log.traits if x.trait == PARALLEL_REFUSED]
    return told[-1] if told else ""
