"""Slow ways between GPUs, or between GPUs and their host."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.records.finding import CRITICAL, WARNING, EvidenceFigure, Finding, FindingType

ADVICE = (
    "choose GPUs that share NVLink or a PCIe switch: CUDA_VISIBLE_DEVICES, as gpurun doctor shows",
    "give each rank cores beside its GPU: --numa-binding node",
    "name the fast interface between nodes: NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
)


class Interconnect(Diagnosis):
    """The way that gradients or batches take is slow.

    Triggered by GPUs without peer-to-peer access or NVLink, on two sockets, with fewer PCIe lanes
    than they could have, by a slow network between nodes, or by cores far from the GPU. Looked at
    where several ranks run.
    """

    type: ClassVar[FindingType] = FindingType.TOPOLOGY
    sources: ClassVar[tuple[Source, ...]] = (Source.TOPOLOGY,)

    def find(self, evidence: Evidence) -> Finding | None:
        """All that the topology names; the exchange itself says how much it costs."""
        topology = None if evidence.result is None else evidence.result.topology
        if topology is None or not topology.findings or not evidence.on_gpu:
            return None
        barred = any(pair.peer_to_peer is False for pair in topology.pairs)
        return self.finding(
            evidence,
            CRITICAL if barred else WARNING,
            topology.findings[0],
            [EvidenceFigure("topology", text, Source.TOPOLOGY.value) for text in topology.findings],
            ADVICE,
        )
