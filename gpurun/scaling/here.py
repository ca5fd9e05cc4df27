"""One launch on this node: isolated like a trial, one rank a device.

One rank is a plain process, several are started by torch's elastic agent. All of them stop after
the same number of steps, which is known before: ranks that had to agree when to stop could wait for
each other. A rank that fails ends its launch, and so does a silence of all of them.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
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
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import Exchange, Parallel, RunSpec, Share, TrialSpec
from gpurun.scaling.devices import Devices
from gpurun.scaling.launch import Ended, Order
from gpurun.scaling.messages import Part
from gpurun.trials.launcher import FIRST_PATIENCE, LEAST_PATIENCE
from gpurun.trials.progress import Progress
from gpurun.trials.supervision import Supervision, launch

NOT_WITH_OTHERS = "some of its ranks did not end with the others"
GIVEN_UP_ELSEWHERE = "given up, as on another node"
GRACE_SECONDS = 10.0
"""Once a rank has ended its trial the others have so long at least, and as long as it took."""


class Elsewhere(enum.Enum):
    """What became of a launch on other nodes. ENDED: there; ours has some time to end, too."""

    RUNS = "runs"
    ENDED = "ended"
    GIVEN_UP = "given up"


class Here:
    """Launches the script on this node, one launch at a time. `close` removes what they shared.

    `folder` receives a run folder for each launch. `node`: the number of this one among several.
    """

    def __init__(
        self, options: Options, folder: Path, mode: Mode, devices: Devices, node: int = 0
    ) -> None:
        assert options.scale is not None
        self.folder = folder
        self.longest: dict[int, float] = {}
        """Seconds of the longest launch so far, by ranks."""
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
        self, part: Part, elsewhere: Callable[[], Elsewhere] = lambda: Elsewhere.RUNS
    ) -> tuple[Path, Ended]:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        `elsewhere`: what became of the launch on other nodes, so that ours ends with it.
        """
        order = part.order
        run_dir = self.folder / "launches" / part.name
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
        supervision = Supervision(self._patience(order), keep, _Together(elsewhere))
        exit_code, seconds, given_up = launch(self._box(part, run_dir), run_dir, supervision)
        self.longest[order.ranks] = max(self.longest.get(order.ranks, 0.0), seconds)
        return run_dir, Ended(exit_code, seconds, "" if given_up is None else given_up.text)

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

    def _patience(self, order: Order) -> float:
        """Seconds of silence after which a launch is given up."""
        if self._options.patience_seconds is not None:
            return self._options.patience_seconds
        if order.first:
            return FIRST_PATIENCE
        return max(LEAST_PATIENCE, 4 * max(self.longest.values(), default=0.0))

    def _keep_layer(self, box: Box, go: Callable[[], None]) -> None:
        layer = self.folder / "layer"
        if box.capture_layer(layer):
            self.layer = layer
        go()


class _Together:
    """Ends a launch with those of other nodes, and where some of its ranks outlive the others."""

    def __init__(self, elsewhere: Callable[[], Elsewhere]) -> None:
        self._elsewhere = elsewhere
        self._deadline: float | None = None

    def __call__(self, box: Box, progress: Progress, seconds: float) -> Failure | None:
        others = self._elsewhere()
        if others is Elsewhere.GIVEN_UP:
            return Failure(FailureKind.RANK_LEFT_BEHIND, GIVEN_UP_ELSEWHERE)
        if self._deadline is None and (progress.stopped or others is Elsewhere.ENDED):
            self._deadline = seconds + max(GRACE_SECONDS, seconds)
        late = self._deadline is not None and seconds > self._deadline
        return Failure(FailureKind.RANK_LEFT_BEHIND, NOT_WITH_OTHERS) if late else None
