"""Why a loader is slow: few workers, preparation that computes, idle waiting, or a slow sampler.

A cause is named only where the use of the processor or a host profile shows it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

from gpurun.diagnoses.evidence import Evidence
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.timeline.model import Phase

BUSY = 0.85
"""Cores in use, of those there are, from which on more workers find none."""
COMPUTES = 0.5
"""Share of the wait in which a core (with workers: each that they can use) works, from which on the
wait is computation."""
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
    COMPUTING = "computing"
    IDLE = "idle"
    SAMPLER = "sampler"
    CORES = "cores"
    NOT_MEASURED = "not_measured"


def cause_of_wait(evidence: Evidence, wait_share: float) -> Cause:
    """The cause, as far as CPU use and a host profile show it.

    If neither decides: `WORKERS` where there are none, which is known, else `NOT_MEASURED`. The
    host profile shows nothing of worker processes. While other programs use the cores, CPU use
    shows nothing: a thread that waits for a core looks like one that waits for storage.
    """
    if _samples_slowly(evidence):
        return Cause.SAMPLER
    workers, cores = evidence.workers, _a_rank(evidence.cores_available, evidence) or math.inf
    at_once = min(workers, cores) if workers else 1.0
    undecided = Cause.WORKERS if workers == 0 else Cause.NOT_MEASURED
    computing = None if workers else _profiled_computing(evidence)
    if computing is None and evidence.crowded:
        return undecided
    low, high = (
        _bounds(evidence, wait_share, at_once) if computing is None else (computing, computing)
    )
    if high is not None and high < COMPUTES * at_once:
        return Cause.IDLE
    full = (_a_rank(evidence.cores_used, evidence) or 0.0) >= BUSY * cores
    if low is None or low < COMPUTES * at_once:
        return Cause.CORES if low is not None and workers and full else undecided
    return Cause.WORKERS if workers and not full else Cause.COMPUTING


def loader_function(evidence: Evidence) -> FunctionSamples | None:
    """The innermost function of the user's in which most of the wait for data passes."""
    return innermost(_in_loader(evidence))


def _in_loader(evidence: Evidence) -> list[FunctionSamples]:
    return [f for f in evidence.host_functions if f.phase == Phase.DATA.value]


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
    functions = _in_loader(evidence)
    sampling = [f.total_seconds for f in functions if f.file.endswith(SAMPLER_FILE)]
    return max(sampling, default=0.0) > MOST * sum(f.self_seconds for f in functions)


def _profiled_computing(evidence: Evidence) -> float | None:
    """Share of the wait in which Python or a library computes, by the host profile."""
    functions = _in_loader(evidence)
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


def _bounds(
    evidence: Evidence, wait_share: float, at_once: float
) -> tuple[float | None, float | None]:
    """Fewest and most cores that work in the wait.

    The rest of the step keeps between none and all threads of torch busy, and worker processes,
    `at_once` at most. The fewest need the use in the measured steps: that of the whole run has the
    start in it. The most need all workers: the sampler sees new processes after some seconds only.
    """
    used = _a_rank(evidence.cores_used, evidence)
    host = None if evidence.result is None else evidence.result.host
    if used is None or host is None or not wait_share:
        return None, None
    rest, workers = 1 - wait_share, evidence.workers or 0
    threads = 1 if evidence.on_gpu else max(evidence.threads or 1, 1)
    busy = threads + (at_once if workers else 0.0)
    low = None if host.steady_cpu_percent is None else (used - rest * busy) / wait_share
    seen = _a_rank(host.processes, evidence) or 0
    return low, used / wait_share if seen > workers else None


def _a_rank(amount: float | None, evidence: Evidence) -> float | None:
    """A rank's part of what all ranks of the run have together."""
    if amount is None or evidence.result is None:
        return amount
    return amount / max(1, evidence.result.ranks)
