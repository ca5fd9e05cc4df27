"""What the stepping thread does outside of loader, model, loss and optimizer, by a host profile."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.host_functions import innermost, waiting_seconds
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.timeline.model import MODEL_PHASES

LOSS_AND_PROFILER = ("/torch/nn/", "/torch/_ops.py", "/torch/profiler/", "/torch/autograd/")
"""Files of torch that belong to the training itself, or to the profiler."""


@dataclass(frozen=True)
class PythonOutside:
    """The functions that ran outside the model, and what they cost.

    `seconds`: of samples that stand for the whole step. `share`: of the step that the functions
    hold up. Waits for the device, and times in which the device works meanwhile, do not count.
    """

    functions: Sequence[FunctionSamples]
    seconds: float
    share: float

    @property
    def mainly(self) -> FunctionSamples | None:
        """The user's function to look at."""
        return innermost(self.functions)

    @property
    def share_of_mainly(self) -> float:
        """The share of the step without that function; all of `share` where there is none."""
        total = sum(f.self_seconds for f in self.functions)
        part = self.mainly.total_seconds / total if self.mainly and total else 1.0
        return self.share * min(part, 1.0)

    @property
    def waiting(self) -> float:
        """The part of the functions' time in which the thread waits instead of computing."""
        total = sum(f.self_seconds for f in self.functions)
        return min(1.0, sum(map(waiting_seconds, self.functions)) / total) if total else 0.0


def python_outside(evidence: Evidence) -> PythonOutside | None:
    """None without a host profile. With a replay, only samples in the host's pauses count."""
    seconds = None if evidence.timeline is None else evidence.timeline.host_sampled_seconds
    if not evidence.host_functions or not seconds:
        return None
    in_pauses = _in_pauses(evidence)
    functions = list(filter(outside, in_pauses or evidence.host_functions))
    seconds = _of_the_step(evidence, seconds)
    share = min(sum(f.self_seconds for f in functions) / seconds, 1.0)
    if in_pauses is None:
        syncs = evidence.figures.syncs
        waits = 0.0 if syncs is None else syncs.outside_share or 0.0
        share = unprofiled(min(share - waits, idle_for_host(evidence)), evidence)
    return PythonOutside(functions, seconds, share)


def _of_the_step(evidence: Evidence, seconds: float) -> float:
    """The seconds of samples that stand for the step, by the parts of steps without profilers.

    Samples only tell what the rest of the step, outside of loader, model and optimizer, consists
    of: they come late where a thread often lets go of Python's lock, and then show what follows.
    """
    split, step = evidence.split, evidence.step_ms
    rest = sum(f.self_seconds for f in evidence.host_functions if f.phase not in MODEL_PHASES)
    if evidence.unprofiled is None or split is None or not (split.rest_ms and step and rest):
        return seconds
    return rest / min(split.rest_ms / step, 1.0)


def outside(function: FunctionSamples) -> bool:
    """It runs outside the model, and computes no loss."""
    file = function.file.replace("\\", "/")
    return function.phase not in MODEL_PHASES and not any(p in file for p in LOSS_AND_PROFILER)


def unprofiled(share: float, evidence: Evidence) -> float:
    """The part of a GPU's idle share that the profilers' own work on the host does not explain."""
    return max(0.0, share - (evidence.profiling_share if evidence.on_gpu else 0.0))


def idle_for_host(evidence: Evidence) -> float:
    """The share of the step in which the device could wait for Python; all of it on the CPU.

    Without a timeline the device counts as idle while the training waits for data.
    """
    idle, active = evidence.idle, evidence.least_active_share
    if not evidence.on_gpu:
        return 1.0
    if idle is not None:
        return idle.total if idle.host is None else idle.host
    return 0.0 if active is None else max(0.0, 1 - active - (evidence.data_wait_share or 0.0))


def _in_pauses(evidence: Evidence) -> Sequence[FunctionSamples] | None:
    """The functions with the time and the busiest line that they have in the pauses of the replay.

    None without one, where a recording does not tell when they were seen, or if none was seen then.
    """
    timeline, functions = evidence.timeline, evidence.host_functions
    if timeline is None or evidence.replay is None or not timeline.host_moments:
        return None
    moments, times = timeline.host_moments, evidence.replay.python_pauses()
    at = np.fromiter((moment for moment, _ in moments), np.int64, len(moments))
    seconds = (timeline.host_sampled_seconds or 0.0) / len(moments)
    own: Counter[int] = Counter()
    lines: dict[int, Counter[int]] = defaultdict(Counter)
    for number in np.flatnonzero(times.covered(at, at + 1)).tolist():
        frames = moments[number][1]
        own.update(place for place, _ in frames[:1])
        for place, line in frames:
            lines[place][line] += 1
    found = [
        replace(
            functions[place],
            line=seen.most_common(1)[0][0],
            self_seconds=own[place] * seconds,
            total_seconds=seen.total() * seconds,
            blocked_seconds=_blocked(functions[place], own[place] * seconds),
        )
        for place, seen in lines.items()
    ]
    return found or None


def _blocked(function: FunctionSamples, self_seconds: float) -> float | None:
    """What it waited in this part of its time, at the same rate as in all of it."""
    if function.blocked_seconds is None or not function.self_seconds:
        return function.blocked_seconds
    return function.blocked_seconds / function.self_seconds * self_seconds
