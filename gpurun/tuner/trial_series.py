"""The trials of one tuning: asked for by settings, launched, numbered and recorded."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.errors import GpurunError, say
from gpurun.formatting.number_text import count
from gpurun.isolation.isolation_mode import Mode
from gpurun.knobs import find
from gpurun.knobs.stages import DATA, STAGES
from gpurun.launch.hidden_ranks import hidden_flags, rank_environment
from gpurun.launch.rank_resources import check_devices, shared_gpus
from gpurun.measure.optional_figures import known
from gpurun.pairs.engine import PairOutcome
from gpurun.pairs.live_launches import LiveLaunches
from gpurun.pairs.obstacle import peaks_of
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.codec import to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import SEED, Exchange, Parallel, Setting, Share, TrialSpec
from gpurun.records.tuning import WITHOUT_SPEED, TrialRecord
from gpurun.rundir import write_json
from gpurun.same.launch_audit import LaunchAudit, audit_of
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised
from gpurun.trials.launch_request import LaunchRequest, Ranks
from gpurun.trials.outcome import Outcome, conclude
from gpurun.trials.prestart import prestart_slots
from gpurun.trials.trial_launcher import TrialLauncher
from gpurun.tuner.trial_length import needed_steps
from gpurun.tuner.tuning_trial import Trial, TrialRequest

LIMIT_SECONDS = 600.0
"""A trial may take so long at least."""
ELSEWHERE = {name for stage, names in STAGES.items() if stage != DATA for name in names}
"""Knobs that do not change how samples are loaded."""
END_WELL = "let it end with exit code 0, or train for longer than a trial lasts"
"""Advice for a script that trains and then ends with another exit code on purpose."""
RANKS_WRITE = (
    "ranks would write the same files, because trials are not isolated by overlay mounts here",
    "allow it with --shared-writes if the script writes nothing, or the same in every rank",
)


class TrialSeries:
    """Launches the trials of one tuning, one at a time, below `folder`.

    `training_loaders`: see `RunSpec`. `prestarted`: processes of coming trials, which import
    meanwhile. `live`: the reference. `close` removes what the trials shared.
    """

    def __init__(
        self,
        options: Options,
        folder: Path,
        mode: Mode,
        environment: Mapping[str, str],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.options = options
        self.folder = folder
        self.trials: list[TrialRecord] = []
        self.training_loaders: tuple[str, ...] = ()
        self._again: dict[frozenset[str], Mapping[int, tuple[tuple[int, ...], ...]]] = {}
        """By `loading`: the samples that were loaded again, once for all trials that load so."""
        self._references = 0
        self._reference_samples = 1.0
        tell = (lambda line: None) if options.quiet else say
        self.launcher = TrialLauncher(folder, mode, on_progress, tell)
        self.prestarted = self.launcher.prestarted
        self.live = LiveLaunches(self.launcher)
        self._environment, self._shared_gpus = dict(environment), 0
        if options.ddp:
            _, ranks = hidden_flags(options.torchrun, None)
            self._shared_gpus = shared_gpus(ranks, check_devices(ranks, options.oversubscribe))
            self._environment = rank_environment(environment, ranks)
            if mode is not Mode.OVERLAY and ranks > 1 and not options.shared_writes:
                raise GpurunError(*RANKS_WRITE)

    def run(self, request: TrialRequest) -> Trial:
        """Launch one trial and wait for its end; KeyboardInterrupt kills it first."""
        number = len(self.trials) + 1
        try:
            wanted = self._request(number, request)
        except KnobRaised as raised:
            return self._skip(number, request, raised)
        wanted = replace(wanted, following=self._following(number + 1, request))
        if request.in_turns:
            return self._keep(number, request, *self.live.run_beside(wanted))
        return self._keep(number, request, self.launcher.run(wanted))

    def folder_of(self, record: TrialRecord) -> Path:
        """Where a trial's records and output are."""
        return self.folder / record.run_dir

    def run_pair(self, requests: tuple[TrialRequest, TrialRequest]) -> PairOutcome[Trial]:
        """Launch two trials as a live pair and wait for its end; the next one has them reversed."""
        number = len(self.trials) + 1
        try:
            first, second = (self._request(number + n, r) for n, r in enumerate(requests))
            again = tuple(self._request(number + 2 + n, r) for n, r in enumerate(requests[::-1]))
        except KnobRaised as raised:
            return PairOutcome(None, None, None, str(raised))
        pair = self.live.run_pair(first, replace(second, following=again))
        if pair.first is None or pair.second is None:
            return PairOutcome(None, None, None, pair.failure)
        one = self._keep(number, requests[0], pair.first)
        other = self._keep(number + 1, requests[1], pair.second)
        return PairOutcome(one, other, pair.ratio, pair.failure)

    def start_reference(self, request: TrialRequest, samples_a_step: float) -> str:
        """Launch what trials can take turns with; why that cannot be, "" once it waits.

        `samples_a_step`: of these settings, 1 where samples cannot be counted.
        """
        self._references += 1
        self._reference_samples = samples_a_step
        wanted = self._request(len(self.trials) + 1, request)
        folder = self.folder / "references" / f"{self._references:02d}"
        return self.live.start_reference(replace(wanted, run_dir=folder))

    @property
    def in_turn_only(self) -> str:
        """Reason why trials of this tuning cannot be live pairs, "" if they can."""
        return self.live.in_turn_reason(ranks=self._ranks(self.folder) is not None)

    def close(self) -> None:
        """End waiting processes, and remove the files that only trials needed."""
        self.live.end_reference()
        self.launcher.close()

    # -- from settings to a request ------------------------------------------------------------

    def _request(self, number: int, request: TrialRequest) -> LaunchRequest:
        """The launch of these settings; `KnobRaised` where one of them cannot be prepared."""
        run_dir = self.folder / "trials" / f"{number:02d}"
        variables, arguments = self._prepared(request.settings)
        patience, limit = self._patience(request)
        return LaunchRequest(
            name=request.purpose.value,
            run_dir=run_dir,
            target=replace(self.options.target, args=arguments),
            cwd=Path.cwd(),
            environment=self._environment,
            trial=TrialSpec(
                stop=request.stop,
                seed=SEED,
                seed_offset=request.seed_offset,
                rounded=request.rounded,
                rounding_draw=request.rounding_draw,
                still=request.still,
                load_again=request.shows_samples and loading(request.settings) not in self._again,
                ceilings=request.ceilings,
                worker_turns=request.worker_turns,
            ),
            settings=tuple(Setting(k, v) for k, v in request.settings.items()),
            settings_environment=variables,
            training_loaders=self.training_loaders,
            knob_paths=self.options.knob_paths,
            ranks=self._ranks(run_dir),
            exchange=Exchange(options=self.options.ddp_options),
            keep_layer=request.hold,
            patience_seconds=patience,
            limit_seconds=limit,
            hurry_at=request.hurry_at,
            deadline=request.deadline,
        )

    def _prepared(self, settings: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
        """The variables that settings need, and the script's arguments under them."""
        variables: dict[str, str] = {}
        arguments = self.options.target.args
        for name, value in settings.items():
            try:
                knob = find(name, self.options.knob_paths, self.options.tuned_arguments)
                more, arguments = knob_calls.outside(knob, value, arguments)
            except (KnobRaised, GpurunError) as error:
                raise KnobRaised(f"{name}: {error}", knob=name) from error
            variables |= more
        return variables, arguments

    def _ranks(self, run_dir: Path) -> Ranks | None:
        """The ranks of a trial. Under `--ddp` the batch is the script's, and each has a share."""
        options = self.options
        if not options.ddp:
            return Ranks(options.torchrun) if options.elastic else None
        flags, _ = hidden_flags(options.torchrun, run_dir / "ranks")
        share = (Share.GLOBAL, SEED, self._shared_gpus, options.loss_reduction)
        return Ranks(flags, Parallel(*share))

    def _patience(self, request: TrialRequest) -> tuple[float | None, float]:
        """Seconds of silence, and seconds in all, after which the trial is given up.

        None where the launcher decides.
        """
        if request.hold:
            return request.limit_seconds, request.limit_seconds
        limit = min(request.limit_seconds, max(LIMIT_SECONDS, 10 * self.launcher.longest))
        return self.options.patience_seconds or request.patience_seconds, limit

    def _following(self, number: int, request: TrialRequest) -> tuple[LaunchRequest, ...]:
        """The launches after this one, so that their processes can start; after the first, one."""
        if not request.hold and not self.prestarted.modules:
            return ()
        slots = 1 if request.hold else prestart_slots()
        settings = request.following or (request.settings,) * slots
        found = []
        for coming, each in enumerate(settings[:slots], number):
            try:
                found.append(self._request(coming, replace(request, settings=each, hold=False)))
            except KnobRaised:
                continue
        return tuple(found)

    # -- from an outcome to a record -----------------------------------------------------------

    def _keep(
        self,
        number: int,
        request: TrialRequest,
        outcome: Outcome,
        ratio: TurnRatio | None = None,
    ) -> Trial:
        """Record a trial; `ratio`: its step time over the reference's."""
        trial = trial_of(number, self.folder, request, outcome, self.options.aim)
        if ratio is not None:
            samples = trial.samples_a_step() / self._reference_samples
            gain = math.exp(-ratio.log) * samples
            record = replace(trial.record, gain_over_reference=gain, gain_error=ratio.error)
            trial = replace(trial, record=record)
        if trial.evidence is not None:
            trial = replace(trial, evidence=self._with_samples(trial.evidence, request))
        self.trials.append(trial.record)
        write_json(outcome.run_dir / "trial.json", to_json(trial.record))
        return trial

    def _with_samples(self, shown: LaunchAudit, request: TrialRequest) -> LaunchAudit:
        """What a trial shows, with the samples of the first one that loaded them as it does."""
        key = loading(request.settings)
        if request.shows_samples and len(shown.audits) >= request.stop.audit_steps:
            self._again.setdefault(key, shown.again)
        return replace(shown, again=self._again.get(key, {}))

    def _skip(self, number: int, request: TrialRequest, raised: KnobRaised) -> Trial:
        """The trial of settings with which nothing could be launched: its folder is empty."""
        bare = self._request(number, replace(request, settings={}))
        self.prestarted.drop(bare.run_dir)
        bare.run_dir.mkdir(parents=True)
        failure = Failure(FailureKind.KNOB_FAILED, str(raised), knob=raised.knob)
        return self._keep(number, request, conclude(bare, None, 0.0, failure))


def loading(settings: Mapping[str, Any]) -> frozenset[str]:
    """The settings that may change how samples are loaded."""
    return frozenset(f"{name} {value}" for name, value in settings.items() if name not in ELSEWHERE)


def trial_of(
    number: int, folder: Path, request: TrialRequest, outcome: Outcome, objective: Objective
) -> Trial:
    """The trial that an outcome is. `folder`: of the tuning."""
    result, log = outcome.result, outcome.log
    peaks, without_speed = peaks_of(result), request.purpose in WITHOUT_SPEED
    record = TrialRecord(
        number=number,
        purpose=request.purpose,
        knobs=dict(request.settings),
        status=outcome.status,
        samples_per_second=None if without_speed else result.samples_per_second,
        step_time_ms=None if without_speed else result.step_time_ms,
        peak_memory_bytes=result.peak_memory_bytes,
        joules_per_sample=None if without_speed else result.joules_per_sample,
        final_loss=result.final_loss,
        seconds=outcome.seconds,
        reason=_reason(request, outcome),
        run_dir=os.path.relpath(outcome.run_dir, folder),
        others_cpu_percent=None if result.host is None else result.host.others_cpu_percent,
        foreign_processes=max(known(d.foreign_processes for d in result.devices), default=None),
        failure=None if outcome.failure is None else outcome.failure.kind,
        peak_reserved_bytes=peaks.reserved or None,
        peak_host_bytes=peaks.host or None,
        in_turns=outcome.in_turns,
    )
    how = request.seed_offset, request.rounded, request.still
    shown = None if log is None else audit_of(log, *how)
    return Trial(record, result, log, shown, objective, outcome.failure)


def _reason(request: TrialRequest, outcome: Outcome) -> str:
    """Reason why a trial is of no use, "" where it was measured."""
    failure, result = outcome.failure, outcome.result
    if failure is None:
        return ""
    if failure.kind is FailureKind.RANKS_REFUSED:
        return f"--ddp: {failure.text}"
    if request.ceilings and not failure.timed_out:
        return "this trial repeats one batch, and the script cannot go on with that"
    trained = failure.kind is FailureKind.EXIT_CODE and result.steps >= needed_steps(result)
    if trained and not request.settings:
        return f"{failure.text}; it took {count(result.steps, 'step')}: {END_WELL}"
    return failure.text
