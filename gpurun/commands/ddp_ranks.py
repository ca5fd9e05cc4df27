"""`--ddp`: hidden ranks of a script for one device, and the files that they may write."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.arguments.torchrun_flags import nodes_asked_for
from gpurun.errors import GpurunError
from gpurun.launch.hidden_ranks import hidden_flags, rank_environment
from gpurun.launch.rank_resources import check_devices, shared_gpus
from gpurun.records.messages.traits import DISTRIBUTED_TRAITS, PARALLEL_REFUSED
from gpurun.records.spec import Parallel, Share

REDUCED = "loss_reduction"
"""The trait of a rank whose losses were of parts of batches."""
RENDEZVOUS_FLAGS = ("--nnodes", "--rdzv-id", "--rdzv-endpoint", "--master-addr", "--master-port")


def hidden_ranks(
    options: Options, environment: Mapping[str, str], run_dir: Path | None
) -> tuple[Options, dict[str, str], Parallel, str]:
    """The target, its environment, the spec of its ranks, and a warning ("" if none).

    `GpurunError` where there are fewer devices than ranks, or where ranks would write the same
    files and nobody allowed that.
    """
    if run_dir is None:
        raise GpurunError("--ddp needs a folder for the spec of its ranks", "name one with --out")
    flags, ranks = hidden_flags(options.torchrun, run_dir / "ranks")
    shared = shared_gpus(ranks, check_devices(ranks, options.oversubscribe))
    told = parallel(with_reduction(options, environment, run_dir.parent.parent), shared)
    options, environment = replace(options, torchrun=flags), rank_environment(environment, ranks)
    if ranks == 1 or options.shared_writes:
        return options, environment, told, ""
    from gpurun.isolation.rank_command import available, layered_target

    able, reason = available()
    if not able:
        raise GpurunError(
            f"ranks would write the same files, because they cannot have private layers: {reason}",
            "allow it with --shared-writes if the script writes nothing, or the same in every rank",
        )
    options = replace(options, target=layered_target(options.target, run_dir))
    return options, environment, told, reason


def with_reduction(options: Options, environment: Mapping[str, str], home: Path) -> Options:
    """The options with how the loss reduces, where ranks that hide from the script need that.

    `Refused` where they cannot train it; `ScriptFailed` where it fails by itself.
    """
    if not options.ddp:
        return options
    _, ranks = hidden_flags(options.torchrun, None)
    if ranks == 1 and nodes_asked_for(options, os.environ) is None:
        return options
    from gpurun.ddp.verified_reduction import verified_reduction

    ranks = max(ranks, 2)
    shared = shared_gpus(ranks, check_devices(ranks, oversubscribe=True))
    found = verified_reduction(options, environment, ranks, shared, home)
    return replace(options, loss_reduction=found)


def parallel(options: Options, shared: int = 0) -> Parallel:
    """The part of the spec for ranks: the global batch is the script's, and they share so many
    GPUs.

    Nodes know nothing of each other yet. So the seed of several nodes is made from the flags of
    their rendezvous, which are alike on all.
    """
    reduction = options.loss_reduction
    if nodes_asked_for(options, os.environ) is None:
        return Parallel(Share.GLOBAL, time.time_ns() % 2**32, shared, reduction)
    chosen = sorted(word for word in options.torchrun if word.startswith(RENDEZVOUS_FLAGS))
    seed = zlib.crc32(" ".join(chosen).encode("utf-8", "surrogatepass"))
    return Parallel(Share.GLOBAL, seed, shared, reduction)


def distributed_by_itself(run_dir: Path) -> bool:
    """True if the script's own ranks formed a group. It needed no others, and lost the files that
    they wrote."""
    from gpurun.measure.run_events import read_run

    logs = read_run(run_dir).processes
    return any(trait.trait in DISTRIBUTED_TRAITS for log in logs for trait in log.traits)


def remarks(run_dir: Path) -> list[str]:
    """Lines that say how printed figures differ from those on one device."""
    from gpurun.measure.run_events import read_run

    logs = read_run(run_dir).processes
    if not any(trait.trait == REDUCED for log in logs for trait in log.traits):
        return []
    told = [
        "per-batch values that the script prints cover only rank 0's share: a sum over an epoch "
        "is that much smaller"
    ]
    kinds = {kind for log in logs for root in log.roots for kind in root.module_types}
    if any(kind.startswith("BatchNorm") for kind in kinds):
        told.append("BatchNorm normalised over each rank's share of a batch, unlike on one device")
    return told


def refusal(run_dir: Path) -> list[str]:
    """Why a rank gave up whose own words went into its log, in lines."""
    told = _refusals(run_dir)
    return [] if 0 in told else next(iter(told.values()), "").splitlines()


def refused(run_dir: Path) -> bool:
    """True if a rank gave up."""
    return bool(_refusals(run_dir))


def _refusals(run_dir: Path) -> dict[int, str]:
    """The reasons why ranks gave up."""
    from gpurun.measure.run_events import read_run

    return {
        log.process.rank or 0: trait.detail
        for log in read_run(run_dir).processes
        for trait in log.traits
        if trait.trait == PARALLEL_REFUSED
    }
