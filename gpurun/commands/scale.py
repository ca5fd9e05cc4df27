"""`gpurun --scale 1,2,4,8`: the script as it is on so many devices, and how well it scales."""

from __future__ import annotations

import hashlib
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.options import Options, ScaleOptions, TargetKind
from gpurun.bench.record_of_launches import version_here
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say, teller
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.isolation.available_modes import require
from gpurun.launch.cluster_nodes import AUTO
from gpurun.launch.rendezvous import Rendezvous, join, rendezvous_of
from gpurun.records.codec import to_json
from gpurun.records.scaling import ScalingReport
from gpurun.report.scaling_text import print_scaling
from gpurun.rundir import run_folder, shown_path, write_json
from gpurun.scaling.ddp_option_trials import DdpOptionTrials, told
from gpurun.scaling.launch_rounds import DEFAULT_ROUNDS, LaunchRounds, Measurements, Plan
from gpurun.scaling.nodes import NodeFacts, Nodes, NodeVerdict
from gpurun.scaling.rank_devices import RankDevices, devices
from gpurun.scaling.scaling_document import MeasurementContext, document, worth_another_way
from gpurun.scaling.scaling_launcher import ScalingLauncher
from gpurun.scaling.scaling_requests import by_source, spawns_by_source
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.stop_rules import later_rule
from gpurun.version import VERSION

OF_NODES = ("--nnodes", "--nproc-per-node", "--rdzv", "--node-rank", "--master", "--local-addr")
"""Flags of torchrun that say which nodes there are and where they meet."""


def scale(options: Options) -> int:
    """Measure and report; 0, 5 where the script fails, 3 where the budget ended too early."""
    asked = options.scale
    assert asked is not None
    with SignalGuard() as interruption:
        rendezvous, here = _rendezvous(options), devices()
        _check(options, asked, here, rendezvous)
        if rendezvous is not None:
            return _on_nodes(options, asked, here, rendezvous, interruption)
        check_outputs(json=options.json)
        check_outputs(plot=asked.plot)
        return _report(options, asked, *_measure(options, asked, here, None, interruption))


def _on_nodes(
    options: Options,
    asked: ScaleOptions,
    here: RankDevices,
    rendezvous: Rendezvous,
    interruption: SignalGuard,
) -> int:
    """Measure together with the other nodes: the first one reports, the others end like it."""
    tell = teller(options.quiet)
    tell(f"waiting for {rendezvous.nodes} nodes at {rendezvous.host}:{rendezvous.port}")
    nodes = Nodes(join(rendezvous), tell)
    own = NodeVerdict("failed", int(ExitCode.INTERNAL), "it failed")
    try:
        nodes.introduce(_facts(options, asked, here, rendezvous))
        if nodes.first:
            check_outputs(json=options.json)
            check_outputs(plot=asked.plot)
        _check_counts(asked, here, nodes.ranks, rendezvous.nodes)
        measured = _measure(options, asked, here, nodes, interruption)
        interrupted = interruption.signal is not None
        if nodes.first:
            _report(options, asked, *measured)
        why = "it was interrupted" if interrupted else ""
        own = NodeVerdict(measured[0].verdict, measured[0].exit_code, why)
    except GpurunError as error:
        own = NodeVerdict("error", int(error.code), error.what)
        raise
    except KeyboardInterrupt:
        own = NodeVerdict("interrupted", interruption.exit_code, "it was interrupted")
        raise
    finally:
        interruption.hold()
        end = nodes.end(own)
    if not nodes.first:
        if end.why:
            say(f"the first node: {end.why}")
        print_verdict(end.verdict, end.exit_code, node=nodes.group.number)
    return end.exit_code


def _report(
    options: Options,
    asked: ScaleOptions,
    report: ScalingReport,
    folder: Path,
    measured: Measurements,
) -> int:
    """Write and print what was found; the exit code."""
    _keep(report, folder, options, asked)
    if report.verdict == "failed":
        _show_failure(report, measured, folder)
    if not options.quiet:
        print_scaling(report)
    largest = next((p for p in reversed(report.points) if p.efficiency is not None), None)
    print_verdict(
        report.verdict,
        report.exit_code,
        gpus=None if largest is None else largest.gpus,
        efficiency=None if largest is None else largest.efficiency,
        run=shown_path(folder),
    )
    return report.exit_code


