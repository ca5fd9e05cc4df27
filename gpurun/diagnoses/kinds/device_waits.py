"""The device has nothing to do: the host had waited for it, or launches too slowly."""

from __future__ import annotations

from gpurun.diagnoses.api import Seen, diagnosis, gain_without, location_of, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import WARNING, FindingType
from gpurun.replay.what_ifs import Change

ADVICE_READS = (
    "read values of tensors (.item(), .cpu(), float(), print) once in many steps: keep the sum on "
    "the device until then",
    "replace conditions and indices that read a tensor by torch.where or masks",
)
ADVICE_SYNCHRONIZE = (
    "remove torch.cuda.synchronize() from the loop; to time it, use CUDA events", ADVICE_READS[0],
)  # fmt: skip
ADVICE_LAUNCHES = (
    "torch.compile(mode='reduce-overhead'): fused kernels, launched together as a CUDA graph",
    "use the fused form of the optimizer: torch.optim.AdamW(..., fused=True)",
    "replace Python loops over small tensors by one operation on a stacked tensor "
    "(torch._foreach_*, torch.stack, vmap)",
    "a larger batch makes each kernel longer; it changes the training",
)
BUSY = 0.90
"""A device that is active for so much of the run loses little by waits."""


@diagnosis(FindingType.CPU_GPU_SYNC, Source.TIMELINE, change=Change.WAITS)
def device_syncs(evidence: Evidence) -> Seen | None:
    """The host waits for the device in each step, so that it cannot launch ahead.

    Waits are explicit (`torch.cuda.synchronize`) or implied by `.item()`, `.cpu()`, `nonzero`,
    printing. Replayed without them: the host then runs ahead, and the device need not wait for the
    launches that followed. Without a replay, the bound is the step less the device's idle time
    after such waits. Lines come from the profile, or from a trial of `--optimize`. Waits that gain
    nothing are no finding.
    """
    if not evidence.on_gpu:
        return None
    idle = None if evidence.idle is None else evidence.idle.sync
    syncs, steps = evidence.figures.syncs, evidence.read_steps or 0
    reads = [r for r in evidence.reads or () if r.device == "cuda" and 2 * r.steps >= steps > 0]
    reads.sort(key=lambda read: -read.calls)
    explicit = evidence.traits.get("synchronize")
    line = reads[0].where if reads else explicit
    place = f", most at {line}" if line else ""
    text = f"the host waits for the device in each step{place}"
    if idle is not None:
        text = f"the device idles {{share}} of the step after the host waited for it{place}"
    elif evidence.replay is None:
        text += "; how long it idles for that was not measured"
    active = evidence.least_active_share
    unmeasured = WARNING if active is not None and active < BUSY else WARNING / 2
    share, per_step = (None, None) if syncs is None else (syncs.share, syncs.per_step)
    idles = {"sync_idle_share": idle, "sync_wait_share": share, "syncs_per_step": per_step}
    return Seen(
        text,
        measured(Source.TIMELINE, **idles)
        + measured(Source.STEPS, synchronize=explicit)
        + measured("runtime", reads=[f"{r.where} {r.call}" for r in reads[:3]]),
        ADVICE_SYNCHRONIZE if explicit else ADVICE_READS,
        severity=unmeasured if idle is None and (reads or explicit) else None,
        location=location_of(line),
        knob="needless_sync" if explicit else None,
        bound=gain_without(idle),
        share=idle,
    )


@diagnosis(FindingType.LAUNCH_BOUND, Source.TIMELINE, change=Change.LAUNCHES)
def launch_bound(evidence: Evidence) -> Seen | None:
    """Kernels are so short that the device waits for the next launch.

    Replayed with launches that take no time, as in a CUDA graph, and with chains of kernels below
    10 µs as one: one operation can do the work of many. A CUDA graph holds no wait. So the gain is
    what this adds to steps without the host's waits: the device's idle time after a wait belongs to
    `cpu_gpu_sync` as far as it goes with the wait. Long pauses outside of model and optimizer stay.

    Without a replay, the bound is the step less the device's waits for launches.
    """
    figures, launches = evidence.figures, evidence.figures.launches
    if figures.idle is None or launches is None or figures.idle.launch is None:
        return None
    idle, a_step, mean = figures.idle.launch, launches.kernels_per_step, launches.mean_kernel_us
    kernels = "kernels" if a_step is None else f"{a_step:,.0f} kernels a step"
    length = "" if mean is None else f" of {mean:.1f} µs each"
    told = f"the device waits for launches {percent(idle)} of the step"
    told = told if evidence.replay is None else "launches hold the device up"
    calls = max((k.calls_per_step or 0.0 for k in figures.top_kernels or ()), default=0.0)
    return Seen(
        f"{told}: {kernels}{length}",
        measured(
            Source.TIMELINE,
            launch_idle_share=idle,
            launch_gap_ms_per_step=figures.step_ms and idle * figures.step_ms,
            mean_kernel_us=mean,
            kernels_per_step=a_step,
            most_calls_of_one_kernel_per_step=calls or None,
            queue_depth=launches.queue_depth,
        ),
        ADVICE_LAUNCHES,
        knob="compile",
        bound=gain_without(idle),
    )
