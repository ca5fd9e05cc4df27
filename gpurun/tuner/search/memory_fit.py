"""Finds the first settings under which a script that runs out of memory trains.

At its own batch and by the same algorithm: each knob that saves memory is added on top of those
before, its values in turn, until a trial trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.records.events import StepRow
from gpurun.records.facts import Facts
from gpurun.tuner import knob_calls
from gpurun.tuner.tuning_trial import Trial

HELD_STEPS = 3
"""After so many steps the optimizer's state is there."""
STILL_STEPPING = 3.0
"""A last step that is longer ago than so many steps take is the last: it hangs."""

Probe = Callable[[dict[str, Any]], Trial]
"""Settings → a first trial under them."""


def make_it_fit(
    knobs: Iterable[Knob],
    facts: Facts,
    allowed: frozenset[Effect],
    probe: Probe,
    note: Callable[[str], None],
    out_of_time: Callable[[], bool] = lambda: False,
    beyond: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], Trial] | None:
    """The settings under which the script trains, with the trial; None if there are none.

    A trial that was still training when its time was up counts: to train slowly is more than not at
    all, and what saves more memory is rarely faster. `facts` are those of the trial that ran out of
    memory. `beyond`: settings that were found before and did not hold; only what saves more is
    tried.
    """
    settings: dict[str, Any] = {}
    passed = beyond is None
    unknown = False
    for knob in knobs:
        if not knob.saves_memory or knob.effect not in allowed:
            continue
        if not passed and beyond is not None and knob.name not in beyond:
            continue  # it failed when it was tried
        values = knob_calls.candidates(knob, facts)
        if isinstance(values, Skip):
            note(f"{knob.name}: not tried: {values.reason}")
            continue
        for value in values:
            if out_of_time():
                note(f"{knob.name}: not tried: the budget is used up")
                return None
            settings[knob.name] = value
            if not passed:
                passed = settings == beyond
                continue
            note(f"it runs out of memory as it is: trying {_text(settings)}")
            trial = probe(dict(settings))
            if trial.throughput is not None or _was_training(trial):
                return settings, trial
            if trial.record.status != "oom":
                note(f"{knob.name} {value}: {trial.record.reason}")
                del settings[knob.name]
                unknown = True
                break
    if settings and not unknown:
        note(f"nothing makes it fit, not even {_text(settings)}")
    return None


def _was_training(trial: Trial) -> bool:
    """True if it was stepping up to its limit, and did not hang."""
    if trial.record.status != "timeout" or trial.log is None:
        return False
    tables = [table for table in trial.log.steps.values() if len(table) >= HELD_STEPS]
    if not tables:
        return False
    ends = max(tables, key=len)[StepRow.END_NS]
    usual = (ends[-1] - ends[0]) / (len(ends) - 1)
    since = trial.log.process.clock_ns + trial.record.seconds * 1e9 - ends[-1]
    return since < STILL_STEPPING * usual


def _text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
