"""Device memory: allocations that cost time, memory that runs out, room to use."""

from __future__ import annotations

from gpurun.diagnoses.api import Seen, diagnosis, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.formatting.number_text import count
from gpurun.records.finding import WARNING, FindingType
from gpurun.replay.what_ifs import Change

ADVICE_CHURN = (
    "remove torch.cuda.empty_cache() from the loop: the allocator keeps memory to use it again",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, for batches of changing shape",
    "allocate buffers once, before the loop",
)
ADVICE_FULL = (
    "gradient checkpointing, or a smaller batch with accumulation, leaves head-room",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation",
)
ADVICE_ROOM = ("a larger batch would fit; gpurun --optimize says whether it is faster",)
ROOM, ROOM_ACTIVITY = 0.50, 0.80
"""Less memory in use and more SM activity than these: a larger batch would fit."""
RATED = ("allocator_retries", "device_allocations_per_step", "fragmentation", "memory_used")
"""Figures with thresholds."""


@diagnosis(FindingType.MEMORY_ALLOCATION, Source.DEVICE, Source.TIMELINE, thresholds=RATED)
def memory_allocation(evidence: Evidence) -> Seen | None:
    """Allocations cost time, or memory nearly runs out.

    Triggered by allocator retries, by cudaMalloc in the steady state, by fragmentation above 30 %,
    or by more than 90 % of the memory in use. Replayed without calls of the allocator. Less than
    half in use on a busy device is a note.
    """
    retries, allocations, fragments = _allocator(evidence)
    used = evidence.memory_used_share
    values = dict(zip(RATED, (retries, allocations, fragments, used), strict=True))
    rated = {n: evidence.thresholds.severity(n, value) for n, value in values.items()}
    replayed = evidence.replayed_gain(Change.ALLOCATIONS)
    if replayed is not None:
        rated["device_allocations_per_step"] = gain_severity(replayed)
    worst = max(rated, key=lambda name: rated[name])
    severity, text = rated[worst], _sentence(worst, values[worst] or 0.0)
    advice: tuple[str, ...] = ADVICE_CHURN
    knob = "allocator"
    if worst == "memory_used":
        advice, knob = ADVICE_FULL, "checkpointing"
    roomy = (used or 1.0) < ROOM and (evidence.sm_activity or 0.0) > ROOM_ACTIVITY
    if severity < WARNING and roomy:
        worst, severity, advice, knob = "", WARNING / 2, ADVICE_ROOM, "batch_size"
        text = f"{percent(used)} of the device's memory is in use: there is room"
    calls = {"device_allocations_per_step": allocations, "fragmentation": fragments}
    return Seen(
        text,
        measured(Source.STEPS, allocator_retries=retries)
        + measured(Source.TIMELINE, **calls)
        + measured(Source.DEVICE, memory_used_share=used),
        advice,
        severity=severity,
        knob=knob,
        replayed=replayed if worst == "device_allocations_per_step" else None,
    )


def _sentence(worst: str, value: float) -> str:
    return {
        "allocator_retries": f"the allocator gave memory back and tried again "
        f"{count(round(value), 'time')}",
        "device_allocations_per_step": f"cudaMalloc and cudaFree are called {value:.1f} times a "
        "step, and wait for the device",
        "fragmentation": f"{percent(value)} of the reserved memory is fragments",
        "memory_used": f"{percent(value)} of the device's memory is in use",
    }[worst]


def _allocator(evidence: Evidence) -> tuple[float | None, float | None, float | None]:
    """Retries in the run, calls of the driver's allocator a step, and the fragmented share."""
    states, figures, result = evidence.memory, evidence.figures, evidence.result
    retries = [float(m.retries) for m in states]
    if result is not None and result.allocator_retries is not None:
        retries.append(float(result.allocator_retries))
    counted = [m.device_allocations for m in states]
    a_step = None if figures.launches is None else figures.launches.device_allocations_per_step
    if a_step is None and counted and figures.steps:
        a_step = max(counted) / figures.steps
    shares = (m.inactive_split_bytes / m.reserved_bytes for m in states if m.reserved_bytes)
    return max(retries, default=None), a_step, max(shares, default=None)
