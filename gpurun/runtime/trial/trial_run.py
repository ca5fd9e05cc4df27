"""A short trial inside the user's process: seeded start, hold at the first step, stop in time."""

from __future__ import annotations

import atexit
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gpurun.records.events import StopEvent
from gpurun.records.messages.traits import DISTRIBUTED_TRAITS
from gpurun.records.spec import FIRST_STEP, GO, OUTPUT_CALLS, RunSpec, StopRule, TrialSpec
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.step_agreement import StepAgreement
from gpurun.runtime.observe import cpu_contention, loaded_modules, model_traits
from gpurun.runtime.observe.device_sync_lines import DeviceSyncLines
from gpurun.runtime.observe.exit_metrics import write_exit_metrics
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.observe.torch_loader_internals import WORKERS
from gpurun.runtime.trial import trial_exit
from gpurun.runtime.trial.audit_outputs import OutputsAudit
from gpurun.runtime.trial.audit_training import TrainingAudit
from gpurun.runtime.trial.live_pair_side import Turns
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS

HOLD_SECONDS = 120
"""A launcher that does not answer within this time is gone; the trial goes on."""
DEVICE_SECONDS = 5.0
"""A device that is not done by then waits for a rank that has left."""
SPIKE = 8.0
"""A step this many times the median is a pause (compilation, evaluation), not training time."""

now = time.perf_counter_ns


def install(spec: RunSpec) -> None:
    """Audit this process and stop it by the spec's rule."""
    assert spec.trial is not None
    CLOCK.every_loss = True
    if spec.trial.planted_seconds:
        from gpurun.runtime.trial import planted_delay

        planted_delay.plant(spec.trial.planted_seconds)
    if spec.trial.rounded:
        from gpurun.runtime.trial import bf16_rounding

        bf16_rounding.install(spec.trial.rounding_draw)
    if spec.trial.still:
        from gpurun.runtime.core.dropout_off import switch_off_dropout

        switch_off_dropout()
    control = Path(spec.run_dir) / "control"
    if spec.trial.stop.audit_steps:
        SAMPLE_SEEDS.install(spec.trial.seed + spec.trial.seed_offset, control)
    trial = _Trial(control, spec, spec.trial, _turns(spec, control))
    if spec.trial.ceilings:
        from gpurun.runtime.trial.ceilings import CeilingWindows

        ceilings = CeilingWindows(spec.trial.stop)
        ceilings.begin()
        trial.enough, trial.before_exit = ceilings.enough, guarded("ceilings", ceilings.finish)
    if spec.trial.worker_turns is not None:
        from gpurun.runtime.trial.worker_turns import WorkerTurns

        workers = WorkerTurns(spec.trial.stop, spec.trial.worker_turns)
        workers.begin()
        trial.enough = workers.enough
    if spec.trial.source_sites:
        from gpurun.runtime.observe import recorded_sites

        guarded("source sites", recorded_sites.record)()
    guarded("look for attention", model_traits.look_for_attention)()
    guarded("look for changing shapes", model_traits.look_for_changing_shapes)()
    guarded("look for kept tensors", model_traits.look_for_kept_tensors)()
    atexit.register(trial.finish)  # the script may end before the trial has seen enough
    CLOCK.listeners.append(guarded("trial", trial.step))
    if spec.trial.by_sample:
        TRAITS.listeners.append(trial.noticed)
    trial_exit.end_with_children(trial.control)


def _turns(spec: RunSpec, control: Path) -> Turns | None:
    """The turns of a side of a live pair; None of a trial that runs alone."""
    if spec.turns_after_steps is None:
        return None
    return Turns(control, spec.turns_after_steps, WORKERS)


