"""Why a loader is slow: few workers, transforms that compute, slow storage, or a slow sampler."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from gpurun.diagnoses.evidence import Evidence
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.timeline.model import Phase

BUSY = 0.85
"""Cores in use, of those there are, from which on more workers find none."""
COMPUTES = 0.5
"""Share of the wait in which a processor works, from which on the wait is computation."""
MOST = 0.6
"""A function that holds this part of a time is the place to look at."""
ALIKE = 1.1
"""Times that differ by no more than this factor are the same."""
SAMPLER_FILE = "torch/utils/data/sampler.py"
"""torch's own samplers call those of the user."""
WAITING = (
    "sleep", "read", "recv", "open", "poll", "select", "acquire", "wait", "readinto", "get",
    "readline", "seek", "stat", "connect", "fsync",
)  # fmt: skip
"""Functions in which a thread waits for storage, network or others."""


class Cause(enum.Enum):
    """Why the script waits for its loader."""

    WORKERS = "workers"
    TRANSFORMS = "transforms"
    STORAGE = "storage"
    SAMPLER = "sampler"


def cause_of_wait(evidence: Evidence, wait_share: float) -> Cause:
    """The cause, as far as CPU use and a host profile show it; `WORKERS` if neither decides.

    The host profile shows nothing of worker processes. While other programs use the cores, CPU use
    shows nothing: a thread that waits for a core looks like one that waits for storage.
    """
    if _samples_slowly(evidence):
        return Cause.SAMPLER
    computing = None if evidence.workers else _profiled_computing(evidence)
    if computing is None and evidence.crowded:
        return Cause.WORKERS
    if evidence.workers:
        return _behind_workers(evidence)
    low, high = (computing, computing) if computing is not None else _bounds(evidence, wait_share)
    if high is not None and high < COMPUTES:
        return Cause.STORAGE
    if low is not None and low >= COMPUTES:
        return Cause.TRANSFORMS
    return Cause.WORKERS


def loader_function(evidence: Evidence) -> FunctionSamples | None:
    """The innermost function of the user's in which most of the wait for data passes."""
    return innermost([f for f in evidence.host_functions if f.phase == Phase.DATA.value])


def innermost(functions: Sequence[FunctionSamples]) -> FunctionSamples | None:
    """The innermost of the user's functions that takes most of the time of all of them.

    Callers take about as long as what they call, or a little less where others call it too: of such
    the one that computes most itself.
    """
    most = MOST * sum(f.self_seconds for f in functions)
    holding = [f for f in functions if f.users_own and f.total_seconds >= most]
    least = min((f.total_seconds for f in holding), default=0.0)
    alike = [f for f in holding if f.total_seconds <= ALIKE * least]
    return max(alike, key=lambda f: (f.self_seconds, -f.total_seconds), default=None)


def _samples_slowly(evidence: Evidence) -> bool:
    """The sampler takes most of the wait; it runs in the main process, whatever the workers."""
    functions = [f for f in evidence.host_functions if f.phase == Phase.DATA.value]
    sampling = [f.total_seconds for f in functions if f.file.endswith(SAMPLER_FILE)]
    return max(sampling, default=0.0) > MOST * sum(f.self_seconds for f in functions)


def _behind_workers(evidence: Evidence) -> Cause:
    used, cores, workers = evidence.cores_used, evidence.cores_available, evidence.workers or 0
    if used is None or not cores:
        return Cause.TRANSFORMS if cores and workers >= cores else Cause.WORKERS
    if used >= BUSY * cores:
        return Cause.TRANSFORMS
    return Cause.WORKERS if used >= COMPUTES * min(workers, cores) else Cause.STORAGE


def _profiled_computing(evidence: Evidence) -> float | None:
    """Share of the wait in which Python or a library computes, by the host profile."""
    functions = [f for f in evidence.host_functions if f.phase == Phase.DATA.value]
    total = sum(f.self_seconds for f in functions)
    if not total:
        return None
    return 1 - sum(map(_waiting, functions)) / total


def _waiting(function: FunctionSamples) -> float:
    """Seconds in which a function waited: as the kernel counts, else by what it is."""
    if function.blocked_seconds is not None:
        return function.blocked_seconds
    return function.self_seconds if bare_name(function) in WAITING else 0.0


def bare_name(function: FunctionSamples) -> str:
    """The bare name: "<built-in method time.sleep>" is "sleep"."""
    return function.function.strip("<>").split()[-1].rpartition(".")[2]


def _bounds(evidence: Evidence, wait_share: float) -> tuple[float | None, float | None]:
    """Least and most of the wait in which a core works, by the CPU use of the whole run.

    The rest of the step keeps between none and all threads of torch busy.
    """
    used = evidence.cores_used
    if used is None or not wait_share:
        return None, None
    rest = 1 - wait_share
    threads = 1 if evidence.on_gpu else max(evidence.threads or 1, 1)
    return (used - rest * threads) / wait_share, used / wait_share
