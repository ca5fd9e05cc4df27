"""Ranks wait: for the exchange of gradients, for a slower rank, for a slow way between GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpurun.diagnoses.api import Seen, diagnosis, gain_without, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.host_functions import innermost, line_of
from gpurun.records.finding import CRITICAL, WARNING, FindingType, Location
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.replay.what_ifs import Change

ADVICE_EXCHANGE = (
    "DistributedDataParallel(gradient_as_bucket_view=True, static_graph=True): fewer copies and an "
    "earlier start; the same training",
    "a larger bucket_cap_mb (50, 100): fewer messages; the same training",
    "gradient accumulation with no_sync(), or a larger batch: fewer exchanges a sample; it changes "
    "the training",
    "gpurun --scale measures the exchange by leaving it out, and tries these in turn",
)
ADVICE_BALANCE = (
    "batches of like cost on all ranks: bucket by length, or deal out whole batches in turn",
    "look for work that only one rank does in a step: logging, saving, evaluation",
)
ADVICE_WAY = (
    "choose GPUs that share NVLink or a PCIe switch: CUDA_VISIBLE_DEVICES, as gpurun doctor shows",
    "give each rank cores beside its GPU: --numa-binding node",
    "name the fast interface between nodes: NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
)


@diagnosis(FindingType.MULTI_GPU_COMM, Source.TIMELINE, Source.RANKS, change=Change.COLLECTIVES)
def gradient_exchange(evidence: Evidence) -> Seen | None:
    """Communication between ranks that no kernel hides.

    Replayed without collectives; without a replay, the bound is the step less the collectives that
    no kernel hides. The rank that works longest is looked at: the others also wait for it, which is
    imbalance and not communication.
    """
    ranks = evidence.rank_figures or (evidence.figures,)
    known = [rank.communication for rank in ranks if rank.communication is not None]
    if not known:
        return None
    slowest = min(known, key=lambda each: each.exposed_share)
    share = slowest.exposed_share
    return Seen(
        "collectives that no kernel hides take {share} of the step",
        measured(
            Source.TIMELINE,
            exposed_communication_share=share,
            communication_share=slowest.share,
            hidden_share_of_communication=1 - share / slowest.share if slowest.share else None,
            collectives_per_step=slowest.per_step,
            bytes_per_step=slowest.bytes_per_step,
        ),
        ADVICE_EXCHANGE,
        bound=gain_without(share),
        share=share,
    )


@diagnosis(FindingType.LOAD_IMBALANCE, Source.RANKS, Source.TIMELINE, thresholds=("imbalance",))
def load_imbalance(evidence: Evidence) -> Seen | None:
    """One rank works longer in each step, and the others wait for it.

    Triggered by the slowest rank's work above 1.1 times the fastest's; without a timeline, in both
    halves of the measured steps, since a busy machine slows a rank for a while. A rank works until
    it arrives at a collective: the duration of a collective holds the wait for others and says
    nothing of the rank. Host profiles of both ranks tell the line in which the slowest one spends
    most of the time that the fastest does not. `gpurun --scale` has a finding of the same name,
    which compares the slowest rank with the mean of the ranks.
    """
    work, source = _work_ms(evidence)
    if min(work, default=0.0) <= 0:
        return None
    slowest, fastest = work.index(max(work)), work.index(min(work))
    ratio = work[slowest] / work[fastest]
    if source is Source.STEPS:
        halves = zip(*evidence.rank_work_ms, strict=True)
        ratio = min(half[slowest] / min(half) for half in halves)
    functions = evidence.rank_functions
    known = len(functions) == len(work)
    return Seen(
        f"rank {slowest} works {percent(ratio - 1)} longer a step than the fastest rank, and "
        "the others wait for it",
        measured(
            source,
            slowest_rank=slowest,
            imbalance=ratio,
            slowest_work_ms=work[slowest],
            fastest_work_ms=work[fastest],
        ),
        ADVICE_BALANCE,
        severity=evidence.thresholds.severity("imbalance", ratio - 1),
        location=_location(functions[slowest], functions[fastest]) if known else None,
        bound=work[slowest] * len(work) / sum(work) if source is Source.TIMELINE else None,
    )


def _location(slow: Sequence[FunctionSamples], fast: Sequence[FunctionSamples]) -> Location | None:
    """The line of the user's in which most of the slow rank's additional time passes."""
    by_place = {(f.file, f.function, f.phase): f for f in fast}
    more = []
    for function in slow:
        other = by_place.get((function.file, function.function, function.phase))
        own, total = (other.self_seconds, other.total_seconds) if other else (0.0, 0.0)
        own, total = function.self_seconds - own, function.total_seconds - total
        if total > 0:
            more.append(replace(function, self_seconds=max(own, 0.0), total_seconds=total))
    return line_of(innermost(more))


def _work_ms(evidence: Evidence) -> tuple[list[float], Source]:
    """Milliseconds a step that each rank does not wait in a collective, by the timelines; else
    those of the parts of a step in which no gradients are exchanged. None of one rank alone.
    """
    figures, halves = evidence.rank_figures, evidence.rank_work_ms
    work = [
        of.step_ms * (1 - of.communication.exposed_share)
        for of in figures
        if of.step_ms is not None and of.communication is not None
    ]
    if len(work) == len(figures) > 1:
        return work, Source.TIMELINE
    told = len(halves) > 1 and all(len(both) == 2 and min(both) > 0 for both in halves)
    return [sum(both) / 2 for both in halves] if told else [], Source.STEPS


@diagnosis(FindingType.TOPOLOGY, Source.TOPOLOGY)
def interconnect(evidence: Evidence) -> Seen | None:
    """The way that gradients or batches take is slow.

    Triggered by GPUs without peer-to-peer access or NVLink, on two sockets, with fewer PCIe lanes
    than they could have, by a slow network between nodes, or by cores far from the GPU. Looked at
    where several ranks run.
    """
    topology = None if evidence.result is None else evidence.result.topology
    if topology is None or not topology.findings or not evidence.on_gpu:
        return None
    barred = any(pair.peer_to_peer is False for pair in topology.pairs)
    return Seen(
        topology.findings[0],
        measured(Source.TOPOLOGY, topology=topology.findings),
        ADVICE_WAY,
        severity=CRITICAL if barred else WARNING,
    )
