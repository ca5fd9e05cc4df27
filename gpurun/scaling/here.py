"""One launch on this node: isolated like a trial, one rank a device.

One rank is a plain process, several are started by torch's elastic agent. All of them stop after
the same number of steps, which is known before: ranks that had to agree when to stop could wait for
each other. A rank that fails ends its launch, and so does a silence of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpurun.bench.launches import SEED
from gpurun.isolation.box import Box, BoxSpec, Mode, discard, quiet_services
from gpurun.launch.caches import for_short_launches
from gpurun.launch.command import agent_command_line, command_line
from gpurun.launch.environment import child_environment
from gpurun.launch.hidden import in_layers
from gpurun.launch.share import shared_gpus
from gpurun.launch.spec_file import write_spec
from gpurun.options import Options
from gpurun.records.spec import Exchange, Parallel, RunSpec, Setting, Share, TrialSpec
from gpurun.scaling.devices import Devices
from gpurun.scaling.launch import Ended, Order
from gpurun.trials.progress import Progress
from gpurun.trials.supervision import Watch, launch

NOT_WITH_OTHERS = "some of its ranks did not end with the others"
GRACE_SECONDS = 10.0
"""Once a rank has ended its trial the others have so long at least, and as long as it took."""


@dataclass(frozen=True)
class Part:
    """The part of a launch that a node starts: `ranks` of its own, as one of `nodes` nodes.

    `number`: of the launch. `options`: how gradients are exchanged. `layered`: on top of what the
    first launch wrote. `distributed`: by what the script is known to be distributed by itself.
    `patience`: seconds of silence after which it is given up. `host` and `port`: where the agents
    of several nodes meet. `warms_up`: by itself, on a node that the first launch does not take.
    """

    number: int
    order: Order
    ranks: int
    options: tuple[Setting, ...]
    distributed: str | None
    layered: bool
    patience: float
    nodes: int = 1
    host: str = ""
    port: int = 0
    warms_up: bool = False

    @property
    def name(self) -> str:
        """Of its folder."""
        if self.warms_up:
            return f"{self.number:02d}-warm-up"
        mute = "" if self.order.exchange else "-no-exchange"
        plain = self.order.options is None and not self.order.settings
        other = "" if plain else "-other-exchange"
        return f"{self.number:02d}-of-{self.order.ranks}{mute}{other}"


class Here:
    """Launches the script on this node, one launch at a time. `close` removes what they shared.

    `folder` receives a run folder for each launch. `node`: the number of this one among several.
    """

    def __init__(
        self, options: Options, folder: Path, mode: Mode, devices: Devices, node: int = 0
    ) -> None:
        assert options.scale is not None
        self.folder = folder
        self.layer: Path | None = None
        """What the first launch wrote before its first step, if it was kept."""
        self._options = options
        self._strong = options.scale.strong
        self._mode = mode
        self._devices = devices
        self._node = node
        self._cache = folder / "cache"
        self._cache.mkdir()

    def run(
        self, part: Part, ended_elsewhere: Callable[[], bool] = lambda: False
    ) -> tuple[Path, Ended]:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `ended_elsewhere`: whether the launch has ended on another node; what it raises kills ours.
        """
        order = part.order
        run_dir = self.folder_of(part)
        (run_dir / "control").mkdir(parents=True)
        spec = RunSpec(
            str(run_dir),
            os.getpid(),
            settings=order.settings,
            trial=TrialSpec(stop=order.rule, seed=SEED, hold_at_first_step=order.first),
            parallel=self._parallel(part),
            exchange=Exchange(left_out=not order.exchange, options=part.options),
        )
        write_spec(spec)
        keep = self._keep_layer if order.first else None
        watch = Watch(part.patience, keep, _Together(ended_elsewhere))
        exit_code, seconds, given_up = launch(self._box(part, run_dir), run_dir, watch)
        return run_dir, Ended(exit_code, seconds, given_up)

    def folder_of(self, part: Part) -> Path:
        """Where the records of a launch are."""
        return self.folder / "launches" / part.name

    def close(self) -> None:
        """Remove what only launches needed."""
        self.layer = None
        for kind in ("cache", "layer"):
            discard(self.folder / kind)

    # -- before --------------------------------------------------------------------------------

    def _parallel(self, part: Part) -> Parallel | None:
        if part.order.ranks == 1 or part.distributed is not None:
            return None
        share = Share.GLOBAL if self._strong else Share.LOCAL
        return Parallel(share, SEED, shared_gpus(part.ranks, len(self._devices.gpus)))

    def _box(self, part: Part, run_dir: Path) -> BoxSpec:
        variables = quiet_services(self._devices.environment(part.ranks, os.environ))
        environment = child_environment(run_dir / "spec.json", variables)
        argv = self._argv(part, run_dir)
        return BoxSpec(
            argv=argv,
            env=for_short_launches(environment, self._cache, argv[0]),
            cwd=Path.cwd(),
            writable=(run_dir, self._cache),
            layers=() if self.layer is None or not part.layered else (self.layer,),
            mode=self._mode,
            log=run_dir / "output.log",
        )

    def _argv(self, part: Part, run_dir: Path) -> tuple[str, ...]:
        target = self._options.target
        if part.order.ranks == 1 and part.distributed is None:
            return command_line(target)
        flags = [
            *self._meeting(part),
            f"--nproc-per-node={part.ranks}",
            "--max-restarts=0",
            f"--log-dir={run_dir / 'ranks'}",
            "--redirects=3",
        ]
        if self._devices.gpus and (part.distributed is None or part.ranks > self._devices.count):
            flags.append("--virtual-local-rank")
        if part.distributed is None and self._mode is Mode.OVERLAY:
            target = in_layers(target, run_dir, (self._cache,))
        return agent_command_line(flags, target)

    def _meeting(self, part: Part) -> tuple[str, ...]:
        """The flags by which the agents of a launch find each other."""
        if part.nodes == 1:
            return ("--standalone",)
        return (
            f"--nnodes={part.nodes}",
            f"--node-rank={self._node}",
            f"--master-addr={part.host}",
            f"--master-port={part.port}",
        )

    # -- while it runs -------------------------------------------------------------------------

    def _keep_layer(self, box: Box, go: Callable[[], None]) -> None:
        layer = self.folder / "layer"
        if box.capture_layer(layer):
            self.layer = layer
        go()


class _Together:
    """Ends a launch where some of its ranks outlive the others, which may run on other nodes."""

    def __init__(self, ended_elsewhere: Callable[[], bool]) -> None:
        self._ended_elsewhere = ended_elsewhere
        self._deadline: float | None = None

    def __call__(self, box: Box, progress: Progress, seconds: float) -> str:
        if self._deadline is None and (self._ended_elsewhere() or progress.stopped):
            self._deadline = seconds + max(GRACE_SECONDS, seconds)
        late = self._deadline is not None and seconds > self._deadline
        return NOT_WITH_OTHERS if late else ""
