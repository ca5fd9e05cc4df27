"""Python between torch's operators holds up the step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpurun.diagnoses.api import Seen, diagnosis, gain_without, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.host_functions import MOST, bare_name, innermost, line_of
from gpurun.diagnoses.host_waits import ADVICE_WAITING, host_wait
from gpurun.diagnoses.kinds.whole_run import ADVICE_PERIOD, REGULAR, working_ns
from gpurun.diagnoses.python_outside import (
    PythonOutside,
    idle_for_host,
    python_outside,
    unprofiled,
)
from gpurun.records.finding import FindingType
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.replay.what_ifs import Change
from gpurun.timeline.device_work import OWN_WINDOW
from gpurun.timeline.model import Phase

ADVICE = (
    "do it once in many steps, or in a thread or process of its own",
    "replace Python loops over tensors by one operation on whole tensors",
    "optimizer.zero_grad(set_to_none=True) in place of a loop over parameters",
)
ADVICE_OPTIMIZER = (
    "replace Python loops over parameters by torch._foreach_* or one operation on all of them",
    "an optimizer of torch that does the same is computed as a whole (foreach, fused)",
)
PROFILE = "gpurun profile names the lines that take this time"
ADVICE_WRITING = (
    "write to files and loggers once in many steps, and leave flushing to the system",
    "keep figures in memory, or hand them to a thread that writes them",
)
WRITES = (
    "write", "writelines", "flush", "fsync", "print", "emit", "dump", "dumps", "save", "_save",
    "writerow", "add_scalar", "close", "_log", "info",
)  # fmt: skip
"""Functions in which a step writes or logs."""
OPENS_TO_WRITE = r"""\bopen\s*\((.*[,=]\s*)?["']([wax][bt+]*|r[bt]?\+[bt]?)["']"""
WRITES_IN_LINE = re.compile(rf"\b({'|'.join(WRITES)}|log|debug|warning)\s*\(|{OPENS_TO_WRITE}")
LIBRARY_WRITES = re.compile(r"(?i:writer)|\b_?save\.<locals>")
"""Libraries' functions that write, whatever their last name: of writers, and inside of `save`."""
WRITING = 0.5
"""Share of the Python outside the model; longer writing is named as the cause."""


@diagnosis(
    FindingType.HOST_BOUND, Source.HOST, Source.STEPS, Source.TIMELINE,
    change=Change.PYTHON, thresholds=("unexplained_share",),
)  # fmt: skip
def host_bound(evidence: Evidence) -> Seen | None:
    """Python code between the model's operators takes a part of the step.

    Replayed without the host's pauses of more than 0.1 ms between two calls of CUDA, outside of
    loader, model and optimizer; shorter ones are the pace of launches, and waits for the device are
    no pauses. Samples of the stack inside the pauses name function and line. Without a replay, the
    bound is the step less the function that is named, else less all functions outside the loader,
    model, loss and optimizer, as far as the device idles meanwhile. Their own calls of torch count,
    too. Writing to files and logging are named, and so is a thread that waits instead of computing:
    asleep, or for a lock, a process, storage or a network. Without a host profile, only the
    unexplained rest of the step is known, and 30 % of it is a warning. Waits for data are first
    taken away from the device's idle time.
    """
    python = python_outside(evidence)
    if python is None:
        by_device = evidence.on_gpu and Source.TIMELINE in evidence.sources
        return (_idle if by_device else _unexplained)(evidence)
    if (by_hand := _optimizer_by_hand(evidence, python)) is not None:
        return by_hand
    wait = host_wait(evidence, python)
    if wait is not None and wait.of_queue:
        return None  # the script's own loader: `data_loading` tells it
    functions, seconds = python.functions, python.seconds
    own, writing = python.mainly, _writing_share(functions, evidence.source_lines)
    advice: tuple[str, ...] = ADVICE
    alone = evidence.replay is None  # a replay is without all of it
    share = python.share_of_mainly if alone else python.share
    text = "Python outside the model takes {share} of the step"
    text += f"{'' if alone else ', most of it'} in {own.function}" if own else ""
    if writing >= WRITING:
        when = _when(evidence, share)
        text = f"{text}: it writes or logs{when}"
        advice = ADVICE_PERIOD if "every" in when else ADVICE_WRITING
    elif wait is not None:
        text, advice = wait.sentence, ADVICE_WAITING
    hottest = sorted(functions, key=lambda f: -f.self_seconds)[:3]
    return Seen(
        text,
        measured(
            Source.HOST,
            host_share=python.share,
            function_share=share,
            waiting_share_of_it=python.waiting,
            writing_share_of_it=writing,
            function=[f"{f.function} {percent(f.self_seconds / seconds)}" for f in hottest],
        ),
        advice,
        location=line_of(own),
        bound=gain_without(share, 0.0 if evidence.on_gpu else evidence.profiling_share),
        share=share,
    )


def _optimizer_by_hand(evidence: Evidence, python: PythonOutside) -> Seen | None:
    """The script's own optimizer, where its Python takes more of a step on the CPU than any other.

    The functions of torch's optimizers are not the user's: only their callers are.
    """
    split, step = evidence.split, evidence.step_ms
    functions = [f for f in evidence.host_functions if f.phase == Phase.OPTIMIZER.value]
    own, seconds = innermost(functions), sum(f.self_seconds for f in functions)
    if own is None or own.self_seconds < MOST * seconds or evidence.on_gpu:
        return None
    share = (split.optimizer_ms or 0.0) / step if split is not None and step else 0.0
    if share <= python.share_of_mainly:
        return None
    return Seen(
        f"The script's own optimizer takes {{share}} of the step in {own.function}",
        measured(Source.HOST, optimizer_share=share),
        ADVICE_OPTIMIZER,
        location=line_of(own),
        bound=gain_without(share),
        share=share,
    )


def _when(evidence: Evidence, share: float) -> str:
    """In which steps this share of the time passes: where long ones hold most of it, in these.

    Without a clock's steps nothing speaks against each step; odd distances tell nothing.
    """
    lengths = working_ns(evidence.unprofiled or evidence.window)
    if not len(lengths):
        return " in each step"
    beyond = lengths - np.median(lengths)
    long = np.flatnonzero(beyond > share * lengths.mean())
    if beyond[long].sum() < share * lengths.sum() / 2:
        return " in each step"
    apart = np.diff(long)
    period = int(np.median(apart)) if len(long) > 1 else 0
    return f" every {period} steps" if period and np.mean(apart == period) >= REGULAR else ""


def _unexplained(evidence: Evidence) -> Seen | None:
    split, step = evidence.split, evidence.step_ms
    if split is None or split.rest_ms is None or not step or split.forward_ms is None:
        return None
    share = min(split.rest_ms / step, idle_for_host(evidence))
    return Seen(
        "{share} of the step is neither loader nor model nor optimizer: Python code, the loss, "
        "logging",
        measured(Source.STEPS, unexplained_share=share, rest_ms=split.rest_ms, step_ms=step),
        _advice_without_lines(evidence),
        severity=evidence.thresholds.severity("unexplained_share", share),
        bound=gain_without(share),
        share=share,
    )


def _idle(evidence: Evidence) -> Seen | None:
    """The device's idle time that is no wait for data, no synchronisation and no launch."""
    idle = evidence.idle
    if idle is None or idle.host is None:
        return None
    untold = "" if idle.data is not None else " (which may be its loader)"
    return Seen(
        f"the device waits {{share}} of the step while the host does something else{untold}",
        measured(Source.TIMELINE, host_idle_share=idle.host, idle_share=idle.total),
        _advice_without_lines(evidence),
        bound=gain_without(unprofiled(idle.host, evidence)),
        share=idle.host,
    )


def _advice_without_lines(evidence: Evidence) -> tuple[str, ...]:
    """To profile comes first, unless that is what was done."""
    profiled = evidence.timeline is not None and OWN_WINDOW in evidence.timeline.sources
    return ADVICE if profiled else (PROFILE, *ADVICE)


def _writing_share(
    functions: Sequence[FunctionSamples], lines: Mapping[tuple[str, int], str]
) -> float:
    """The share of their time in functions that write or log, by their names or busiest lines.

    A function of the user's that is called so counts with all that it calls: a text is made before
    it is written.
    """
    total = sum(f.self_seconds for f in functions)
    library = (f for f in functions if not f.users_own and LIBRARY_WRITES.search(f.function))
    named = [*(f for f in functions if bare_name(f) in WRITES), *library]
    by_line = [f for f in functions if WRITES_IN_LINE.search(lines.get((f.file, f.line), ""))]
    alone = {id(f): f.self_seconds for f in (*named, *by_line)}
    whole = max((f.total_seconds for f in named if f.users_own), default=0.0)
    return min(1.0, max(sum(alone.values()), whole) / total) if total else 0.0
