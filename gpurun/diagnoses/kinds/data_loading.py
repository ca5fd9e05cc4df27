"""The training waits for its data: how long, and why, as far as that was measured.

Causes are few workers, preparation that computes, idle waiting, or a slow sampler. One is named
only where the use of the processor or a host profile shows it.
"""

from __future__ import annotations

import math

from gpurun.diagnoses.api import Seen, diagnosis, gain_without, location_of, measured
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.host_functions import MOST, innermost, line_of, waiting_seconds
from gpurun.diagnoses.host_waits import ADVICE_QUEUE, host_wait
from gpurun.diagnoses.python_outside import python_outside
from gpurun.records.finding import FindingType
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.replay.what_ifs import Change
from gpurun.timeline.model import Phase

BUSY = 0.85
"""Cores in use, of those there are, from which on more workers, or others, find none."""
CROWD = 0.5
"""Cores that other programs use, from which on they can hold the script up."""
COMPUTES = 0.5
"""Share of the wait in which a core (with workers: each that they can use) works, from which on the
wait is computation."""
DATALOADER = "torch/utils/data/dataloader.py"
SAMPLING = "_next_index", "_BaseDataLoaderIter.__init__", "_BaseDataLoaderIter._reset"
"""Its functions in which a loader asks its sampler for indices, or for an iterator over them."""
NO_WORKERS = "no worker process prepares batches while the model trains"
FASTER = (
    "store samples decoded and resized, or transform whole batches on the device",
    "use a faster decoder or transform (Pillow-SIMD, torchvision.transforms.v2, DALI)",
)
CAUSES = {
    "workers": (
        "too few worker processes prepare batches",
        "load in worker processes: DataLoader(num_workers=..., persistent_workers=True), as many "
        "as a measurement finds best",
        "with workers: raise prefetch_factor where batches take unequally long",
    ),
    "computing": (
        "the processor is busy preparing batches (which part of it: not measured)",
        "load in worker processes: DataLoader(num_workers=...), as long as cores are free",
        *FASTER,
    ),
    "cores": ("the model and the worker processes keep all cores busy", *FASTER),
    "idle": (
        "the loader is slow and mostly idle: it sleeps or waits (for what: not measured)",
        "read ahead in worker processes, or in more of them: their waits pass at the same time",
        "if it waits for storage: keep the data on a local disk or in memory, in few large files",
    ),
    "sampler": (
        "the sampler takes long to choose samples, in the main process",
        "draw the indices of an epoch at once, with torch.multinomial or torch.randperm",
        "worker processes do not help: DataLoader asks the sampler in the main process",
    ),
    "not_measured": (
        "the cause was not measured",
        "run the script under gpurun: it measures the loader, its workers and their use of the CPU",
        "where no worker processes load: DataLoader(num_workers=...)",
    ),
}
"""Each cause in a sentence, and what to do about it."""
IN_FUNCTION = {
    "computing": "the processor is busy preparing batches, most of it in",
    "cores": "the model and the worker processes keep all cores busy, the workers in",
    "idle": "the loader is slow and mostly idle: it sleeps or waits in",
    "workers": "too few worker processes prepare batches, most of their time in",
}
"""The same where samples name the function."""


@diagnosis(
    FindingType.DATA_LOADING, Source.STEPS, Source.CPU_USE, Source.HOST, change=Change.BATCHES
)
def data_loading(evidence: Evidence) -> Seen | None:
    """The step waits for the data loader.

    Replayed with batches that are ready when asked for. Without a replay, the bound is the step
    less its wait for data. Workers, CPU use and the host profiles, also of the worker processes,
    tell the cause: no or too few workers, a processor that is busy preparing batches, no free core,
    a loader that is idle itself, or a slow sampler. Where they do not, no cause is named. Other
    programs on the cores hide the cause from CPU use, but not from the host profile. A script that
    takes its batches out of a queue of its own is told so, replayed without the host's pauses
    outside the model.
    """
    if (own := _own_loader(evidence)) is not None:
        return own
    share, split, host = evidence.data_wait_share, evidence.split, evidence.host
    place = location_of(evidence.loaders[0].key) if evidence.loaders else None
    cause = _cause_of_wait(evidence, share or 0.0)
    why, *advice = CAUSES[cause]
    prepares = _prepares(evidence)
    if cause == "workers" and evidence.workers == 0:
        why = NO_WORKERS
    elif prepares is not None and cause in IN_FUNCTION:
        why = f"{IN_FUNCTION[cause]} {prepares.function}"
    if prepares is None or cause == "sampler":
        prepares = innermost(_in_loader(evidence))
    used, cores = evidence.cores_used, host.cores_available
    free = math.inf if cores is None else cores - max(used or 0.0, evidence.workers or 0)
    workers_help = free >= 0.5 if cause in ("computing", "cores") else cause != "sampler"
    source = Source.TIMELINE if Source.TIMELINE in evidence.sources else Source.STEPS
    return Seen(
        f"the training waits for data {{share}} of the step: {why}",
        measured("diagnosis", cause=cause)
        + measured(source, data_wait_share=share)
        + measured(Source.STEPS, data_wait_ms=None if split is None else split.data_wait_ms)
        + measured(source if split is None else Source.STEPS, step_ms=evidence.step_ms)
        + measured(Source.STEPS, workers=evidence.workers)
        + measured(Source.CPU_USE, cores_used=used, cores_available=cores),
        tuple(advice),
        location=line_of(prepares) or place,
        knob="loader_workers" if workers_help else None,
        bound=gain_without(share, evidence.profiling_share),
        share=share,
    )


