"""`gpurun --scale 1,2,4,8`: the script as it is on so many devices, and how well it scales."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpurun.bench.launches import later_rule
from gpurun.commands.bench.output import check_outputs, emit_json, say, teller
from gpurun.errors import GpurunError
from gpurun.isolation.box import require
from gpurun.options import Options, ScaleOptions, TargetKind
from gpurun.records.codec import to_json
from gpurun.records.scaling import ScalingReport
from gpurun.report.scaling import print_scaling
from gpurun.rundir import find_home, new_run, write_json
from gpurun.scaling.devices import devices
from gpurun.scaling.distributed import by_source
from gpurun.scaling.document import Circumstances, document, exchange_bound
from gpurun.scaling.launches import Launcher
from gpurun.scaling.rounds import DEFAULT_ROUNDS, Measurements, Plan, Rounds
from gpurun.scaling.trying import Trying, told
from gpurun.tuner.interruption import Interruption
from gpurun.verdict import print_verdict


def scale(options: Options) -> int:
    """Measure and report; 0, 5 where the script fails, 3 where the budget ended too early."""
    asked = options.scale
    assert asked is not None
    _check(options, asked)
    with Interruption() as interruption:
        report, folder, measured = _measure(options, asked, interruption)
        if interruption.signal is not None:
            report = replace(report, exit_code=interruption.exit_code)
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
        run=os.path.relpath(folder),
    )
    return report.exit_code


def _check(options: Options, asked: ScaleOptions) -> None:
    """Whatever would only come out after minutes of launches is refused at once."""
    target = options.target
    if target.kind is TargetKind.SCRIPT and not os.path.exists(target.path):
        raise GpurunError(f"there is no script {target.path}", "check the path")
    if options.torchrun:
        raise GpurunError(
            f"{options.torchrun[0].partition('=')[0]} is not for --scale, which starts its ranks "
            "itself, on one node",
            "drop it",
        )
    check_outputs(json=options.json)
    if asked.plot == "-":
        raise GpurunError("--plot - : a picture is not for a terminal", "name a file, x.png")
    check_outputs(plot=asked.plot)
    devices().check(asked.counts, asked.oversubscribe)
    hint = by_source(target) if asked.strong else None
    if hint is not None:
        raise GpurunError(
            f"--strong: the script is distributed by itself ({hint}) and shares out its batches",
            "drop it; a fixed global batch is the script's own matter",
        )


def _measure(
    options: Options, asked: ScaleOptions, interruption: Interruption
) -> tuple[ScalingReport, Path, Measurements]:
    """Launch until there is enough; what was measured is reported whatever ends it."""
    started = time.monotonic()
    tell = teller(options.quiet)
    mode, imperfection = require(Path.cwd(), in_place=options.trials_in_place)
    if imperfection:
        tell(imperfection)
    folder = _run_folder(options)
    here = devices()
    launcher = Launcher(options, folder, mode, here, by_source(options.target), tell)
    plan = Plan(
        counts=asked.counts,
        rounds=asked.rounds or DEFAULT_ROUNDS,
        steps=asked.steps,
        deadline=started + (options.budget_seconds or math.inf),
    )
    rounds, trying = Rounds(launcher, plan, tell), Trying(launcher, plan, tell)
    try:
        rounds.run()
        at = exchange_bound(asked, rounds.measured, here)
        if at is not None and not rounds.measured.out_of_time:
            assert rounds.measured.steps is not None
            rule = later_rule(rounds.measured.steps, ())
            trying.run(at, rule, on_gpus=bool(here.gpus))
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
    finally:
        interruption.hold()
        launcher.close()
    around = Circumstances(
        command=(options.target.path, *options.target.args),
        devices=here,
        distributed=launcher.distributed,
        folder=folder,
        seconds=time.monotonic() - started,
        interrupted=interruption.signal is not None,
    )
    report = replace(document(asked, rounds.measured, around), tried=told(trying))
    return report, folder, rounds.measured


def _run_folder(options: Options) -> Path:
    try:
        return new_run(find_home(Path.cwd(), options.out))
    except OSError as error:
        raise GpurunError(
            f"records cannot be written: {error.strerror or error}",
            "make room there, or name another folder with --out",
        ) from None


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
    from gpurun.report.plots.scaling import draw_scaling

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
        ranks = "1 rank" if point.gpus == 1 else f"{point.gpus} ranks"
        say(f"the script fails with {ranks}: {launch.error}")
        for line in launch.printed:
            say(f"output: {line}")
        say(f"its whole output is in {os.path.relpath(launch.folder)}")
    sys.stderr.flush()
