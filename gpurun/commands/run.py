"""The plain run: launch the script, leave a record, exit with the script's own code.

Nothing here may change the script. If the record cannot be written, or a sampler or the summary
fails, gpurun loses the record, never the run.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpurun.arguments.options import Options, Target
from gpurun.commands.live_outputs import LiveOutputs, RunSampling, uses_torch
from gpurun.commands.live_outputs import note as _note
from gpurun.commands.unrecorded_run import unrecorded
from gpurun.commands.written_outputs import print_verdict
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.codec import to_json
from gpurun.records.spec import Exchange, Parallel, ProfileSpec, RunSpec, Setting
from gpurun.rundir import (
    INCOMPLETE,
    check_output,
    find_home,
    lost_events,
    new_run,
    no_records,
    shown_path,
    write_json,
)
from gpurun.trials.signal_guard import leave_stopped_terminals

if TYPE_CHECKING:
    from gpurun.records.result import RunResult
    from gpurun.records.tuning import SavedSettings

SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class RunOutcome:
    """The end of the script. `run_dir` is None for an unrecorded run."""

    exit_code: int
    wall_seconds: float
    run_dir: Path | None


def run(options: Options) -> int:
    """Run the script as it is, or with the settings that `--settings` or `--tuned` name."""
    if options.json == "-":
        raise GpurunError("--json - would mix with the script's own stdout", "name a file")
    if options.json is not None:
        check_output("--json", Path(options.json))  # after hours it would be too late
    return run_with(options, chosen_settings(options))


class RunExtension(Protocol):
    """A command that does more with a plain run. Neither method may change how the script ends."""

    def target(self, target: Target, run_dir: Path, environment: Mapping[str, str]) -> Target:
        """The target to launch in place of the script, which gets this environment."""

    def conclude(self, run_dir: Path) -> None:
        """Read the run folder, once its result is written."""


def run_with(
    options: Options, saved: SavedSettings | None, extension: RunExtension | None = None
) -> int:
    """Run the script under `saved` settings, record and summarise; the script's exit code."""
    options, environment = _settled(options, saved)
    outputs = _live_outputs(options)
    run_dir = _run_dir(options, saved)
    launched, told = options, None
    if options.ddp:
        launched, environment, told = _hidden(options, environment, run_dir)
    if run_dir is not None:
        run_dir, environment = _prepared(run_dir, options, saved, environment, told)
    if extension is not None and run_dir is not None:
        launched = replace(launched, target=extension.target(launched.target, run_dir, environment))
    if outputs is not None:
        outputs.begin(run_dir, None if options.quiet else _note)
    sampling = RunSampling(run_dir, outputs)
    started = time.monotonic()
    try:
        exit_code = _launch(launched, environment, sampling)
    except GpurunError:
        _forget(run_dir)
        raise
    finally:
        wall_seconds = time.monotonic() - started
        _end_outputs(outputs)
    if exit_code > 128:  # a signal ends all of this, whatever is still to be said
        leave_stopped_terminals()
    if options.ddp and run_dir is not None:
        _end_hidden(run_dir, exit_code, options.quiet)
    if exit_code == 128 + signal.SIGKILL and run_dir is not None:
        from gpurun.measure.kernel_facts import killed_for_memory

        if killed_for_memory(run_dir):
            _note("during the run the kernel killed a process of this host for lack of memory")
    outcome = RunOutcome(exit_code, wall_seconds, run_dir)
    try:
        _conclude(outcome, options, sampling.lost, saved)
        if extension is not None and run_dir is not None:
            extension.conclude(run_dir)
    except KeyboardInterrupt:
        _note("the summary was interrupted")
    except Exception as error:
        _note(f"no summary of this run: {type(error).__name__}: {error}")
    where = None if run_dir is None else shown_path(run_dir)
    print_verdict(_verdict(exit_code, options, run_dir), exit_code, run=where)
    return exit_code


def _live_outputs(options: Options) -> LiveOutputs | None:
    """What serves and writes figures while the script runs; None if nobody asked."""
    asked = options.live or options.prometheus is not None or options.tensorboard is not None
    return LiveOutputs(options) if asked else None


def _end_outputs(outputs: LiveOutputs | None) -> None:
    """Write the last figures; nothing that happens here changes the exit code."""
    try:
        if outputs is not None:
            outputs.close(_note)
    except KeyboardInterrupt:
        _note("the last figures were interrupted")
    except Exception as error:
        _note(f"the last figures are missing: {type(error).__name__}: {error}")


