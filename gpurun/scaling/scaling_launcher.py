"""Launches of a script on N devices, on this node and, where there are several, on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.isolation.isolation_mode import Mode
from gpurun.scaling.finished_launch import FinishedLaunch, launch_of
from gpurun.scaling.nodes import Nodes
from gpurun.scaling.rank_devices import RankDevices
from gpurun.scaling.scaling_requests import NodeShare, PlannedLaunch, RequestBuilder
from gpurun.trials.launch_request import ALL_LAUNCHES, LaunchRequest
from gpurun.trials.stop_rules import LEAST_STEPS, later_rule
from gpurun.trials.trial_launcher import TrialLauncher


class ScalingLauncher:
    """Launches one script, one launch at a time. `close` removes what launches shared.

    `distributed`: by what the script is known to be distributed by itself; its ranks then run as
    they are. `folder` receives a run folder for each launch. `note` hears what is not as it should
    be. `nodes`: the others, None where there is this one only.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        mode: Mode,
        devices: RankDevices,
        distributed: str | None,
        note: Callable[[str], None],
        nodes: Nodes | None = None,
    ) -> None:
        assert options.scale is not None
        self.distributed = distributed
        self.folder = folder
        self.ddp_options = options.ddp_options
        """The exchange of gradients if a planned launch names none."""
        self.launched = 0
        self.longest: dict[int, float] = {}
        """Seconds of the longest launch so far, by ranks."""
        self._guessed = distributed is not None
        """True if nothing but its source says so."""
        self._strong = options.scale.strong
        self._requests = RequestBuilder(options, folder, devices)
        self._trials = TrialLauncher(folder, mode, tell=note)
        self._nodes = nodes
        self._note = note
        self._layer_holds = False
        """True if a launch ran on top of it."""

    def run(self, planned: PlannedLaunch) -> FinishedLaunch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        It is launched again in three cases: the script is distributed by itself; it only looked
        like that (Lightning on the devices that it finds); or it fails on the files of the first
        launch.
        """
        if planned.first and self._nodes is not None and self._nodes.spanned(planned.ranks) > 1:
            # ranks that stop after some time agree when, by files: nodes share none
            planned = replace(planned, rule=later_rule(LEAST_STEPS, ()))
        launch = self._launch(planned)
        if launch.distributed is not None and self.distributed is None:
            self.distributed = launch.distributed
            self._note(f"the script is distributed by itself ({launch.distributed}): it runs as is")
            launch = self._launch(planned)
        elif self._guessed and planned.ranks > 1 and not launch.together and launch.trained:
            self._note(
                f"{self.distributed}, and its ranks exchange nothing: gpurun makes them exchange "
                "gradients"
            )
            self.distributed = None
            launch = self._launch(planned)
        self._guessed = self._guessed and not launch.together
        layered = self._trials.has_layer(ALL_LAUNCHES)
        if launch.status == "failed" and layered and not self._layer_holds:
            self._note(
                "the script fails on top of its first launch's files: every launch starts from "
                "the original folder"
            )
            self._trials.drop_layer(ALL_LAUNCHES)
            launch = self._launch(planned)
        self._layer_holds = self._layer_holds or (launch.error is None and not planned.first)
        return launch

    def close(self) -> None:
        """Remove what only launches needed."""
        self._trials.close()

    def _launch(self, planned: PlannedLaunch) -> FinishedLaunch:
        self.launched += 1

        def request(name: str, share: NodeShare) -> LaunchRequest:
            name = f"{self.launched:02d}-{name}"
            return self._requests.make(name, planned, share, self.distributed)

        if self._nodes is None:
            outcome = self._trials.run(request(planned.name, NodeShare(planned.ranks)))
        else:
            outcome = self._nodes.run(planned, request, self._trials)
        self.longest[planned.ranks] = max(self.longest.get(planned.ranks, 0.0), outcome.seconds)
        return launch_of(planned, outcome, strong=self._strong)
