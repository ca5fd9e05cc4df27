"""Launches of a script on N devices, on this node and, where there are several, on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpurun.isolation.box import Mode
from gpurun.options import Options
from gpurun.scaling.devices import Devices
from gpurun.scaling.here import Here
from gpurun.scaling.launch import Launch, Order, concluded
from gpurun.scaling.messages import Part
from gpurun.scaling.nodes import Nodes
from gpurun.trials.stop_rules import LEAST_STEPS, later_rule


class Launcher:
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
        devices: Devices,
        distributed: str | None,
        note: Callable[[str], None],
        nodes: Nodes | None = None,
    ) -> None:
        assert options.scale is not None
        self.distributed = distributed
        self.folder = folder
        self.ddp_options = options.ddp_options
        """How gradients are exchanged where an order does not say."""
        self.launched = 0
        self._guessed = distributed is not None
        """Whether nothing but its source says so."""
        self._strong = options.scale.strong
        self._here = Here(options, folder, mode, devices)
        self._nodes = nodes
        self._note = note
        self._layered = True
        self._layer_holds = False
        """Whether a launch ran on top of it."""

    @property
    def longest(self) -> dict[int, float]:
        """Seconds of the longest launch so far, by ranks."""
        return self._here.longest

    def run(self, order: Order) -> Launch:
        """Launch, and wait for the end; KeyboardInterrupt kills it first.

        Launched again where it did not run as what it is: a script that is distributed by itself,
        one that only looked like it (Lightning on the devices that it finds), or one that cannot
        live with what the first launch wrote.
        """
        if order.first and self._nodes is not None and self._nodes.spanned(order.ranks) > 1:
            # ranks that stop after some time agree when, by files: nodes share none
            order = replace(order, rule=later_rule(LEAST_STEPS, ()))
        launch = self._launch(order)
        if launch.distributed is not None and self.distributed is None:
            self.distributed = launch.distributed
            self._note(f"the script is distributed by itself ({launch.distributed}): it runs as is")
            launch = self._launch(order)
        elif self._guessed and order.ranks > 1 and not launch.together and launch.trained:
            self._note(f"{self.distributed}, and its ranks exchange nothing: they are made to")
            self.distributed = None
            launch = self._launch(order)
        self._guessed = self._guessed and not launch.together
        layered = self._layered and self._here.layer is not None
        if launch.status == "failed" and layered and not self._layer_holds:
            self._note(
                "the script does not run on top of what its first launch wrote: every launch "
                "starts from the untouched folder"
            )
            self._layered = False
            launch = self._launch(order)
        self._layer_holds = self._layer_holds or (launch.error is None and not order.first)
        return launch

    def close(self) -> None:
        """Remove what only launches needed."""
        self._here.close()

    def _launch(self, order: Order) -> Launch:
        self.launched += 1
        options = self.ddp_options if order.options is None else order.options
        part = Part(self.launched, order, order.ranks, options, self.distributed, self._layered)
        if self._nodes is None:
            run_dir, ended = self._here.run(part)
        else:
            run_dir, ended = self._nodes.run(part, self._here)
        alone = order.ranks == 1 and self.distributed is None
        return concluded(order, run_dir, ended, strong=self._strong, alone=alone)