def _launch(options: Options, environment: Mapping[str, str], sampling: RunSampling) -> int:
    target, requeue = options.target, None
    if options.requeue:
        from gpurun.launch.slurm_requeue import SlurmRequeue, resumed

        requeue, target = SlurmRequeue(environment), resumed(target, environment)
    heard = None if requeue is None else requeue.heard
    ticks = (sampling.tick, SAMPLE_SECONDS)
    try:
        if options.elastic:
            from gpurun.launch.elastic_agent import run_elastic

            code = run_elastic(options.torchrun, target, environment, *ticks, heard)
        else:
            from gpurun.launch.launch_command import command_line
            from gpurun.launch.process import run_process

            words, grace = command_line(target), options.grace_seconds
            code = run_process(words, environment, *ticks, grace, heard)
    finally:
        sampling.close()
    if requeue is not None:
        requeue.conclude(code)
    return code


def chosen_settings(options: Options) -> SavedSettings | None:
    """The settings that `--settings` or `--tuned` name; None without either."""
    if options.settings is None and not options.tuned:
        return None
    from gpurun.arguments import settings_file
    from gpurun.commands import saved_settings
    from gpurun.rundir import existing_home

    if options.settings is not None:
        saved = settings_file.load(Path(options.settings))
    else:
        saved = saved_settings.load_tuned(existing_home(Path.cwd(), options.out), options)
    return _reduced(saved, options) if options.without else saved


def _reduced(saved: SavedSettings, options: Options) -> SavedSettings:
    """The settings without those that `--without` names, said in one line."""
    from gpurun.arguments.settings_file import without

    rest, others = without(saved, options.without)
    if not options.quiet:
        along = f" and {', '.join(others)}, which went with it" if others else ""
        left = ", ".join(rest.settings) or "none"
        _note(f"without {', '.join(options.without)}{along}; settings applied: {left}")
    return rest


def _settled(options: Options, saved: SavedSettings | None) -> tuple[Options, dict[str, str]]:
    """The options and the environment under the settings."""
    environment = dict(os.environ)
    if saved is None:
        return options, environment
    from gpurun.trials.applied_settings import applied_settings

    source = options.settings or "the tuned settings"
    done = applied_settings(saved, source, options.target.args, options.knob_paths, options.allowed)
    environment.update(done.environment)
    for line in () if options.quiet else done.notes:
        _note(line)
    return replace(options, target=replace(options.target, args=done.args)), environment


def _hidden(
    options: Options, environment: dict[str, str], run_dir: Path | None
) -> tuple[Options, dict[str, str], Parallel]:
    from gpurun.commands.ddp_ranks import hidden_ranks

    try:
        launched, environment, told, imperfection = hidden_ranks(options, environment, run_dir)
    except GpurunError:
        _forget(run_dir)
        raise
    if imperfection and not options.quiet:
        _note(imperfection)
    return launched, environment, told


def _end_hidden(run_dir: Path, exit_code: int, quiet: bool) -> None:
    from gpurun.commands.ddp_ranks import distributed_by_itself, refusal, remarks
    from gpurun.isolation.rank_command import remove_layers

    remove_layers(run_dir)
    if distributed_by_itself(run_dir):
        _note(
            "the script is distributed by itself: run it without --ddp, under which only the files "
            "that rank 0 wrote are kept"
        )
    for line in refusal(run_dir) if exit_code else () if quiet else remarks(run_dir):
        _note(line)


def _run_dir(options: Options, saved: SavedSettings | None) -> Path | None:
    try:
        return new_run(find_home(Path.cwd(), options.out))
    except OSError as error:
        _note(unrecorded(options, saved, no_records(error)))
        return None


def _prepared(
    run_dir: Path,
    options: Options,
    saved: SavedSettings | None,
    environment: dict[str, str],
    told: Parallel | None,
) -> tuple[Path | None, dict[str, str]]:
    """Write the spec; the run folder and the environment that names it. A full disk costs both.

    `told`: the part of the spec for hidden ranks.
    """
    from gpurun.launch.launch_command import child_environment, write_spec

    spec = RunSpec(run_dir=str(run_dir), launcher_pid=os.getpid(), knob_paths=options.knob_paths)
    if told is not None:
        spec = replace(spec, parallel=told, exchange=Exchange(options=options.ddp_options))
    safety = replace(options.safety, quiet=options.quiet)
    spec = replace(spec, profile=options.profile or _light_profiles(options), safety=safety)
    if saved is not None:
        settings = tuple(Setting(name, value) for name, value in saved.settings.items())
        by_hand = options.settings is not None
        spec = replace(spec, settings=settings, training_loaders=saved.training_loaders)
        spec = replace(spec, rehearse=by_hand)  # the others are proven
    try:
        spec_path = write_spec(spec)
    except OSError as error:
        _forget(run_dir)
        if options.ddp:
            raise GpurunError(
                f"the spec of the ranks cannot be written: {error}", "make room there"
            ) from None
        _note(unrecorded(options, saved, error))
        return None, environment
    return run_dir, child_environment(spec_path, environment)


