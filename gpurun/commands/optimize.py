"""`gpurun --optimize`: tune by short trials, prove the gain, then train with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gpurun.commands.run import run_with
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.box import Mode, choose, snapshot
from gpurun.options import Options, TargetKind
from gpurun.records.codec import to_json
from gpurun.records.tuning import SavedSettings, TuningReport
from gpurun.report.ladder import print_ladder
from gpurun.report.markdown import tuning_markdown
from gpurun.report.terminal import PREFIX, write_plain
from gpurun.report.tuning import TuningView, tuning_view
from gpurun.rundir import find_home, new_run, write_json
from gpurun.tuner import cache
from gpurun.tuner.document import document
from gpurun.tuner.trial import Laboratory
from gpurun.tuner.tuning import Ended, Tuning
from gpurun.verdict import print_verdict

DEFAULT_BUDGET_SECONDS = 300.0
EXIT_CODES = {
    "faster": ExitCode.OK,
    "no_gain": ExitCode.OK,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "interrupted": ExitCode.INTERRUPTED,
}
"""Of `--tune-only`; everything else is the script's own failure."""


def optimize(options: Options) -> int:
    """Tune; then, unless `--tune-only`, train with what was proven (or as it is)."""
    _check_target(options)
    folder = new_run(find_home(Path.cwd(), options.out))
    report = _tune(options, folder)
    _write(report, options, folder)
    if not options.quiet:
        print_ladder(report, folder)
    code = int(EXIT_CODES.get(report.verdict, ExitCode.BENCHMARK_FAILED))
    if options.tune_only or report.verdict == "interrupted":
        print_verdict(report.verdict, code, speedup=report.speedup, run=os.path.relpath(folder))
        return code
    saved = _saved(report, folder) if report.verdict == "faster" else None
    return run_with(options, saved)


def _check_target(options: Options) -> None:
    target = options.target
    if target.kind is TargetKind.SCRIPT and not os.path.isfile(target.path):
        raise GpurunError(f"there is no script {target.path}", "check the path")
    if options.json == "-" and not options.tune_only:
        raise GpurunError("--json - would mix with the script's own stdout", "name a file")


def _tune(options: Options, folder: Path) -> TuningReport:
    started = time.monotonic()
    budget = options.budget_seconds or DEFAULT_BUDGET_SECONDS
    available = choose(Path.cwd(), in_place=options.trials_in_place)
    if available.mode is None:
        raise GpurunError(
            f"trials cannot be isolated here: {available.reason}",
            "allow user namespaces, or consent to trials in your folder with --trials-in-place",
        )
    view = tuning_view(options.quiet)
    command = " ".join((options.target.path, *options.target.args))
    fingerprint = cache.fingerprint_of(options)
    before = snapshot(_watched(options), exclude=[folder.parent.parent])
    laboratory = Laboratory(
        options, folder, available.mode, os.environ, on_progress=view.trial_progress
    )
    tuning = Tuning(options, laboratory, view, started + budget)
    view.started(command, available.mode.value, budget)
    if available.reason:
        view.note(available.reason)
    _carry_through(tuning, view)
    report = document(
        tuning.findings,
        options=options,
        trials=laboratory.trials,
        isolation=available.mode.value,
        fingerprint=fingerprint,
        seconds=time.monotonic() - started,
    )
    view.finished(report)
    view.close()
    _compare(
        before.differences(snapshot(_watched(options), exclude=[folder.parent.parent])),
        available.mode,
    )
    return report


def _carry_through(tuning: Tuning, view: TuningView) -> None:
    """Run the tuning to whichever end; the view gives the terminal back in any case."""
    try:
        with _terminable():
            tuning.run()
    except Ended as ended:
        tuning.findings.verdict = ended.verdict
        tuning.findings.decisions.append(ended.why)
        view.note(ended.why)
        _show_failure(tuning, view, ended)
    except KeyboardInterrupt:
        tuning.findings.verdict = "interrupted"
        view.note("interrupted; what was measured is kept")
    except BaseException:
        view.close()
        raise


def _show_failure(tuning: Tuning, view: TuningView, ended: Ended) -> None:
    """What the script itself printed, where it failed by itself."""
    probe = tuning.findings.probe
    if ended.verdict != "script_failed" or probe is None or not tuning.options.tune_only:
        return
    view.close()
    log = tuning.trial_folder(probe.record) / "output.log"
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return
    sys.stderr.write(text[-4000:].replace("\r\n", "\n"))


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the tuning as Ctrl-C does: trials gone, record kept."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _watched(options: Options) -> list[Path]:
    """The folders that trials must leave as they were: the working folder and the script's."""
    folders = [Path.cwd()]
    if options.target.kind is TargetKind.SCRIPT:
        home = Path(options.target.path).resolve().parent
        if not home.is_relative_to(folders[0]):
            folders.append(home)
    return folders


def _compare(changes: tuple[str, ...], mode: Mode) -> None:
    if not changes:
        return
    shown = ", ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
    if mode is Mode.IN_PLACE:
        write_plain([f"{PREFIX}the trials changed your folder, as you allowed: {shown}"])
        return
    raise GpurunError(
        f"files changed while tuning: {shown}",
        "if you did not change them yourself, this is a fault of ours: please report it",
        ExitCode.INTERNAL,
    )


def _write(report: TuningReport, options: Options, folder: Path) -> None:
    """The report in the run folder, the cache and where the user asked for it."""
    body = to_json(report)
    write_json(folder / "tuning.json", body)
    (folder / "report.md").write_text(tuning_markdown(report), encoding="utf-8")
    if options.json == "-":
        import json

        json.dump(body, sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif options.json is not None:
        write_json(Path(options.json), body)
    if report.verdict == "faster":
        saved = _saved(report, folder)
        cache.save(cache.place(folder.parent.parent, options), saved)
        if options.save_settings is not None:
            cache.save(Path(options.save_settings), saved)


def _saved(report: TuningReport, folder: Path) -> SavedSettings:
    assert report.chosen is not None
    return SavedSettings(
        settings=report.chosen.knobs,
        training_loaders=_training_loaders(folder),
        speedup=report.speedup,
        fingerprint=report.fingerprint,
        command=report.command,
    )


def _training_loaders(folder: Path) -> tuple[str, ...]:
    """The loaders that feed the training, as the last trial was told."""
    import json

    specs = sorted((folder / "trials").glob("*/spec.json"))
    return tuple(json.loads(specs[-1].read_text())["training_loaders"]) if specs else ()