def _own_loader(evidence: Evidence) -> Seen | None:
    """The main thread takes its batches out of a queue that the script fills."""
    python = python_outside(evidence)
    wait = None if python is None else host_wait(evidence, python)
    if python is None or wait is None or not wait.of_queue:
        return None
    share = python.share if evidence.replay is not None else python.share_of_mainly
    return Seen(
        wait.sentence,
        measured("diagnosis", cause="queue") + measured(Source.HOST, host_share=python.share),
        ADVICE_QUEUE,
        location=wait.location,
        replayed=evidence.replayed_gain(Change.PYTHON),
        bound=gain_without(share, 0.0 if evidence.on_gpu else evidence.profiling_share),
        share=share,
    )


def _cause_of_wait(evidence: Evidence, wait_share: float) -> str:
    """The cause, as far as CPU use and a host profile show it.

    If neither decides: "workers" where there are none, which is known, else "not_measured". While
    other programs use the cores, CPU use shows nothing: a thread that waits for a core looks like
    one that waits for storage.
    """
    functions, workers = _in_loader(evidence), evidence.workers
    seconds = sum(f.self_seconds for f in functions)
    if sum(f.total_seconds for f in functions if _samples(f)) > MOST * seconds:
        return "sampler"  # it runs in the main process, whatever the workers
    all_cores = evidence.host.cores_available or math.inf
    cores, used = all_cores / evidence.ranks, evidence.cores_used or 0.0
    others = (evidence.host.others_cpu_percent or 0.0) / 100
    at_once = min(workers, cores) if workers else 1.0
    undecided = "workers" if workers == 0 else "not_measured"
    low, high = _bounds(evidence, wait_share, at_once)
    if workers:
        functions = list(evidence.worker_functions)
        seconds = sum(f.self_seconds for f in functions)
    if seconds:
        low = high = at_once * (1 - sum(map(waiting_seconds, functions)) / seconds)
    elif others >= CROWD and others + used >= BUSY * all_cores:
        return undecided
    if high is not None and high < COMPUTES * at_once:
        return "idle"
    full = used / evidence.ranks >= BUSY * cores
    if low is None or low < COMPUTES * at_once:
        return "cores" if low is not None and workers and full else undecided
    return "workers" if workers and not full else "computing"


def _samples(function: FunctionSamples) -> bool:
    return function.file.endswith(DATALOADER) and function.function.endswith(SAMPLING)


def _prepares(evidence: Evidence) -> FunctionSamples | None:
    """The user's function that takes most of the loader's time, in the process that loads.

    Who asks the loader for a batch is no part of it: he is at work in the rest of the step, too.
    """
    if evidence.workers:
        return innermost(evidence.worker_functions)
    found = innermost(_in_loader(evidence))
    others = (f for f in evidence.host_functions if f.phase != Phase.DATA.value)
    asks = found and (found.file, found.function) in {(f.file, f.function) for f in others}
    return None if asks else found


def _in_loader(evidence: Evidence) -> list[FunctionSamples]:
    return [f for f in evidence.host_functions if f.phase == Phase.DATA.value]


def _bounds(
    evidence: Evidence, wait_share: float, at_once: float
) -> tuple[float | None, float | None]:
    """Fewest and most cores that work in the wait.

    The rest of the step keeps between none and all threads of torch busy, and worker processes,
    `at_once` at most. The fewest need the use in the measured steps: that of the whole run has the
    start in it. The most need all workers: the sampler sees new processes after some seconds only.
    """
    host, workers = evidence.host, evidence.workers or 0
    if evidence.cores_used is None or not wait_share:
        return None, None
    used, rest = evidence.cores_used / evidence.ranks, 1 - wait_share
    threads = 1 if evidence.on_gpu else max(evidence.threads or 1, 1)
    busy = threads + (at_once if workers else 0.0)
    seen = (host.processes or 0) / evidence.ranks > workers
    told = host.steady_cpu_percent is not None
    return (used - rest * busy) / wait_share if told else None, used / wait_share if seen else None
