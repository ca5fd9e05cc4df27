"""A request to launch a script: its command, settings, ranks and limits."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpurun.arguments.options import Target
from gpurun.records.spec import Exchange, Parallel, Setting, Trees, TrialSpec

ALL_LAUNCHES = "script"
"""By this name, all launches of a script share."""


@dataclass(frozen=True)
class Ranks:
    """Ranks on torch's elastic agent. `torchrun`: the agent's flags, log folder included.

    `parallel`: the script knows of one device; each rank then trains on its share of the batches.
    `to_finish`: so many ranks of this node must have seen enough, or the launch fails; by default
    the first one ends it.
    """

    torchrun: tuple[str, ...]
    parallel: Parallel | None = None
    to_finish: int | None = None


@dataclass(frozen=True)
class LaunchRequest:
    """One launch of a script.

    `name`: what messages call it. `run_dir`: receives its records; the launcher makes it.
    `environment`: the script's whole environment, `settings_environment` the variables that its
    settings need over it. `trial`: stop rule, seeds, planted seconds; the launcher decides itself
    whether the script waits at its first step. `ranks`: None for one plain process.

    `shared`: launches with the same name share caches and a layer. `keep_layer`: what this launch
    writes before its first step becomes the layer, which later launches find in place.
    `patience_seconds`: the launch is given up after so long without a sign of life; None: four
    times as long as any launch took, 30 minutes for one that keeps its layer, for it may download.
    `limit_seconds`: it is given up after so long at most; `deadline`: and then, by the monotonic
    clock. `hurry_at`: then the turns of a live pair end with their first ratio (`TurnLimits`).
    `following`: the launches after it, as far as one can know; their processes start early where
    the machine has room.
    """

    name: str
    run_dir: Path
    target: Target
    cwd: Path
    environment: Mapping[str, str]
    trial: TrialSpec
    python: str = sys.executable
    settings: tuple[Setting, ...] = ()
    settings_environment: Mapping[str, str] = field(default_factory=dict)
    training_loaders: tuple[str, ...] = ()
    knob_paths: tuple[str, ...] = ()
    trees: Trees | None = None
    ranks: Ranks | None = None
    exchange: Exchange = field(default_factory=Exchange)
    shared: str = ALL_LAUNCHES
    keep_layer: bool = False
    patience_seconds: float | None = None
    limit_seconds: float = math.inf
    deadline: float = math.inf
    hurry_at: float = math.inf
    following: tuple[LaunchRequest, ...] = ()

    @property
    def knobs(self) -> tuple[str, ...]:
        """The names of the knobs that are set."""
        return tuple(setting.knob for setting in self.settings)
