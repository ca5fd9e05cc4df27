"""Device memory: allocations that cost time, memory that runs out, and room to use."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.formatting.number_text import count
from gpurun.records.finding import WARNING, Finding, FindingType
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
ROOM = 0.50
ROOM_ACTIVITY = 0.80
"""Less memory in use and more SM activity than these: a larger batch would fit."""


class MemoryAllocation(Diagnosis):
    """Allocations cost time, or memory nearly runs out.

    Triggered by allocator retries, by cudaMalloc in the steady state, by fragmentation above 30 %,
    or by more than 90 % of the memory in use. Replayed without calls of the allocator. Less than
    half in use on a busy device is a note.
    """

    type: ClassVar[FindingType] = FindingType.MEMORY_ALLOCATION
    sources: ClassVar[tuple[Source, ...]] = (Source.DEVICE, Source.TIMELINE)
    thresholds: ClassVar[tuple[str, ...]] = (
        "allocator_retries",
        "device_allocations_per_step",
        "fragmentation",
        "memory_used",
    )

    def find(self, evidence: Evidence) -> Finding | None:
        """The worst of them; without a replay there is no honest bound."""
        figures = {
            "allocator_retries": _retries(evidence),
            "device_allocations_per_step": _allocations(evidence),
            "fragmentation": _fragmentation(evidence),
            "memory_used": evidence.memory_used_share,
        }
        rated = {n: evidence.thresholds.severity(n, value) for n, value in figures.items()}
        replayed = evidence.replayed_gain(Change.ALLOCATIONS)
        if replayed is not None:
            rated["device_allocations_per_step"] = gain_severity(replayed)
        worst = max(rated, key=lambda name: rated[name])
        severity, text = rated[worst], _sentence(worst, figures[worst])
        advice: tuple[str, ...] = ADVICE_CHURN
        knob = "allocator"
        if worst != "device_allocations_per_step":
            replayed = None
        if worst == "memory_used":
            advice, knob = ADVICE_FULL, "checkpointing"
        used = evidence.memory_used_share
        roomy = (used or 1.0) < ROOM and (evidence.sm_activity or 0.0) > ROOM_ACTIVITY
        if severity < WARNING and roomy:
            severity, advice, knob = WARNING / 2, ADVICE_ROOM, "batch_size"
            replayed = None
            text = f"{percent(used)} of the device's memory is in use: there is room"
        return self.finding(
            evidence,
            severity,
            text,
            [
                figure("allocator_retries", figures["allocator_retries"], Source.STEPS),
                figure(
                    "device_allocations_per_step",
                    figures["device_allocations_per_step"],
                    Source.TIMELINE,
                ),
                figure("fragmentation", figures["fragmentation"], Source.TIMELINE),
                figure("memory_used_share", used, Source.DEVICE),
            ],
            advice,
            knob=knob,
            replayed=replayed,
        )


def _sentence(worst: str, value: float | None) -> str:
    value = value or 0.0
    return {
        "allocator_retries": f"the allocator gave memory back and tried again "
        f"{count(round(value), 'time')}",
        "device_allocations_per_step": f"cudaMalloc and cudaFree are called {value:.1f} times a "
        "step, and wait for the device",
        "fragmentation": f"{percent(value)} of the reserved memory is fragments",
        "memory_used": f"{percent(value)} of the device's memory is in use",
    }[worst]


def _retries(evidence: Evidence) -> float | None:
    told = [m.retries for m in evidence.memory]
    if evidence.result is not None and evidence.result.allocator_retries is not None:
        told.append(evidence.result.allocator_retries)
    return max(map(float, told), default=None)


def _allocations(evidence: Evidence) -> float | None:
    launches = evidence.figures.launches
    if launches is not None and launches.device_allocations_per_step is not None:
        return launches.device_allocations_per_step
    steps = evidence.figures.steps
    counted = [m.device_allocations for m in evidence.memory]
    return max(counted) / steps if counted and steps else None


def _fragmentation(evidence: Evidence) -> float | None:
    shares = [
        m.inactive_split_bytes / m.reserved_bytes for m in evidence.memory if m.reserved_bytes
    ]
    return max(shares, default=None)