def _light_profiles(options: Options) -> ProfileSpec | None:
    """Windows in which only the stack of the stepping thread is sampled, which costs little."""
    every = options.profile_every
    return None if every is None else ProfileSpec(sources=("host",), every=every)


def _forget(run_dir: Path | None) -> None:
    """Take back the folder of a run that never began, lest it read as a crashed one."""
    if run_dir is None:
        return
    try:
        (run_dir / "spec.json").unlink(missing_ok=True)
        run_dir.rmdir()
    except OSError:
        pass  # something was recorded: the folder stays


def _conclude(
    outcome: RunOutcome, options: Options, lost: OSError | None, saved: SavedSettings | None
) -> None:
    """Summarise: in full where torch was used, in a few words else (no import worth its time).

    `lost`: what the launcher could not write. Whatever is missing is said once, and what was
    measured is shown though it cannot be kept. `saved`: what promised a speedup.
    """
    if outcome.run_dir is None:
        return
    if outcome.run_dir.is_symlink():
        _note(f"{INCOMPLETE}: a link stands where its folder was")
        return
    from gpurun.isolation.folder_removal import sweep_drafts

    sweep_drafts(outcome.run_dir)
    seen = uses_torch(outcome.run_dir)
    if seen:
        result = _torch_result(outcome.run_dir, outcome, options)
    else:
        result = _bare_result(outcome, options, lost_events(outcome.run_dir))
    if saved is not None:
        result = _held_against(saved, result)
    shown = seen and not options.quiet and options.profile is None
    result = _noted(result, lost)
    try:
        write_json(outcome.run_dir / "result.json", to_json(result))
    except OSError as error:
        result = _noted(result, error)
    if shown:
        from gpurun.report.run_summary_text import print_summary

        print_summary(result, outcome.run_dir)
        if options.profile_every is not None:
            where = shown_path(outcome.run_dir)
            _note(f"light profiles: gpurun diagnose {where} shows the last one")
    diagnosed = options.profile and not options.quiet and lost_events(outcome.run_dir)
    for note in result.notes:
        if note.startswith(INCOMPLETE) and not shown and not diagnosed:
            _note(note)
    # under --optimize it holds the tuning report, of `gpurun profile` the findings
    if options.json is not None and not options.optimize and options.profile is None:
        from gpurun.commands.written_outputs import emit_json

        emit_json(options.json, to_json(result))


def _torch_result(run_dir: Path, outcome: RunOutcome, options: Options) -> RunResult:
    """All figures of a run that used torch."""
    from gpurun.measure import summarise_run

    result = summarise_run(run_dir, exit_code=outcome.exit_code, wall_seconds=outcome.wall_seconds)
    if not options.elastic:
        return result
    from gpurun.measure.machine_topology import topology

    return replace(result, topology=topology())


def _held_against(saved: SavedSettings, result: RunResult) -> RunResult:
    """The result with notes: what the tuning promised and the run did, what to do if it failed."""
    from gpurun.report.run_summary_text import promise_sentence, suspicion_sentence

    said = (suspicion_sentence(result), promise_sentence(saved, result))
    return replace(result, notes=(*filter(None, said), *result.notes))


def _noted(result: RunResult, error: OSError | None) -> RunResult:
    """The result with a note of what is missing of its record, unless it has one."""
    if error is None or any(note.startswith(INCOMPLETE) for note in result.notes):
        return result
    return replace(result, notes=(f"{INCOMPLETE}: {error.strerror or error}", *result.notes))


def _bare_result(outcome: RunOutcome, options: Options, lost: str | None) -> RunResult:
    """The result of a program in which there was nothing to measure, as far as that is known."""
    from gpurun.measure.run_events import read_attempts
    from gpurun.records.result import RunResult, status_of

    unmeasured = {f.name: None for f in fields(RunResult) if f.default is MISSING}
    known = {
        "status": status_of(outcome.exit_code),
        "exit_code": outcome.exit_code,
        "steps": 0,
        "warmup_steps": 0,
        "measured_steps": 0,
        "devices": (),
        "wall_seconds": outcome.wall_seconds,
        "command": options.target.shown,
        "environment": {},
        "notes": () if lost is None else (f"{INCOMPLETE}: {lost}",),
        "attempts": () if outcome.run_dir is None else read_attempts(outcome.run_dir),
    }
    return RunResult(**{**unmeasured, **known})  # type: ignore[arg-type]


def _verdict(exit_code: int, options: Options, run_dir: Path | None) -> str:
    from gpurun.records.result import status_of

    if options.ddp and run_dir is not None and exit_code == int(ExitCode.USAGE):
        from gpurun.commands.ddp_ranks import refused

        if refused(run_dir):
            return "refused"
    return "ok" if exit_code == 0 else status_of(exit_code)
