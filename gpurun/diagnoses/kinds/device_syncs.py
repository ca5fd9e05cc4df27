"""The host waits for the device, and the device then for the host."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, gain_without, location_of, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.events import ValueRead
from gpurun.records.finding import WARNING, EvidenceFigure, Finding, FindingType
from gpurun.replay.what_ifs import Change

ADVICE_READS = (
    "read values of tensors (.item(), .cpu(), float(), print) once in many steps: keep the sum on "
    "the device until then",
    "replace conditions and indices that read a tensor by torch.where or masks",
)
ADVICE_SYNCHRONIZE = (
    "remove torch.cuda.synchronize() from the loop; to time it, use CUDA events",
    *ADVICE_READS[:1],
)
BUSY = 0.90
"""A device that is active for so much of the run loses little by waits."""


class DeviceSyncs(Diagnosis):
    """The host waits for the device in each step, so that it cannot launch ahead.

    Waits are explicit (`torch.cuda.synchronize`) or implied by `.item()`, `.cpu()`, `nonzero`,
    printing. Replayed without them: the host then runs ahead, and the device need not wait for the
    launches that followed. Without a replay, the bound is the step less the device's idle time
    after such waits. Lines come from the profile, or from a trial of `--optimize`. Waits that gain
    nothing are no finding.
    """

    type: ClassVar[FindingType] = FindingType.CPU_GPU_SYNC
    sources: ClassVar[tuple[Source, ...]] = (Source.TIMELINE,)

    def find(self, evidence: Evidence) -> Finding | None:
        """The waits, most costly line first."""
        if not evidence.on_gpu:
            return None
        idle = None if evidence.idle is None else evidence.idle.sync
        reads = _device_reads(evidence)
        explicit = evidence.traits.get("synchronize")
        severity = _unmeasured(evidence) if idle is None and (reads or explicit) else None
        replayed = evidence.replayed_gain(Change.WAITS)
        lines = _lines(evidence, reads)
        place = f", most at {lines[0]}" if lines else ""
        text = f"the host waits for the device in each step{place}"
        if idle is not None:
            text = (
                f"the device idles {percent(idle)} of the step after the host waited for it{place}"
            )
        elif replayed is None:
            text += "; how long it idles for that was not measured"
        return self.finding(
            evidence,
            severity,
            text,
            _figures(evidence, idle, reads),
            ADVICE_SYNCHRONIZE if explicit else ADVICE_READS,
            location=location_of(lines[0]) if lines else None,
            knob="needless_sync" if explicit else None,
            replayed=replayed,
            bound=gain_without(idle),
        )


def _unmeasured(evidence: Evidence) -> float:
    """Waits were seen and no idle time was measured: a warning at most, if the device has time."""
    active = evidence.least_active_share
    return WARNING if active is not None and active < BUSY else WARNING / 2


def _device_reads(evidence: Evidence) -> list[ValueRead]:
    """Lines that read the device's tensors in at least every second step, most calls first."""
    steps = evidence.read_steps or 0
    found = [r for r in evidence.reads or () if r.device == "cuda" and 2 * r.steps >= steps > 0]
    return sorted(found, key=lambda read: -read.calls)


def _lines(evidence: Evidence, reads: list[ValueRead]) -> list[str]:
    syncs = evidence.figures.syncs
    measured = [] if syncs is None else [line for line, _ in syncs.lines]
    explicit = evidence.traits.get("synchronize")
    return measured or [r.where for r in reads] or ([explicit] if explicit else [])


def _figures(
    evidence: Evidence, idle: float | None, reads: list[ValueRead]
) -> list[EvidenceFigure | None]:
    syncs = evidence.figures.syncs
    return [
        figure("sync_idle_share", idle, Source.TIMELINE),
        figure("sync_wait_share", None if syncs is None else syncs.share, Source.TIMELINE),
        figure("syncs_per_step", None if syncs is None else syncs.per_step, Source.TIMELINE),
        figure("synchronize", evidence.traits.get("synchronize"), Source.STEPS),
        *(EvidenceFigure("reads", f"{r.where} {r.call}", "runtime") for r in reads[:3]),
    ]
