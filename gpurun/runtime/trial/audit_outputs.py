"""Records the outputs of root modules without gradients, for the guard to compare trials.

The first calls of a process are looked at closely, outside the measured window of a script that
only infers. Of later ones a few are: batches of another size, and calls ever further apart. Of
those only sampled numbers are kept, on their device, until the trial ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch import Tensor, nn

from gpurun.records.messages.training_events import OutputsEvent
from gpurun.records.spec import OUTPUT_CALLS
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.seeds import generator_state
from gpurun.runtime.core.tensor_values import first_tensor, is_tensor
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.trial.tensor_figures import Sampler, Taken, tensors_in

OTHER_SIZES = 4
"""Later calls with a batch of another size that are looked at: the last of an epoch."""
INPUT_VALUES = 128
MOST_BUFFERS = 64
BUFFER_VALUES = 8
HELD_VALUES = 256
"""Numbers of a held output that are read again."""


@dataclass
class _Call:
    """One call that is looked at; the output's part is there once it has returned."""

    number: int
    trained: int
    module: str
    inputs: list[Taken]
    state: int | None
    outputs: list[Taken] = field(default_factory=list)
    structure: str = ""
    draws: bool | None = None
    buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Buffers of the module, with sampled numbers from before the call."""
    moved: bool | None = None


class OutputsAudit:
    """Looks at root calls without gradients, in evaluations of a training too.

    `before`: note what a call is given, of those that are looked at. `after`: record the call's
    result, and whether the call changed the result of the one before.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._sampler = Sampler()
        self._calls = self._others = 0
        self._usual: int | None = None
        self._later: list[_Call] = []
        self._held: tuple[_Call, list[tuple[Tensor, Tensor]]] | None = None
        self.before: Callable[..., Any] = guarded("audit of root calls", self._note)
        self.after: Callable[..., None] = guarded("audit of outputs", self._returned)

    def begin(self) -> None:
        """Start looking."""
        ROOTS.observer = self

    def finish(self) -> None:
        """Write what was kept back."""
        held = [] if self._held is None else [self._held[0]]
        calls, self._held, self._later = [*held, *self._later], None, []
        if os.getpid() == self._process:
            for call in calls:
                _write(call, None)

    def _note(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Call | None:
        self._calls += 1
        early = self._calls <= OUTPUT_CALLS
        if not early and self._held is None and not self._wanted(args, kwargs):
            return None
        found, _ = tensors_in((args, kwargs))
        if early and self._usual is None:
            self._usual = _size(args, kwargs)
        return _Call(
            number=self._calls,
            trained=CLOCK.backwards,
            module=type(module).__name__,
            inputs=self._sampler.take(found, self._calls, INPUT_VALUES),
            state=generator_state() if early else None,
            buffers=self._buffers(module) if early else [],
        )

    def _buffers(self, module: nn.Module) -> list[tuple[Tensor, Tensor]]:
        """Those that a normalisation's statistics are among."""
        found = (b for b in module.buffers() if b.is_floating_point() and b.numel())
        return [(b, self._sampler.values(b, BUFFER_VALUES)) for b in islice(found, MOST_BUFFERS)]

    def _wanted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if a later call is looked at: at each power of two, or of an unusual size."""
        if self._calls & (self._calls - 1) == 0:
            return True
        other = self._others < OTHER_SIZES and _size(args, kwargs) != self._usual
        self._others += other
        return other

    def _returned(self, call: _Call, result: object) -> None:
        if call.state is not None:
            call.draws = generator_state() != call.state
            call.moved = any(self._changed(*kept, BUFFER_VALUES) for kept in call.buffers)
            call.buffers = []
        held, self._held = self._held, None
        if held is not None:
            _write(held[0], any(self._changed(*kept) for kept in held[1]))
        found, call.structure = tensors_in(result)
        call.outputs = self._sampler.take(found, call.number)
        if call.number > OUTPUT_CALLS:
            self._later.append(call)
            return
        kept = [value.detach() for _, value in found if is_tensor(value)]
        self._held = call, [(tensor, self._sampler.values(tensor, HELD_VALUES)) for tensor in kept]

    def _changed(self, tensor: Tensor, before: Tensor, count: int = HELD_VALUES) -> bool:
        try:
            now = self._sampler.values(tensor, count)
        except RuntimeError:  # torch refuses: the next run of a CUDA graph wrote over it
            return True
        return not bool(((now == before) | ((now != now) & (before != before))).all())


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    first = first_tensor(args, kwargs)
    return None if first is None or not first.dim() else int(first.shape[0])


def _write(call: _Call, overwritten: bool | None) -> None:
    RECORDER.event(
        OutputsEvent(
            call=call.number,
            trained=call.trained,
            module=call.module,
            inputs=tuple(taken.read() for taken in call.inputs),
            outputs=tuple(taken.read() for taken in call.outputs),
            structure=call.structure,
            draws=call.draws,
            overwritten=overwritten,
            moved=call.moved,
        )
    )
