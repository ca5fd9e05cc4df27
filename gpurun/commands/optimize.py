"""`gpurun --optimize`: tune by short trials, prove the gain, then train with it."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.options import Objective, Options, TargetKind
from gpurun.arguments.torchrun_flags import nodes_asked_for
from gpurun.commands import saved_settings
from gpurun.commands.ddp_ranks import with_reduction
from gpurun.commands.run import run_with
from gpurun.commands.written_outputs import check_outputs, print_verdict, say, write_stdout
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.one_line import one_line
from gpurun.isolation.available_modes import require
from gpurun.isolation.folder_removal import discard, hold
from gpurun.isolation.folder_snapshot import files_open_for_writing, snapshot
from gpurun.isolation.isolation_mode import Mode
from gpurun.knobs import all_knobs, find
from gpurun.launch.compile_caches import KERNELS
from gpurun.measure.fingerprint import command_fingerprint
from gpurun.measure.nvml import tells_energy
from gpurun.records.codec import to_json
from gpurun.records.script_arguments import TunedArgument
from gpurun.records.tuning import APPLICABLE, MEASURED, SavedSettings, TuningReport
from gpurun.report.ladder import print_ladder
from gpurun.report.live_tuning_table import tuning_view
from gpurun.rundir import (
    json_text,
    no_records,
    run_folder,
    shown_path,
    write_json,
    write_output,
)
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.trial_launcher import KEPT
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_document import tuning_document
from gpurun.tuner.tuning_findings import TuningEnded
from gpurun.tuner.tuning_run import TuningRun
from gpurun.tuner.tuning_view import TuningView

EXIT_CODES = {
    "faster": ExitCode.OK,
    "smaller": ExitCode.OK,
    "saves_energy": ExitCode.OK,
    "fits": ExitCode.OK,
    "no_gain": ExitCode.OK,
    "dry_run": ExitCode.OK,
    "inconclusive": ExitCode.INCONCLUSIVE,
}
"""Exit codes of `--tune-only`; every other verdict is the script's own failure."""
PACKAGE = Path(__file__).parents[1]
"""In a checkout below the user's folder gpurun's own bytecode is written at its first runs."""
PASSES_LANDLOCK = "by a trial's chmod, chown, utime or truncate"
"""Landlock does not forbid these, the last one before Linux 6.2: who it was cannot be told."""
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO}
"""Errors of a place where records cannot be written (any more)."""


@dataclass(frozen=True)
class TuningOutcome:
    """The end of a tuning. `failure`: the error that ended it, if the script did not."""

    report: TuningReport
    folder: Path
    training_loaders: tuple[str, ...]
    changes: tuple[str, ...]
    tuned_arguments: tuple[TunedArgument, ...]
    companions: dict[str, tuple[str, ...]]
    """By chosen knob, the settings that go with it."""
    failure: Exception | None

    @property
    def settings(self) -> SavedSettings | None:
        """The settings that were proven or make the script fit; None if none were."""
        report = self.report
        if report.verdict not in APPLICABLE or report.chosen is None:
            return None
        chosen = report.chosen.knobs
        return SavedSettings(
            settings=chosen,
            training_loaders=self.training_loaders,
            speedup=report.speedup if report.verdict == "faster" else None,
            fingerprint=report.fingerprint,
            command=report.command,
            tuned_arguments=tuple(a for a in self.tuned_arguments if a.name in chosen),
            verdict=report.verdict,
            baseline_samples_per_second=(
                report.baseline.samples_per_second if report.baseline is not None else None
            ),
            companions=self.companions,
        )

    @property
    def nothing_proven(self) -> SavedSettings | None:
        """A record that nothing was proven."""
        report = self.report
        if report.verdict not in ("no_gain", "inconclusive"):
            return None
        return SavedSettings(
            settings={},
            training_loaders=self.training_loaders,
            speedup=None,
            fingerprint=report.fingerprint,
            command=report.command,
            tuned_arguments=self.tuned_arguments,
            verdict=report.verdict,
        )


def optimize(options: Options) -> int:
    """Tune; then, unless `--tune-only`, train with what was proven (or as it is)."""
    _check(options)
    with SignalGuard() as interruption:
        tuned = _tune(options, interruption)
        unwritten = _write(tuned, options)
    with _kept_kernels(tuned.folder):
        if tuned.failure is not None:
            raise tuned.failure
        if not options.quiet:
            print_ladder(tuned.report, tuned.folder)
        if interruption.signal is not None:
            return _ended("interrupted", interruption.exit_code, tuned)
        _complain(tuned, unwritten, options)
        if options.tune_only:
            code = EXIT_CODES.get(tuned.report.verdict, ExitCode.BENCHMARK_FAILED)
            return _ended(tuned.report.verdict, int(code), tuned)
        return run_with(options, tuned.settings)


