"""Launches of a script on N devices: isolated like trials, one rank a device.

One rank is a plain process, several are started by torch's elastic agent. All of them stop after
the same number of steps, which is known before: ranks that had to agree when to stop could wait for
each other. A rank that fails ends its launch, and so does a silence of all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from gpurun.bench.launches import (
    FIRST_PATIENCE,
    LEAST_PATIENCE,
    POLL_SECONDS,
    SAMPLE_SECONDS,
    SEED,
)
from gpurun.isolation.box import Box, BoxSpec, Mode, discard, quiet_services
from gpurun.launch.command import agent_command_line, command_line
from gpurun.launch.environment import child_environment
from gpurun.launch.hidden import in_layers
from gpurun.measure.sampler import Sampler
from gpurun.options import Options, Target
from gpurun.records.codec import to_json
from gpurun.records.spec import Exchange, Parallel, RunSpec, Share, TrialSpec
from gpurun.rundir import write_json
from gpurun.scaling.devices import Devices
from gpurun.scaling.launch import Ended, Launch, Order, concluded
from gpurun.tuner.progress import Progress

GRACE_SECONDS = 10.0
"""Once a rank has ended its trial the others have so long at least, and as long as it took."""


class Launcher:
    """Launches one script, one launch at a time. `close` removes what launches shared.

    `distributed`: by what the script is known to be distributed by itself; its ranks then run as
    they are. `folder` receives a run folder for each launch. `note` hears what is not as it should
    be.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        mode: Mode,
        devices: Devices,
        distributed: str | None,
        note: Callable[[str], None],
    ) -> None:
        assert options.scale is not None
        self.distributed = distributed
        self.folder = folder
        self.ddp_options = options.ddp_options
        """How gradients are exchanged where an order does not say."""
        self.launched = 0
        self.longest: dict[int, float] = {}
        """Seconds of the longest launch so far, by ranks."""
        self._options = options
        self._strong = options.scale.strong
        self._mode = mode
        self._devices = devices
        self._note = note
        self._layer: Path | None = None
        self._layer_holds = False
        """Whether a launch ran on top of it."""
        self._cache = folder / "cache"
        self._cache.mkdir()

    def run(self, order: Order) -> Launch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        Launched again where it did not run as what it is: a script that is distributed by itself,
        or one that cannot live with what the first launch wrote.
        """
        launch = self._launch(order)
        if launch.distributed is not None and self.distributed is None:
            self.distributed = launch.distributed
            self._note(f"the script is distributed by itself ({launch.distributed}): it runs as is")
            launch = self._launch(order)
        if launch.status == "failed" and self._layer is not None and not self._layer_holds:
            self._note(
                "the script does not run on top of what its first launch wrote: every launch "
                "starts from the untouched folder"
            )
            self._layer = None
            launch = self._launch(order)
        self._layer_holds = self._layer_holds or (launch.error is None and not order.first)
        return launch

    def close(self) -> None:
        """Remove what only launches needed."""
        self._layer = None
        for kind in ("cache", "layer"):
            discard(self.folder / kind)

    def _launch(self, order: Order) -> Launch:
        self.launched += 1
        mute = "" if order.exchange else "-no-exchange"
        mute += "" if order.options is None else "-other-exchange"
        run_dir = self.folder / "launches" / f"{self.launched:02d}-of-{order.ranks}{mute}"
        (run_dir / "control").mkdir(parents=True)
        trial = TrialSpec(stop=order.rule, seed=SEED, hold_at_first_step=order.first)
        spec = RunSpec(
            str(run_dir),
            os.getpid(),
            trial=trial,
            parallel=self._parallel(order),
            exchange=self._exchange(order),
        )
        write_json(run_dir / "spec.json", to_json(spec))
        began = time.monotonic()
        with closing(Sampler(run_dir)) as sampler:
            sampler.look_around()
            with Box(self._box(order.ranks, run_dir)) as box:
                given_up = self._watch(box, order, run_dir, sampler)
                if given_up:
                    box.kill()
                exit_code = None if given_up else box.poll()
        seconds = time.monotonic() - began
        self.longest[order.ranks] = max(self.longest.get(order.ranks, 0.0), seconds)
        ended = Ended(exit_code, seconds, given_up)
        alone = order.ranks == 1 and self.distributed is None
        return concluded(order, run_dir, ended, strong=self._strong, alone=alone)

    # -- before --------------------------------------------------------------------------------

    def _parallel(self, order: Order) -> Parallel | None:
        if order.ranks == 1 or self.distributed is not None:
            return None
        share = Share.GLOBAL if self._strong else Share.LOCAL
        return Parallel(share, SEED)

    def _exchange(self, order: Order) -> Exchange:
        options = self.ddp_options if order.options is None else order.options
        return Exchange(left_out=not order.exchange, options=options)

    def _box(self, ranks: int, run_dir: Path) -> BoxSpec:
        environment = child_environment(
            run_dir / "spec.json", quiet_services(self._devices.environment(ranks, os.environ))
        )
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(self._cache / "inductor"))
        environment.setdefault("PYTHONHASHSEED", "0")
        return BoxSpec(
            argv=self._argv(ranks, run_dir, self._options.target),
            env=environment,
            cwd=Path.cwd(),
            writable=(run_dir, self._cache),
            layers=() if self._layer is None else (self._layer,),
            mode=self._mode,
            log=run_dir / "output.log",
        )

    def _argv(self, ranks: int, run_dir: Path, target: Target) -> tuple[str, ...]:
        if ranks == 1 and self.distributed is None:
            return command_line(target)
        flags = [
            "--standalone",
            f"--nproc-per-node={ranks}",
            "--max-restarts=0",
            f"--log-dir={run_dir / 'ranks'}",
            "--redirects=3",
        ]
        if self._devices.gpus and (self.distributed is None or ranks > self._devices.count):
            flags.append("--virtual-local-rank")
        if self.distributed is None and self._mode is Mode.OVERLAY:
            target = in_layers(target, run_dir, (self._cache,))
        return agent_command_line(flags, target)

    # -- while it runs -------------------------------------------------------------------------

    def _watch(self, box: Box, order: Order, run_dir: Path, sampler: Sampler) -> str:
        """Wait for the end; why the launch had to be given up, "" if it ended by itself."""
        progress = Progress(run_dir, run_dir / "output.log")
        patience = self._patience(order)
        began = changed = sampled = time.monotonic()
        held = order.first
        deadline: float | None = None
        while box.poll() is None:
            time.sleep(POLL_SECONDS)
            moment = time.monotonic()
            if held and (run_dir / "control" / "first_step").exists():
                held = False
                self._keep_layer(box)
                (run_dir / "control" / "go").touch()
            if progress.advanced():
                changed = moment
            if moment - sampled > SAMPLE_SECONDS:
                sampled = moment
                sampler.tick(box.pid)
            if progress.stopped and deadline is None:
                deadline = moment + max(GRACE_SECONDS, moment - began)
            if deadline is not None and moment > deadline:
                return "some of its ranks did not end with the others"
            if moment - changed > patience:
                return f"hangs: given up after {patience:.3g} s without a sign of life"
        return ""

    def _patience(self, order: Order) -> float:
        """Seconds of silence after which a launch is given up."""
        if self._options.patience_seconds is not None:
            return self._options.patience_seconds
        if order.first:
            return FIRST_PATIENCE
        return max(LEAST_PATIENCE, 4 * max(self.longest.values(), default=0.0))

    def _keep_layer(self, box: Box) -> None:
        layer = self.folder / "layer"
        if box.capture_layer(layer):
            self._layer = layer