def _rendezvous(options: Options) -> Rendezvous | None:
    """Where several nodes meet; None where no flag asks for more than this one.

    `PET_NNODES` alone does not: an operator sets it for trainings, and a measurement on one node of
    its job is no training.
    """
    if not any(word.startswith("--nnodes=") for word in options.torchrun):
        return None
    rendezvous = rendezvous_of(options.torchrun, os.environ)
    idle = [w.partition("=")[0] for w in options.torchrun if not w.startswith(OF_NODES)]
    if rendezvous is not None and idle:
        raise GpurunError(f"{idle[0]} is not for --scale, which starts its ranks itself", "drop it")
    return rendezvous


def _check(
    options: Options, asked: ScaleOptions, here: RankDevices, rendezvous: Rendezvous | None
) -> None:
    """Whatever would only come out after minutes of launches, or of waiting, is refused at once."""
    target = options.target
    if target.kind is TargetKind.SCRIPT and not os.path.exists(target.path):
        raise GpurunError(f"there is no script {target.path}", "check the path")
    if options.torchrun and rendezvous is None and AUTO not in options.torchrun:
        raise GpurunError(
            f"{options.torchrun[0].partition('=')[0]} is not for --scale on one node, which starts "
            "its ranks itself",
            "drop it, or name several nodes with --nnodes"
            if options.torchrun[0].startswith(OF_NODES)
            else "drop it",
        )
    if asked.plot == "-":
        raise GpurunError("--plot - : a picture is not for a terminal", "name a file, x.png")
    if asked.plot is not None and not asked.plot.lower().endswith(".png"):
        raise GpurunError(f"--plot {asked.plot}: the picture is a PNG", "name a file, x.png")
    spawning = spawns_by_source(target)
    if spawning is not None:
        raise GpurunError(
            f"the script starts its ranks itself ({spawning}), as many as it likes",
            "set each count with the script's own flag, or let gpurun start the ranks",
        )
    if rendezvous is None:
        here.check(asked.counts, asked.oversubscribe)
    elif rendezvous.ranks is not None:
        _check_counts(asked, here, rendezvous.ranks, rendezvous.nodes)
    hint = by_source(target) if asked.strong else None
    if hint is not None:
        raise GpurunError(
            f"--strong: the script is distributed by itself ({hint}) and shares out its batches",
            "drop it; a fixed global batch is the script's own matter",
        )


def check_counts(counts: Sequence[int], ranks: int, nodes: int) -> None:
    """`GpurunError` where a count does not fill nodes of `ranks` each, or needs more of them."""
    for wanted in counts:
        if wanted > ranks * nodes:
            raise GpurunError(
                f"--scale: {wanted} is above the {ranks * nodes} ranks of {nodes} nodes",
                "leave it out",
            )
        if wanted > ranks and wanted % ranks:
            raise GpurunError(
                f"--scale: {wanted} does not fill nodes of {ranks} ranks",
                f"write multiples of {ranks}, or give the ranks of a node with --nproc-per-node",
            )


def _check_counts(asked: ScaleOptions, here: RankDevices, ranks: int, nodes: int) -> None:
    here.check((ranks,), asked.oversubscribe)
    check_counts(asked.counts, ranks, nodes)


def _measure(
    options: Options,
    asked: ScaleOptions,
    here: RankDevices,
    nodes: Nodes | None,
    interruption: SignalGuard,
) -> tuple[ScalingReport, Path, Measurements]:
    """Launch until there is enough; what was measured is reported whatever ends it."""
    started = time.monotonic()
    thresholds = Thresholds(load_config(Path.cwd()).diagnose)
    tell = teller(options.quiet)
    now = time.monotonic if nodes is None else lambda: nodes.now
    mode, imperfection = require(Path.cwd(), in_place=options.trials_in_place)
    if imperfection:
        tell(imperfection)
    folder = run_folder(Path.cwd(), options.out)
    launcher = ScalingLauncher(options, folder, mode, here, by_source(options.target), tell, nodes)
    plan = Plan(
        counts=asked.counts,
        rounds=asked.rounds or DEFAULT_ROUNDS,
        steps=asked.steps,
        deadline=now() + (options.budget_seconds or math.inf),
        now=now,
    )
    rounds, trying = LaunchRounds(launcher, plan, tell), DdpOptionTrials(launcher, plan, tell)
    try:
        rounds.run()
        _try_other_exchanges(trying, rounds.measured, asked, here, nodes)
    except KeyboardInterrupt:
        tell("interrupted; gpurun keeps the figures so far")
    finally:
        interruption.hold()
        launcher.close()
    around = MeasurementContext(
        command=options.target.shown,
        devices=here,
        distributed=launcher.distributed,
        folder=folder,
        seconds=time.monotonic() - started,
        interrupted=interruption.signal is not None,
        nodes=1 if nodes is None else nodes.group.rendezvous.nodes,
        ranks_a_node=None if nodes is None else nodes.ranks,
        thresholds=thresholds,
    )
    report = replace(document(asked, rounds.measured, around), tried=told(trying))
    version = version_here(Path.cwd())
    report = replace(report, commit=None if version.dirty else version.commit)
    if interruption.signal is not None:
        report = replace(report, exit_code=interruption.exit_code)
    return report, folder, rounds.measured