@contextmanager
def _kept_kernels(run: Path) -> Iterator[None]:
    """What this process launches starts from the kernels kept in a run folder; removed at the end.

    A folder that the user set stays.
    """
    kept = run / KEPT
    if not kept.is_dir() or os.environ.get(KERNELS):
        discard(kept)
        yield
        return
    held = hold(run)
    os.environ[KERNELS] = str(kept)
    try:
        yield
    finally:
        del os.environ[KERNELS]
        discard(kept)
        os.close(held)


def _ended(verdict: str, code: int, tuned: TuningOutcome) -> int:
    where = shown_path(tuned.folder)
    speedup = tuned.report.speedup if verdict == "faster" else None
    print_verdict(verdict, code, speedup=speedup, run=where)
    return code


def _complain(tuned: TuningOutcome, unwritten: list[str], options: Options) -> None:
    """Raise if trials may have changed files, or if a result of `--tune-only` was not written."""
    changes = tuned.changes
    if changes:
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        shown = ", ".join(changes[:3]) + more
        if options.trials_in_place:
            say(f"the trials changed your folder, as you allowed: {shown}")
        elif tuned.report.isolation == Mode.OVERLAY.value:
            say(f"changed by you or another program while tuning, trials cannot: {shown}")
        else:
            found = "" if tuned.settings is None else "; gpurun --tuned applies what was found"
            raise GpurunError(
                f"files changed while tuning, by another program or {PASSES_LANDLOCK}: {shown}",
                f"tune while nothing else writes there{found}",
            )
    if unwritten and options.tune_only:
        raise GpurunError("; ".join(unwritten), "make room there, or name another place")
    for line in unwritten:
        say(line)
    if options.save_settings is not None and tuned.settings is None:
        say("--save-settings: nothing was proven, so nothing was saved")


# -- before ----------------------------------------------------------------------------------------


def _check(options: Options) -> None:
    """Refuse at once whatever would fail only after minutes of trials."""
    target = options.target
    if target.kind is TargetKind.SCRIPT and not os.path.exists(target.path):
        raise GpurunError(f"there is no script {target.path}", "check the path")
    nodes = nodes_asked_for(options, os.environ)
    if nodes is not None:
        raise GpurunError(f"--optimize tunes on one node, not {nodes}", "drop it, or set it to 1")
    if options.tuned or options.settings is not None:
        word = "tuned" if options.tuned else "settings"
        raise GpurunError(f"--{word} applies settings without trials", "drop it or --optimize")
    if options.json == "-" and not options.tune_only:
        raise GpurunError(
            "--json - would mix with the script's own stdout", "name a file, or add --tune-only"
        )
    if options.prometheus is not None or options.tensorboard is not None:
        from gpurun.commands.live_outputs import LiveOutputs

        LiveOutputs(options).close()
    if options.aim is Objective.ENERGY and not tells_energy():
        raise GpurunError(
            "--objective energy: the GPUs here do not all count their joules, or there is none",
            "tune for throughput: a training that ends sooner mostly takes less energy",
        )
    check_outputs(**{"json": options.json, "save-settings": options.save_settings})


# -- the tuning ------------------------------------------------------------------------------------


def _tune(options: Options, interruption: SignalGuard) -> TuningOutcome:
    """Carry the tuning through to whichever end; what was measured until then is reported."""
    started = time.monotonic()
    budget = options.budget_seconds
    assert budget is not None
    mode, imperfection = require(Path.cwd(), in_place=options.trials_in_place)
    all_knobs(options.knob_paths)  # a broken one is told now, and leaves its bytecode now
    folder = run_folder(Path.cwd(), options.out)
    untouched = FolderState(options, folder.parent.parent)
    measured = with_reduction(options, os.environ, folder.parent.parent)
    fingerprint = command_fingerprint(options.typed, options.rank_words, options.knob_paths)
    invocation = saved_settings.tuned_command(options)  # the configuration may be edited meanwhile
    view = tuning_view(options.quiet, options.verbose)
    series = TrialSeries(measured, folder, mode, os.environ, view.trial_progress)
    thresholds = Thresholds(load_config(Path.cwd()).diagnose)
    tuning = TuningRun(options, series, view, started + budget, thresholds, budget)
    try:
        view.started(" ".join(options.typed.shown), mode.value, budget)
        if imperfection:
            view.note(imperfection)
        failure = _carry_through(tuning, view)
    finally:
        interruption.hold()
        view.close()
        if not options.tune_only:
            series.launcher.keep_kernels()
        series.close()
    report = tuning_document(
        tuning.findings,
        options=options,
        trials=series.trials,
        isolation=mode.value,
        fingerprint=fingerprint,
        invocation=invocation,
        seconds=time.monotonic() - started,
    )
    if failure is None:
        view.finished(report)
        view.close()
    changes = untouched.differences(FolderState(options, folder.parent.parent))
    return TuningOutcome(
        report,
        folder,
        series.training_loaders,
        changes,
        options.tuned_arguments,
        _companions(report, tuning),
        failure,
    )


