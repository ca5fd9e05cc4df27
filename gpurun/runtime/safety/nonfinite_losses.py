"""Notices losses that are not finite, and does what `--on-nonfinite` says.

Losses come from the step clock, which resolves them late: nothing here waits for a device, but for
`skip`, which must know the loss before the optimizer's step.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as optimizers

from gpurun.errors import say
from gpurun.records.events import CLOCKS, NonfiniteEvent, StepRow
from gpurun.records.spec import NonfiniteAction, SafetySpec
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.step_agreement import rank_and_size
from gpurun.runtime.observe.exit_metrics import BEFORE_END, write_exit_metrics
from gpurun.runtime.observe.optimizers import unless_compiling
from gpurun.runtime.observe.step_clock import CLOCK, PATIENCE
from gpurun.runtime.safety.nonfinite_origin import NonfiniteOrigin

ENDED = 1
"""Exit code of a run that `stop` ends."""
END_SECONDS = 5.0
"""The longest that the end of a script waits for a device that `sys.exit` does not stop."""
LEFT_OUT = "; its optimizer step is left out (--on-nonfinite skip)"
LEFT_OUT_BY_SCRIPT = "; the script left out its optimizer step by itself"
TAKEN = "; its optimizer step was taken: skip is for one process, and not for a closure"


class NonfiniteLosses:
    """Looks at the losses of resolved steps; reports the first bad one, counts the others."""

    def __init__(self, spec: SafetySpec, run_dir: Path) -> None:
        self._action, self._quiet, self._run_dir = spec.on_nonfinite, spec.quiet, run_dir
        self.before_stop: list[Callable[[str], None]] = []
        """Called with the cause before `stop` ends the script."""
        self._origin = NonfiniteOrigin() if spec.locate_nonfinite else None
        self._start()

    def _start(self) -> None:
        """Nothing has been seen yet."""
        self._steps: Counter[int] = Counter()
        self._clock = ""
        self._finite: int | None = None
        self._first: tuple[int, str, int | None] | None = None
        self._where: str | None = None
        if self._origin is not None:
            self._origin.forget()
        self._seen = self._skipped = 0
        self._left_by_script = self._asked_to_end = False

    def install(self) -> None:
        """Look at losses as they are resolved; `skip` and `stop` look at every one."""
        os.register_at_fork(after_in_child=self._start)
        CLOCK.resolved.append(guarded("losses", self._look))
        BEFORE_END.append(guarded("losses at the end", self._record_end))
        if self._origin is not None:
            self._origin.install()
        if self._action is NonfiniteAction.WARN:
            return
        CLOCK.every_loss = True
        if self._action is NonfiniteAction.STOP:
            CLOCK.listeners.append(self._end_if_seen)
        else:
            LeftOutSteps(self._count_skipped, self._note_left_by_script).install()

    def _look(self, clock: str, rows: list[list[Any]]) -> None:
        if clock != self._clock:
            if self._clock and CLOCKS.index(clock) > CLOCKS.index(self._clock):
                return
            self._clock = clock
            self._steps.clear()
        for row in rows:
            self._steps[row[StepRow.SOURCE]] += 1
            loss, step = row[StepRow.LOSS], max(self._steps.values())
            if loss is None or (clock == "backward" and len(CLOCK.optimizers) and step <= PATIENCE):
                continue  # the loss of the optimizer's first step holds those of its backwards
            if math.isfinite(loss):
                self._finite = step
                if self._origin is not None and self._first is None:
                    self._origin.was_finite(step)
                continue
            self._seen += 1
            if self._first is None:
                self._first = (step, str(loss), self._finite)
                self._report(step, str(loss))

    def _report(self, step: int, loss: str) -> None:
        if self._origin is not None:
            self._where = guarded("origin of NaN", self._origin.origin)(step, self._finite)
        self._record()
        if self._quiet and self._action is NonfiniteAction.WARN:
            return
        since = ""
        if self._finite is not None and self._finite < step - 1:
            since = f"; it was finite at step {self._finite}, the last one looked at before"
        by_script = LEFT_OUT_BY_SCRIPT if self._left_by_script else TAKEN
        then = {
            NonfiniteAction.WARN: "",
            NonfiniteAction.SKIP: LEFT_OUT if self._skipped else by_script,
            NonfiniteAction.STOP: "; the run ends (--on-nonfinite stop)",
        }[self._action]
        _say_once(self._run_dir, "nonfinite", f"the loss is {loss} at step {step}{since}{then}")
        if self._where is not None:
            _say_once(self._run_dir, "nonfinite-origin", self._where)

    def _record(self) -> None:
        if self._first is None:
            return
        step, loss, finite = self._first
        RECORDER.event(
            NonfiniteEvent(
                step, loss, finite, self._seen, self._skipped, self._action.value, self._where
            )
        )

    def _record_end(self) -> None:
        if self._seen > 1 or self._skipped:
            self._record()

    def _count_skipped(self) -> None:
        self._skipped += 1

    def _note_left_by_script(self) -> None:
        self._left_by_script = True

    def _end_if_seen(self, count: int) -> None:
        """End the script at a step, as `sys.exit` would: its own clean-up runs.

        In a thread `sys.exit` would end only the thread. And a script that is still here at the
        next step has caught it, as a bare `except:` does.
        """
        if self._first is None:
            return
        if not self._asked_to_end:
            self._asked_to_end = True
            for call in self.before_stop:
                call(f"the loss is {self._first[1]} at step {self._first[0]}")
            if threading.current_thread() is threading.main_thread():
                sys.exit(ENDED)
        try:
            write_exit_metrics(END_SECONDS)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(ENDED)


class LeftOutSteps:
    """Optimizer steps without gradients while a loss of the step is not finite: none does a thing.

    Gradients are put back after the step, for a script that reads them. Asking for the loss waits
    for the device. Ranks that the script started itself would leave out different steps, and their
    copies of the model part: they leave out none.

    The script itself may have left out the step of an earlier loss, as `GradScaler` does. So such a
    loss counts only if it has left a gradient that is not finite.
    """

    def __init__(self, skipped: Callable[[], None], left_by_script: Callable[[], None]) -> None:
        self._skipped, self._left_by_script = skipped, left_by_script
        self._aside: list[tuple[Optimizer, list[tuple[Tensor, Tensor]]]] = []

    def install(self) -> None:
        """Stand before and after every optimizer's step."""
        optimizers.register_optimizer_step_pre_hook(unless_compiling(self._begins))
        optimizers.register_optimizer_step_post_hook(unless_compiling(self._ends))

    def _begins(self, optimizer: Optimizer) -> None:
        losses = CLOCK.losses_so_far
        finite = [bool(loss.isfinite().all()) for loss in losses]
        if self._aside or rank_and_size()[1] > 1 or all(finite):
            return
        taken = [
            (parameter, parameter.grad)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        if finite[-1] and all(_is_finite(gradient) for _, gradient in taken):
            self._left_by_script()
            return
        self._aside.append((optimizer, taken))
        for parameter, _ in taken:
            parameter.grad = None
        self._skipped()

    def _ends(self, optimizer: Optimizer) -> None:
        if not self._aside or self._aside[-1][0] is not optimizer:
            return
        for parameter, gradient in self._aside.pop()[1]:
            if parameter.grad is None:
                parameter.grad = gradient


def _is_finite(gradient: Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.isfinite().all())


def _say_once(run_dir: Path, subject: str, text: str) -> None:
    """Write the line unless another process of the run has spoken of the subject."""
    try:
        os.close(os.open(run_dir / f"said-{subject}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return
    except OSError:
        pass  # no room for the mark: better twice than never
    rank = os.environ.get("RANK", "")
    say(f"rank {rank}: {text}" if rank.isdigit() else text)