class _Trial:
    def __init__(self, control: Path, run: RunSpec, spec: TrialSpec, turns: Turns | None) -> None:
        self.control = control
        self.before_exit: Callable[[], None] = lambda: None
        """Called when enough was seen, before the process ends."""
        self.enough: Callable[[int, int], str | None] = self._enough
        """Reason why it has seen enough after a step (its number, its end), None if it has not."""
        self._as_it_is = not run.settings
        self._samples_in = control if spec.load_again else None
        self._values_of = spec.stop.audit_steps if spec.by_sample else 1
        self._rule: StopRule = spec.stop
        self._ranks = StepAgreement(control, "stop")
        self._held = not spec.hold_at_first_step
        self._hold = guarded("hold at the first step", self._wait_for_go)
        self._begin_contention = guarded("CPU contention", self._read_contention)
        self._outputs = OutputsAudit()
        if self._rule.audit_steps:
            self._outputs.begin()
        self._turns = turns
        self._begin()

    def _begin_again(self) -> None:
        """A better clock was found. Its first step is over: it cannot be audited any more."""
        self._audit.abandon()
        self._syncs.abandon()
        self._begin(passed=1)

    def _begin(self, passed: int = 0) -> None:
        """Begin to count; the first `passed` steps are not audited."""
        self._passed = passed
        self._audit = TrainingAudit(self._rule.audit_steps, self._samples_in, self._values_of)
        self._audit.begin()
        self._syncs = DeviceSyncLines(self._rule.audit_steps if self._as_it_is else 0)
        self._look_for_syncs = guarded("device syncs", self._syncs.after_step)
        self._count = 0
        self._began: int | None = None
        self._cpu_begin: cpu_contention.CpuReading | None = None
        self._last = now()
        self._paused_ns = 0
        self._recent: deque[int] = deque(maxlen=32)

    def finish(self) -> None:
        """Write the audits, and how long other processes had the cores."""
        guarded("audit", self._audit.finish)()
        guarded("audit of outputs", self._outputs.finish)()
        guarded("CPU contention", self._write_contention)()

    def step(self, count: int) -> None:
        """After each step of the clock."""
        end = now()
        if count <= self._count:
            self._begin_again()
        rule = self._rule
        before = rule.audit_steps + self._outputs_steps() + rule.warmup_steps
        self._count = count
        if not self._held:
            self._held = True
            self._hold()
        audited = count - self._passed
        if 0 < audited <= rule.audit_steps:
            self._audit.after_step(audited)
            self._look_for_syncs(audited)
        elif audited == before:
            self._began = end
        elif self._began is not None:
            self._pause(end - self._last)
        if audited == max(before, 1):
            self._begin_contention()
        if self._turns is not None and audited >= before:
            self._take_turns(self._turns, count)
            return
        reason = self.enough(count, end)
        if reason != "max_steps":  # every rank stops there by itself, at the same step
            reason = self._ranks.agreed(count, reason)
        if reason is not None:
            self.before_exit()
            trial_exit.end_at_once(lambda: self._write_exit(reason, count, end), self.control)
        self._last = now()

    def noticed(self, trait: str) -> None:
        """A script that is distributed by itself may wait for ranks for ever: nothing more is to be
        seen of it."""
        if trait in DISTRIBUTED_TRAITS:
            count, end = self._count, now()
            trial_exit.end_at_once(lambda: self._write_exit(trait, count, end), self.control)

    def _outputs_steps(self) -> int:
        """Further steps before the measured window, in which outputs are looked at."""
        rule = self._rule
        return (
            max(0, OUTPUT_CALLS - rule.audit_steps)
            if rule.audit_steps and CLOCK.forward_only
            else 0
        )

    def _take_turns(self, turns: Turns, count: int) -> None:
        """When there is no further turn the trial ends; the turns tell its measured window."""
        if turns.after_step(count):
            self._began, end = None, now()
            trial_exit.end_at_once(lambda: self._write_exit("enough", count, end), self.control)

    def _enough(self, count: int, end: int) -> str | None:
        """Reason why this process has seen enough, None if it has not."""
        if count >= self._rule.max_steps:
            return "max_steps"
        if self._began is None or count < self._rule.min_steps + self._outputs_steps():
            return None
        measured = end - self._began - self._paused_ns
        return "enough" if measured >= self._rule.min_seconds * 1e9 else None

    def _pause(self, duration: int) -> None:
        """Leave a pause out of the measured time; steps that stay long are none."""
        recent = self._recent
        if len(recent) >= 5 and duration > SPIKE * statistics.median(recent):
            self._paused_ns += duration
        recent.append(duration)

    def _read_contention(self) -> None:
        self._cpu_begin = cpu_contention.read_cpu_counts()

    def _write_contention(self) -> None:
        begin, self._cpu_begin = self._cpu_begin, None
        if begin is not None:
            RECORDER.event(
                cpu_contention.contention_between(begin, cpu_contention.read_cpu_counts())
            )

    def _wait_for_go(self) -> None:
        if self._as_it_is:
            guarded("imports", loaded_modules.write_imports)()
        self.control.mkdir(parents=True, exist_ok=True)
        (self.control / FIRST_STEP).touch()
        go = self.control / GO
        deadline = time.monotonic() + HOLD_SECONDS
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _write_exit(self, reason: str, count: int, end: int) -> None:
        guarded("CPU contention", self._write_contention)()
        CLOCK.drain(DEVICE_SECONDS)
        RECORDER.event(
            StopEvent(reason=reason, steps=count, window_begin_ns=self._began, window_end_ns=end)
        )
        trial_exit.await_peers(self.control)
        self.finish()
        write_exit_metrics()