def _companions(report: TuningReport, tuning: TuningRun) -> dict[str, tuple[str, ...]]:
    facts, options = tuning.findings.facts, tuning.options
    found: dict[str, tuple[str, ...]] = {}
    if report.chosen is None or facts is None:
        return found
    for name, value in report.chosen.knobs.items():
        knob = find(name, options.knob_paths, options.tuned_arguments)
        try:
            names = knob_calls.companions(knob, facts, value)
        except KnobRaised:
            continue
        if among := tuple(other for other in names if other in report.chosen.knobs):
            found[name] = among
    return found


def _carry_through(tuning: TuningRun, view: TuningView) -> Exception | None:
    """Run the tuning; what it found stands in its findings whatever ends it."""
    findings = tuning.findings
    try:
        if tuning.options.dry_run:
            tuning.preview()
        tuning.run()
    except TuningEnded as ended:
        if findings.verdict not in MEASURED:  # else what was proven before stands
            findings.verdict, findings.reason = ended.verdict, ended.why
        findings.decisions.append(ended.why)
        _tell_end(ended, tuning, view)
    except KeyboardInterrupt:
        if findings.verdict not in MEASURED:
            findings.verdict = "interrupted"
        view.note("interrupted; gpurun keeps the figures so far")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        findings.decisions.append(why)
        if findings.verdict in MEASURED:
            view.note(f"{one_line(why)}; what was proven before stands")
            return None
        findings.verdict = "error"
        return _explained(error)
    return None


def _explained(error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return no_records(error)
    return error


def _tell_end(ended: TuningEnded, tuning: TuningRun, view: TuningView) -> None:
    """Why there is nothing to tune; the script's own failure as it printed it.

    Unless a training follows, which will show it.
    """
    view.note(ended.why)
    view.close()
    if ended.verdict == "dry_run":
        return
    if tuning.options.quiet:
        say(ended.why)
    probe = tuning.findings.probe
    if ended.verdict != "script_failed" or probe is None or not tuning.options.tune_only:
        return
    try:
        text = (tuning.trial_folder(probe.record) / "output.log").read_text(errors="replace")
    except OSError:
        return
    sys.stderr.write(text[-4000:].replace("\r\n", "\n"))


class FolderState:
    """The folders that trials must leave as they were: the working folder and the script's.

    It leaves out our own records in `home`, our own modules, and files to which living processes
    write at this moment: our own output (`> out.txt`, `| tee log.txt`), another training's log.
    """

    def __init__(self, options: Options, home: Path) -> None:
        folders = [Path.cwd()]
        if options.target.kind is TargetKind.SCRIPT:
            beside = Path(options.target.path).resolve().parent
            if not beside.is_relative_to(folders[0]):
                folders.append(beside)
        ours = [home]
        if any(folder.is_relative_to(home) for folder in folders):  # `--out .`
            ours = [home / name for name in ("runs", "tuned", "benchmarks")]
        ours.append(PACKAGE)
        self.growing = files_open_for_writing(folders)
        self.snapshot = snapshot(folders, exclude=ours)

    def differences(self, later: FolderState) -> tuple[str, ...]:
        """Paths that changed, one line each."""
        growing = self.growing | later.growing
        return self.snapshot.without(growing).differences(later.snapshot.without(growing))


# -- what is kept ----------------------------------------------------------------------------------


def _write(tuned: TuningOutcome, options: Options) -> list[str]:
    """Write each requested document; return one line for each that failed."""
    body, settings = to_json(tuned.report), tuned.settings
    home = tuned.folder.parent.parent
    jobs: list[tuple[str, Callable[[], None]]] = [
        ("the record", lambda: write_json(tuned.folder / "tuning.json", body)),
    ]
    if options.json == "-":
        jobs.append(("--json", lambda: write_stdout(json_text(body))))
    elif options.json is not None:
        path = Path(options.json)
        jobs.append(("--json", lambda: write_output(path, json_text(body))))
    place, in_vain = saved_settings.settings_path(home, options), tuned.nothing_proven
    if settings is not None:
        jobs.append(("the settings", lambda: settings_file.save(place, settings)))
    if in_vain is not None:
        jobs.append(("the settings", lambda: saved_settings.save_in_vain(place, in_vain)))
    if options.save_settings is not None and settings is not None:
        saved = Path(options.save_settings)
        text = json_text(to_json(settings))
        jobs.append(("--save-settings", lambda: write_output(saved, text)))
    return [line for what, job in jobs if (line := _attempt(what, job)) is not None]


def _attempt(what: str, job: Callable[[], None]) -> str | None:
    try:
        job()
    except OSError as error:
        return f"{what} could not be written: {error.strerror or error}"
    return None
