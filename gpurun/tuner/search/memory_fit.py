"""Finds the first settings under which a script that runs out of memory trains.

At its own batch and by the same algorithm: each knob that saves memory is added on top of those
before, its values in turn, until a trial trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.trials import knob_calls
from gpurun.tuner.tuning_trial import Trial

HELD_STEPS = 3
"""After so many steps the optimizer's state is there."""

Probe = Callable[[dict[str, Any]], Trial]
"""Settings → a first trial under them."""


def make_it_fit(
    knobs: Iterable[Knob],
    facts: Facts,
    allowed: frozenset[Effect],
    probe: Probe,
    note: Callable[[str], None],
    out_of_time: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Any], Trial] | None:
    """The settings under which the script trains, with the trial; None if there are none.

    A trial that was still training when its time was up counts: to train slowly is more than not at
    all, and what saves more memory is rarely faster. `facts` are those of the trial that ran out of
    memory.
    """
    settings: dict[str, Any] = {}
    unknown = False
    for knob in knobs:
        if not knob.saves_memory or knob.effect not in allowed:
            continue
        values = knob_calls.candidates(knob, facts)
        if isinstance(values, Skip):
            note(f"{knob.name}: not tried: {values.reason}")
            continue
        for value in values:
            if out_of_time():
                note(f"{knob.name}: not tried: the budget is used up")
                return None
            settings[knob.name] = value
            note(f"it runs out of memory as it is: trying {knobs_text(settings)}")
            trial = probe(dict(settings))
            steps = 0 if trial.result is None else trial.result.steps
            if trial.throughput is not None or (trial.was_slow and steps >= HELD_STEPS):
                return settings, trial
            if trial.record.status != "oom":
                note(f"{knob.name} {value}: {trial.record.reason}")
                del settings[knob.name]
                unknown = True
                break
    if settings and not unknown:
        note(f"nothing makes it fit, not even {knobs_text(settings)}")
    return None
