"""The other batch sizes that a tuning may try."""

from __future__ import annotations

from typing import Any

from gpurun.arguments.options import Objective, Options
from gpurun.knobs import find
from gpurun.knobs.api import Skip
from gpurun.records.facts import Facts
from gpurun.tuner import knob_calls
from gpurun.tuner.proof.decision import BATCH


def other_batches(facts: Facts, options: Options) -> list[Any] | Skip:
    """Batch sizes to try, likeliest first, or why none is tried."""
    if options.aim is not Objective.THROUGHPUT:
        return Skip("it is tuned for throughput alone")
    flag = facts.batch_flag
    names = {argument.name for argument in options.tuned_arguments}
    if flag is not None and flag.flag in names:
        # two changes of one flag would undo each other
        return Skip(f"{flag.flag} is tuned")
    return knob_calls.candidates(find(BATCH, options.knob_paths), facts)
