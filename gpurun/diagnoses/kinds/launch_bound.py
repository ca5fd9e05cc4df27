"""The host cannot launch kernels as fast as the device runs them."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import Finding, FindingType
from gpurun.replay.what_ifs import Change

ADVICE = (
    "torch.compile(mode='reduce-overhead'): fused kernels, launched together as a CUDA graph",
    "use the fused form of the optimizer: torch.optim.AdamW(..., fused=True)",
    "replace Python loops over small tensors by one operation on a stacked tensor "
    "(torch._foreach_*, torch.stack, vmap)",
    "a larger batch makes each kernel longer; it changes the training",
)


class LaunchBound(Diagnosis):
    """Kernels are so short that the device waits for the next launch.

    Replayed with launches that take no time, as in a CUDA graph, and with chains of kernels below
    10 µs as one: one operation can do the work of many. A CUDA graph holds no wait. So the gain is
    what this adds to steps without the host's waits: the device's idle time after a wait belongs to
    `cpu_gpu_sync` as far as it goes with the wait. Long pauses outside of model and optimizer stay.

    Without a replay, the bound is the step less the device's waits for launches.
    """

    type: ClassVar[FindingType] = FindingType.LAUNCH_BOUND
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The launches of the window, and what the device waits for them."""
        figures, launches = evidence.figures, evidence.figures.launches
        if figures.idle is None or launches is None or figures.idle.launch is None:
            return None
        idle = figures.idle.launch
        gap_ms = None if figures.step_ms is None else idle * figures.step_ms
        replayed = evidence.replayed_gain(Change.LAUNCHES)
        told = f"the device waits for launches {percent(idle)} of the step"
        if replayed is not None:
            told = "launches hold the device up"
        calls = max((k.calls_per_step or 0.0 for k in figures.top_kernels or ()), default=0.0)
        return self.finding(
            evidence,
            None,
            f"{told}: {launches.kernels_per_step or 0:,.0f} kernels a step of "
            f"{launches.mean_kernel_us or 0:.1f} µs each",
            [
                figure("launch_idle_share", idle, Source.TIMELINE),
                figure("launch_gap_ms_per_step", gap_ms, Source.TIMELINE),
                figure("mean_kernel_us", launches.mean_kernel_us, Source.TIMELINE),
                figure("kernels_per_step", launches.kernels_per_step, Source.TIMELINE),
                figure("most_calls_of_one_kernel_per_step", calls or None, Source.TIMELINE),
                figure("queue_depth", launches.queue_depth, Source.TIMELINE),
            ],
            ADVICE,
            knob="compile",
            replayed=replayed,
            bound=gain_without(idle),
        )
