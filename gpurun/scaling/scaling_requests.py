"""From a number of ranks to what the launcher is asked: the script in one rank a device.

One rank is a plain process, several are started by torch's elastic agent. All of them stop after
the same number of steps, which is known beforehand. Ranks that had to agree when to stop could wait
for each other. A rank that fails ends its launch, and so does a silence of all of them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.launch.rank_resources import shared_gpus
from gpurun.measure.fingerprint import modules_below
from gpurun.records.spec import SEED, Exchange, Parallel, Setting, Share, StopRule, TrialSpec
from gpurun.scaling.rank_devices import RankDevices
from gpurun.trials.launch_request import LaunchRequest, Ranks

NAMES = (
    "init_process_group", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard",
    "init_device_mesh",
)  # fmt: skip
LIBRARIES = ("accelerate", "lightning", "pytorch_lightning", "deepspeed", "horovod")
STARTERS = ("spawn", "start_processes")
TRAINERS = ("Trainer", "Seq2SeqTrainer", "TrainingArguments")


def by_source(target: Target) -> str | None:
    """By what the script or a module beside it shows that it is distributed; None if by nothing."""
    found = ((path, next(_hints(tree), None)) for path, tree in _sources(target))
    return next((f"{path.name} uses {hint}" for path, hint in found if hint is not None), None)


def spawns_by_source(target: Target) -> str | None:
    """By what the script shows that it is distributed and starts its ranks itself; else None."""
    if by_source(target) is None:
        return None
    for path, tree in _sources(target):
        if any(_starts(node) for node in ast.walk(tree)):
            return f"{path.name} uses torch.multiprocessing"
    return None


def _sources(target: Target) -> Iterator[tuple[Path, ast.AST]]:
    """The script and the modules beside it, as far as they can be read."""
    if target.kind is not TargetKind.SCRIPT:
        return
    script = Path(target.path).resolve()
    for path in (script, *modules_below(script.parent, script)):
        with suppress(OSError, SyntaxError, ValueError):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def _starts(node: ast.AST) -> bool:
    """True if it is torch's function that starts processes."""
    if isinstance(node, ast.ImportFrom):
        of_torch = node.module == "torch.multiprocessing"
        return of_torch and any(alias.name in STARTERS for alias in node.names)
    if not isinstance(node, ast.Attribute) or node.attr not in STARTERS:
        return False
    return ast.unparse(node.value) in ("mp", "multiprocessing", "torch.multiprocessing")


def _hints(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.partition(".")[0] in LIBRARIES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            package = (node.module or "").partition(".")[0]
            if package in LIBRARIES:
                yield package
            names = [alias.name for alias in node.names]
            if package == "transformers":
                yield from (f"transformers.{name}" for name in names if name in TRAINERS)
            yield from (name for name in names if name in NAMES)
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield node.attr


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch of so many ranks, to be stopped by this rule.

    `exchange`: False to leave gradients unexchanged. `first`: what it writes before its first step
    is there for all later launches, and it may take long to get there. `options`: how gradients are
    exchanged, None for what the user asked for. `settings`: knobs to turn, which must apply.
    """

    ranks: int
    rule: StopRule
    exchange: bool = True
    first: bool = False
    options: tuple[Setting, ...] | None = None
    settings: tuple[Setting, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder, without its number."""
        mute = "" if self.exchange else "-no-exchange"
        other = "" if self.options is None and not self.settings else "-other-exchange"
        return f"of-{self.ranks}{mute}{other}"


@dataclass(frozen=True)
class NodeShare:
    """This node's share of a launch: `ranks` of its own, as node `number` of `nodes`.

    `host` and `port`: where the agents of several nodes meet.
    """

    ranks: int
    nodes: int = 1
    number: int = 0
    host: str = ""
    port: int = 0

    @property
    def world_size(self) -> int:
        """Ranks of the whole launch."""
        return self.ranks * self.nodes

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags by which the agents of a launch find each other."""
        if self.nodes == 1:
            return ("--standalone",)
        return (
            f"--nnodes={self.nodes}",
            f"--node-rank={self.number}",
            f"--master-addr={self.host}",
            f"--master-port={self.port}",
        )


class RequestBuilder:
    """Makes the requests of one measurement; launches have their folders below `folder`."""

    def __init__(self, options: Options, folder: Path, devices: RankDevices) -> None:
        assert options.scale is not None
        self._options = options
        self._folder = folder
        self._devices = devices
        self._split = Share.GLOBAL if options.scale.strong else Share.LOCAL

    def make(
        self, name: str, planned: PlannedLaunch, share: NodeShare, distributed: str | None
    ) -> LaunchRequest:
        """The request for a node's share of a planned launch.

        `distributed`: by what the script is known to be distributed by itself; its ranks then run
        as they are.
        """
        run_dir = self._folder / "launches" / name
        options = self._options.ddp_options if planned.options is None else planned.options
        return LaunchRequest(
            name=name,
            run_dir=run_dir,
            target=self._options.target,
            cwd=Path.cwd(),
            environment=self._devices.environment(share.ranks, os.environ),
            trial=TrialSpec(stop=planned.rule, seed=SEED),
            settings=planned.settings,
            ranks=self._ranks(run_dir, share, distributed),
            exchange=Exchange(left_out=not planned.exchange, options=options),
            keep_layer=planned.first,
            patience_seconds=self._options.patience_seconds,
        )

    def _ranks(self, run_dir: Path, share: NodeShare, distributed: str | None) -> Ranks | None:
        if share.world_size == 1 and distributed is None:
            return None
        gpus = len(self._devices.gpus)
        flags = [
            *share.flags,
            f"--nproc-per-node={share.ranks}",
            "--max-restarts=0",
            f"--log-dir={run_dir / 'ranks'}",
            "--redirects=3",
        ]
        if gpus and (distributed is None or share.ranks > self._devices.count):
            flags.append("--virtual-local-rank")
        hidden = distributed is None
        parallel = Parallel(self._split, SEED, shared_gpus(share.ranks, gpus)) if hidden else None
        return Ranks(tuple(flags), parallel, to_finish=share.ranks)
