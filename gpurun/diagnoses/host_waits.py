"""The stepping thread waits inside Python: for a queue, a lock or a process, or it sleeps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from gpurun.diagnoses.api import percent
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.host_functions import (
    MOST,
    WAITING,
    bare_name,
    line_of,
    waiting_seconds,
)
from gpurun.diagnoses.python_outside import PythonOutside, outside
from gpurun.records.finding import Location

MAINLY = 0.5
"""The part of Python's time outside the model from which on it is said to wait."""
NEARLY_ALL = 0.9
"""From this part on nothing is said of the rest."""
CALL = re.compile(r"([\w.]+)\s*\(")
ENDINGS = {
    "get": "whatever fills that queue is the bottleneck",
    "sleep": "the script itself sleeps there",
}
"""What a wait means, by the call."""
OTHERWISE = "whatever it waits for there is the bottleneck"
ADVICE_WAITING = (
    "make faster what the thread waits for, or start it earlier, so that it is done by then",
    "wait in a thread of its own, and hand over what is ready",
)
ADVICE_QUEUE = (
    "fill the queue from more threads, or from processes where Python computes: "
    "DataLoader(num_workers=...) does so",
    "let the queue hold several batches, so that one that takes longer does not stop the step",
)


@dataclass(frozen=True)
class HostWait:
    """`sentence`: with `{share}` for the share of the step. `of_queue`: the thread waits for a
    queue, and longer than for a DataLoader.
    """

    sentence: str
    of_queue: bool
    location: Location | None


def host_wait(evidence: Evidence, python: PythonOutside) -> HostWait | None:
    """What the thread waits for outside the model; None where it computes for most of the time."""
    if python.waiting < MAINLY:
        return None
    place = line_of(python.mainly)
    call = _call(evidence, python, place)
    ending = ENDINGS.get((call or "").rpartition(".")[2], OTHERWISE)
    where = ""
    if place is not None:
        where = f" at {PurePath(place.file).name}:{place.line} in {place.function}"
    runs = "" if python.waiting >= NEARLY_ALL else f" (it runs {percent(1 - python.waiting)} of it)"
    told = f"the main thread waits{f' in {call}' if call else ''}{where} for {{share}} of the step"
    of_queue = ending == ENDINGS["get"] and python.share > (evidence.data_wait_share or 0.0)
    return HostWait(f"{told}{runs}: {ending}", of_queue, place)


def _call(evidence: Evidence, python: PythonOutside, place: Location | None) -> str | None:
    """The library's function that waits, the outermost of several; else the call in the line."""
    least = MOST * sum(map(waiting_seconds, python.functions))
    waits = [
        f
        for f in evidence.host_functions
        if outside(f) and not f.users_own and bare_name(f) in WAITING and f.total_seconds >= least
    ]
    if waits:
        found = max(waits, key=lambda f: (f.total_seconds, -f.self_seconds)).function
        return found.strip("<>").split()[-1]
    text = "" if place is None else evidence.source_lines.get((place.file, place.line or 0), "")
    calls = CALL.findall(text)
    return next((call for call in calls if call.rpartition(".")[2] in WAITING), None)