def _try_other_exchanges(
    trying: DdpOptionTrials,
    measured: Measurements,
    asked: ScaleOptions,
    here: RankDevices,
    nodes: Nodes | None,
) -> None:
    """Try other ways to exchange gradients, where the exchange costs much and there is time."""
    count = worth_another_way(asked, measured)
    if count is None or measured.out_of_time or (nodes is not None and nodes.gone):
        return
    assert measured.steps is not None
    ranks_a_node = count if nodes is None else min(count, nodes.ranks)
    trying.run(count, later_rule(measured.steps, ()), nccl=ranks_a_node <= len(here.gpus))


def _facts(
    options: Options, asked: ScaleOptions, here: RankDevices, rendezvous: Rendezvous
) -> NodeFacts:
    """The facts that this node sends to the others."""
    target, text = options.target, b""
    if target.kind is TargetKind.SCRIPT:
        try:
            text = Path(target.path).read_bytes()
        except OSError as error:
            raise GpurunError(
                f"{target.path} cannot be read: {error.strerror}", "check the path"
            ) from None
    mode, _ = require(Path.cwd(), in_place=options.trials_in_place)
    plan = (asked.counts, asked.strong, asked.rounds, asked.steps, options.budget_seconds)
    return NodeFacts(
        host=socket.gethostname(),
        device=here.name,
        room=sys.maxsize if asked.oversubscribe else here.count,
        ranks=here.count if rendezvous.ranks is None else rendezvous.ranks,
        same={
            "version of gpurun": VERSION,
            "version of torch": version("torch"),
            "command": " ".join((target.kind.value, *target.shown)),
            "script": hashlib.sha256(text).hexdigest(),
            "plan (counts, rounds, steps, budget)": repr(plan),
            "exchange of gradients": repr(options.ddp_options),
            "way to isolate launches": mode.value,
            "patience": repr(options.patience_seconds),
            "number of ranks a node": repr(rendezvous.ranks),
        },
    )


def _keep(report: ScalingReport, folder: Path, options: Options, asked: ScaleOptions) -> None:
    """Write everything that was asked for; what cannot be written costs itself only."""
    try:
        write_json(folder / "scaling.json", to_json(report))
    except OSError as error:
        say(f"the record could not be written: {error.strerror or error}")
    emit_json(options.json, to_json(report))
    if asked.plot is not None:
        _draw(report, Path(asked.plot))


def _draw(report: ScalingReport, path: Path) -> None:
    from gpurun.report.plots.scaling_plot import draw_scaling

    try:
        if not draw_scaling(report, path):
            say("--plot: nothing was measured, so nothing is drawn")
    except OSError as error:
        say(f"--plot could not be written: {error.strerror or error}")
    except ImportError as error:
        say(f"--plot: {error}; install matplotlib")


def _show_failure(report: ScalingReport, measured: Measurements, folder: Path) -> None:
    """Each count on which the script fails, with the last lines of what it printed."""
    for point in report.points:
        launch = measured.failure(point.gpus)
        if launch is None or (launch.status == "oom" and point is not report.points[0]):
            continue
        ranks = count(point.gpus, "rank")
        if launch.status == "lost":
            say(f"{ranks} could not be measured: {launch.error}")
            continue
        say(f"the script fails with {ranks}: {launch.error}")
        for line in launch.printed:
            say(f"output: {line}")
        say(f"its whole output is in {shown_path(launch.folder)}")
    sys.stderr.flush()
