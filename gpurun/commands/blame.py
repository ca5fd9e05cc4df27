"""`gpurun blame`: which of the stored settings make a run go wrong?"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from gpurun.arguments.main_flags import with_configuration
from gpurun.arguments.options import Options
from gpurun.arguments.subcommand_flags import BLAME_HELP, BlameOptions, parse_blame
from gpurun.commands.ddp_ranks import with_reduction
from gpurun.commands.run import chosen_settings
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say
from gpurun.errors import ExitCode
from gpurun.formatting.number_text import count, duration
from gpurun.isolation.available_modes import require
from gpurun.launch.launch_command import typed_words
from gpurun.records.codec import to_json
from gpurun.records.command_reports import BlameLaunch, BlameReport, LaunchState
from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.records.tuning import SavedSettings, TrialPurpose
from gpurun.rundir import run_folder, shown_path, write_json
from gpurun.stats.loss_curve_points import curve_of
from gpurun.trials.applied_settings import applied_settings
from gpurun.trials.signal_guard import SignalGuard
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

HELP = """\
usage: gpurun blame [flags] script.py [script's arguments]

Takes stored settings apart: launches the script for some steps with halves of them, then with
smaller parts, and names those with which it goes wrong. Wrong is a crash, a hang or a loss that is
not finite. Without --settings gpurun takes the settings that --optimize found here. The launches
are trials: they change none of your files.

{flags}

torchrun's flags and --ddp mean the same as for a plain run.
Exit codes: 0 found, 3 not reproduced or undecided, 5 the script goes wrong without any setting.
"""
FLAGS = BLAME_HELP
EXIT_CODES = {
    "found": ExitCode.OK,
    "not_reproduced": ExitCode.INCONCLUSIVE,
    "inconclusive": ExitCode.INCONCLUSIVE,
    "script_failed": ExitCode.BENCHMARK_FAILED,
}
CANNOT_TELL = 125
"""The exit code of a check that skips a launch, as for `git bisect run`."""
TRIAL_VARIABLE = "GPURUN_TRIAL"
"""Tells a check the folder of the launch: `output.log`, `result.json`, the events."""


def blame(argv: list[str]) -> int:
    """Search as the command line says."""
    asked = parse_blame(argv)
    options = with_configuration(asked.run, Path.cwd())
    check_outputs(json=options.json)
    saved = chosen_settings(options)
    assert saved is not None, "parse_blame asks for settings"
    source = options.settings or "the tuned settings"
    applied_settings(saved, source, options.target.args, options.knob_paths, options.allowed)
    mode, imperfection = require(Path.cwd(), in_place=asked.trials_in_place)
    folder = run_folder(Path.cwd(), options.out)
    with SignalGuard() as interruption:
        measured = with_reduction(options, os.environ, folder.parent.parent)
        series = TrialSeries(measured, folder, mode, os.environ, lambda steps, of: None)
        series.training_loaders = saved.training_loaders
        search = BlameSearch(series, saved, asked, options.quiet)
        search.say(imperfection or "")
        try:
            search.run()
        except KeyboardInterrupt:
            search.verdict = "interrupted"
        finally:
            interruption.hold()
            series.close()
    report = to_json(search.report(options))
    write_json(folder / "blame.json", report)
    emit_json(options.json, report)
    if search.verdict == "interrupted":
        code = interruption.exit_code
    else:
        code = int(EXIT_CODES[search.verdict])
    search.conclude()
    found = ",".join("+".join(names) for names in search.found) or None
    print_verdict(search.verdict, code, culprit=found, run=shown_path(folder))
    return code


class BlameSearch:
    """The launches of one search and their outcomes."""

    def __init__(
        self, series: TrialSeries, saved: SavedSettings, asked: BlameOptions, quiet: bool
    ) -> None:
        self.verdict = "inconclusive"
        self.found: tuple[tuple[str, ...], ...] = ()
        self._series, self._saved, self._asked, self._quiet = series, saved, asked, quiet
        self._launches: list[BlameLaunch] = []
        self._known: dict[frozenset[str], BlameLaunch] = {}
        self._without: LaunchState | None = None
        self._began = time.monotonic()

    def run(self) -> None:
        """The script as it is, with all settings, then with parts of them."""
        bare = self._launch({})
        if bare.state is LaunchState.BAD:
            self.verdict = "script_failed"
            return
        whole = self._launch(self._saved.settings)
        if whole.state is not LaunchState.BAD:
            unknown = LaunchState.SKIPPED in (bare.state, whole.state)
            self.verdict = "inconclusive" if unknown else "not_reproduced"
            return
        sets, self._without = culprits(parts_of(self._saved), self._with)
        self.found = tuple(tuple(name for part in one for name in part) for one in sets)
        self.verdict = "found"

    def report(self, options: Options) -> BlameReport:
        """The document of the search."""
        return BlameReport(
            verdict=self.verdict,
            culprits=self.found,
            without_them=self._without,
            launches=tuple(self._launches),
            command=options.typed.shown,
            seconds=time.monotonic() - self._began,
        )

    def conclude(self) -> None:
        """The answer in words, and the command to go on with."""
        asked = self._asked
        if self.verdict == "script_failed":
            self.say(f"not the settings: the script as it is goes wrong: {self._why()}")
        elif self.verdict == "not_reproduced":
            self.say(f"nothing went wrong in {count(asked.steps, 'step')} with all settings")
            self.say("raise --steps, or name what went wrong with --check")
        elif self.verdict == "inconclusive":
            self.say(f"undecided: {self._why()}")
        for names in self.found:
            reason = self._known[frozenset(names)].reason
            self.say(f"{' together with '.join(names)} goes wrong: {reason}")
        if self.found and self._without is LaunchState.GOOD:
            run = asked.run
            out = ",".join((*run.without, *(name for names in self.found for name in names)))
            how = ["--settings", run.settings] if run.settings else ["--tuned"]
            how += ["--allow", ",".join(run.allow)] if run.allow else []
            how += ["--out", run.out] if run.out else []
            words = shlex.join([*how, "--without", out, *typed_words(run.rank_words, run.typed)])
            steps = count(asked.steps, "step")
            self.say(f"nothing went wrong in {steps} with: gpurun {words}")

    def say(self, text: str) -> None:
        """One line for the user."""
        if text and not self._quiet:
            say(text)

    def _why(self) -> str:
        return next((x.reason for x in reversed(self._launches) if x.reason), "")

    def _with(self, chosen: Sequence[KnobGroup]) -> LaunchState:
        names = {name for part in chosen for name in part}
        return self._launch({k: v for k, v in self._saved.settings.items() if k in names}).state

    def _launch(self, settings: Mapping[str, Any]) -> BlameLaunch:
        """The outcome with these settings, launched unless it is known."""
        key = frozenset(settings)
        if key not in self._known:
            done = self._launched(settings)
            self._launches.append(done)
            self._known[key] = done
            shown = ", ".join(settings) or "the script as it is"
            reason = f": {done.reason}" if done.reason else ""
            self.say(f"{done.state.value} in {duration(done.seconds)}: {shown}{reason}")
        return self._known[key]

    def _launched(self, settings: Mapping[str, Any]) -> BlameLaunch:
        """One launch; the first may download what the others find in place."""
        steps, check, first = self._asked.steps, self._asked.check, not self._launches
        rule = StopRule(steps, 0.0, steps, warmup_steps=0, audit_steps=0)
        trial = self._series.run(TrialRequest(TrialPurpose.BLAME, settings, rule, hold=first))
        folder = self._series.folder_of(trial.record)
        state, reason = judged(trial) if check is None else _checked(check, folder)
        seconds, run_dir = trial.record.seconds, trial.record.run_dir
        return BlameLaunch(dict(settings), state, reason, seconds, run_dir)


def judged(trial: Trial) -> tuple[LaunchState, str]:
    """A failed launch or a loss that is not finite is bad; the reason."""
    failure = trial.failure
    if failure is not None and failure.kind is FailureKind.KNOB_FAILED:
        return LaunchState.SKIPPED, failure.text
    if failure is not None and failure.kind is not FailureKind.TOO_FEW_STEPS:
        return LaunchState.BAD, failure.text
    for table in () if trial.log is None else trial.log.steps.values():
        curve = curve_of(table.loss)
        if curve is not None and curve.nonfinite_step is not None:
            return LaunchState.BAD, f"the loss is not finite at step {curve.nonfinite_step}"
    return LaunchState.GOOD, ""


def _checked(command: str, folder: Path) -> tuple[LaunchState, str]:
    environment = {**os.environ, TRIAL_VARIABLE: str(folder.resolve())}
    code = subprocess.run(
        command, shell=True, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=False
    ).returncode
    if code == 0:
        return LaunchState.GOOD, ""
    state = LaunchState.SKIPPED if code == CANNOT_TELL else LaunchState.BAD
    return state, f"the check ended with {code}"


KnobGroup: TypeAlias = "tuple[str, ...]"
"""Names of knobs that are left out together."""
Test: TypeAlias = "Callable[[Sequence[KnobGroup]], LaunchState]"
"""Launches with these parts alone."""


def parts_of(saved: SavedSettings) -> tuple[KnobGroup, ...]:
    """The names of the settings, those together that go with one another."""
    found: dict[str, set[str]] = {name: {name} for name in saved.settings}
    for name, needed in saved.companions.items():
        linked = {other for one in (name, *needed) for other in found.get(one, ())}
        found.update(dict.fromkeys(linked, linked))
    groups = (tuple(name for name in found if name in linked) for linked in found.values())
    return tuple(dict.fromkeys(groups))


def culprits(parts: Sequence[KnobGroup], test: Test) -> tuple[list[list[KnobGroup]], LaunchState]:
    """Sets of parts that go wrong, each as small as can be, and the outcome without all of them.

    `parts` together go wrong. A launch without an outcome counts as one that went well.
    """
    found: list[list[KnobGroup]] = []
    rest, state = list(parts), LaunchState.BAD
    while rest and state is LaunchState.BAD:
        found.append(_smallest(rest, test))
        rest = [part for part in rest if part not in found[-1]]
        state = test(rest)
    return found, state


def _smallest(parts: Sequence[KnobGroup], test: Test) -> list[KnobGroup]:
    """A set that goes wrong and of which no part can be left out."""
    bad, pieces = list(parts), 2
    while len(bad) > 1:
        chunks = _split(bad, pieces)
        smaller = next((c for c in chunks if test(c) is LaunchState.BAD), None)
        if smaller is not None:
            bad, pieces = smaller, 2
            continue
        others = [[part for part in bad if part not in chunk] for chunk in chunks]
        # of two halves each is the other's complement
        smaller = next((c for c in others if pieces > 2 and test(c) is LaunchState.BAD), None)
        if smaller is not None:
            bad, pieces = smaller, max(pieces - 1, 2)
        elif pieces < len(bad):
            pieces = min(2 * pieces, len(bad))
        else:
            break
    return bad


def _split(parts: Sequence[KnobGroup], pieces: int) -> list[list[KnobGroup]]:
    """Parts in so many pieces of nearly the same length."""
    ends = [round(n * len(parts) / pieces) for n in range(pieces + 1)]
    return [list(parts[begin:end]) for begin, end in pairwise(ends) if end > begin]
