"""`gpurun eject`: tuned settings as a patch of the script that needs no gpurun."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.main_flags import with_configuration
from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.arguments.subcommand_flags import EJECT_HELP, EjectOptions, parse_eject
from gpurun.bench.benchmark_launcher import isolation
from gpurun.bench.compare.compare_sides import CompareRequest
from gpurun.commands.run import chosen_settings
from gpurun.commands.written_outputs import (
    check_outputs,
    emit_json,
    emit_text,
    print_verdict,
    teller,
)
from gpurun.eject.checked_patch import benchmark_of, check_patch
from gpurun.eject.patch import Ejected, PatchWriter
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count, signed_percent
from gpurun.knobs import find
from gpurun.measure.run_events import ProcessLog
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import to_json
from gpurun.records.command_reports import EjectReport, LeftOut
from gpurun.records.spec import SEED, TrialSpec
from gpurun.records.tuning import SavedSettings
from gpurun.rundir import run_folder, shown_path, write_json
from gpurun.trials.applied_settings import AppliedSettings, applied_settings
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.signal_guard import SignalGuard
from gpurun.trials.stop_rules import first_rule
from gpurun.trials.trial_launcher import TrialLauncher

HELP = """\
usage: gpurun eject [flags] script.py [script's arguments]

Writes stored settings into the script and its modules as a unified diff that needs no gpurun. The
diff goes to stdout: gpurun eject train.py | git apply. Your files stay as they are. gpurun launches
the script for some steps to see where it builds its loaders, optimizers and model. It then runs the
patched script beside the script under the settings, in live pairs, and compares speed and losses.
Without --settings gpurun takes the settings that --optimize found here.

{flags}

Exit codes: 0 written, 1 the patched script is slower than the settings by a tenth or more, 3 not
known, 5 a launch failed, 6 the patched script trains differently.
"""
FLAGS = EJECT_HELP
BUDGET_SECONDS = 300.0
STEPS = 20
"""Measured steps of the launch that looks for sites."""
VERDICTS = {"pass": "ejected", "regression": "slower"}
"""Ours for those of a comparison; the others are the same."""


def eject(argv: list[str]) -> int:
    """Write the patch that the command line asks for."""
    asked = parse_eject(argv)
    options = with_configuration(asked.run, Path.cwd())
    check_outputs(json=options.json, output=asked.output)
    if options.elastic or options.target.kind is not TargetKind.SCRIPT:
        raise GpurunError(
            "eject patches a script that runs as one process",
            "name the script's file, without -m and torchrun's flags",
        )
    saved = chosen_settings(options)
    assert saved is not None, "parse_eject asks for settings"
    source = options.settings or "the tuned settings"
    settings = applied_settings(
        saved, source, options.target.args, options.knob_paths, options.allowed
    )
    with SignalGuard() as interruption:
        command = _Command(asked, options, settings)
        ejected = command.patch(saved)
        command.show(ejected)
        comparison = command.check(ejected, interruption) if asked.check else None
        report = command.report(ejected, comparison)
        write_json(command.folder / "eject.json", to_json(report))
        emit_json(options.json, to_json(report))
    code = 0 if comparison is None else comparison.exit_code
    print_verdict(report.verdict, code, run=shown_path(command.folder))
    return code


class _Command:
    def __init__(self, asked: EjectOptions, options: Options, settings: AppliedSettings) -> None:
        self.folder = run_folder(Path.cwd(), options.out)
        self._asked, self._options, self._settings = asked, options, settings
        self._tell = teller(options.quiet)
        self._here = Path.cwd().resolve()
        self._script = (self._here / options.target.path).resolve()
        together = os.path.commonpath([self._here, self._script.parent])
        self._within = Path(together)

    def patch(self, saved: SavedSettings) -> Ejected:
        """Launch the script under the settings, and write what applied there."""
        log = self._launched()
        sites = [
            replace(site, file=os.path.normpath(self._here / site.file))
            for site in log.source_sites
        ]
        writer = PatchWriter(self._script, self._within, sites, self._options.target.args)
        for name, value in self._settings.settings.items():
            knob = find(name, self._options.knob_paths, saved.tuned_arguments)
            writer.write(knob, value, log.knobs)
        return writer.finish()

    def show(self, ejected: Ejected) -> None:
        """The diff, and in words what it holds and what not."""
        for line in self._words(ejected):
            self._tell(line)
        diff = ejected.diff(self._here)
        emit_text(self._asked.output or "-", diff, "--output", needed=True)

    def check(self, ejected: Ejected, interruption: SignalGuard) -> Comparison:
        """Run the patched script beside the script under the settings."""
        options = self._options
        benchmark = benchmark_of(
            os.path.relpath(self._script, self._here), options.target.args, self._here
        )
        asked = CompareRequest(
            ref="",
            home=self.folder.parent.parent,
            plan=GatePlan(),
            deadline=time.monotonic() + (self._asked.budget_seconds or BUDGET_SECONDS),
            in_place=self._asked.trials_in_place,
            keep=lambda record: None,
            tell=self._tell,
            fail_on_training_change=True,
        )
        found = check_patch(benchmark, self._settings, ejected, self._within, asked, interruption)
        for line in _checked(found):
            self._tell(line)
        return found

    def report(self, ejected: Ejected, comparison: Comparison | None) -> EjectReport:
        """The document."""
        verdict = "pass" if comparison is None else comparison.verdict
        return EjectReport(
            verdict=VERDICTS.get(verdict, verdict),
            diff=ejected.diff(self._here),
            files=tuple(os.path.relpath(path, self._here) for path in ejected.files),
            written=ejected.knobs,
            left_out=tuple(LeftOut(*one) for one in ejected.left_out),
            command=ejected.command(self._options.target.path),
            comparison=comparison,
        )

    def _launched(self) -> ProcessLog:
        options, settings = self._options, self._settings
        mode = isolation(self._here, self._asked.trials_in_place, self._tell)
        launcher = TrialLauncher(self.folder, mode, tell=self._tell)
        request = LaunchRequest(
            name="the script under the settings",
            run_dir=self.folder / "launches" / "sites",
            target=Target(TargetKind.SCRIPT, options.target.path, settings.args),
            cwd=self._here,
            environment=os.environ,
            trial=TrialSpec(stop=first_rule(STEPS), seed=SEED, source_sites=True),
            settings=settings.turned,
            settings_environment=settings.environment,
            training_loaders=settings.training_loaders,
            knob_paths=settings.knob_paths,
            keep_layer=True,
        )
        try:
            outcome = launcher.run(request)
        finally:
            launcher.close()
        if outcome.log is None or outcome.failure is not None:
            why = "it trained no model" if outcome.failure is None else outcome.failure.text
            raise GpurunError(
                f"the script fails under the settings: {why}",
                "gpurun blame finds the setting with which it does",
                ExitCode.BENCHMARK_FAILED,
            )
        return outcome.log

    def _words(self, ejected: Ejected) -> Iterable[str]:
        if ejected.knobs:
            files = count(len(ejected.files), "file")
            yield f"written, in {files}: {', '.join(ejected.knobs)}"
        else:
            yield "none of the settings can be written into the script"
        for name, reason in ejected.left_out:
            yield f"left out: {name}: {reason}"
        if ejected.knobs:
            yield f"start it with: {ejected.command(self._options.target.path)}"


def _checked(found: Comparison) -> Iterable[str]:
    """The outcome of the check in words."""
    if found.error is not None:
        yield found.error
    if found.slowdown is not None:
        interval = ""
        if found.slowdown_confidence_interval is not None:
            low, high = (signed_percent(-x) for x in found.slowdown_confidence_interval)
            interval = f" ({high} to {low})"
        pairs = count(found.pairs, "pair")
        change = signed_percent(-found.slowdown)
        yield f"patched beside tuned: {change} throughput{interval}, {pairs}"
    if found.training is not None:
        yield f"training: {found.training.told}"
