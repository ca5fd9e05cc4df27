"""Environment variables that slow the training down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis
from gpurun.diagnoses.evidence import Evidence
from gpurun.records.finding import EvidenceFigure, Finding, FindingType
from gpurun.replay.what_ifs import Change


@dataclass(frozen=True)
class Effect:
    """The effect of a variable on a training, its severity, and the trainings that it concerns."""

    severity: float
    text: str
    where: str = "anywhere"


EFFECTS = {
    "CUDA_LAUNCH_BLOCKING": Effect(0.9, "the host waits for each kernel", "gpu"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Effect(0.9, "each tensor is allocated by the driver", "gpu"),
    "NVIDIA_TF32_OVERRIDE": Effect(0.5, "float32 products cannot use tensor cores", "gpu"),
    "TORCHDYNAMO_DISABLE": Effect(0.5, "torch.compile does nothing", "compiled"),
    "TORCH_COMPILE_DISABLE": Effect(0.5, "torch.compile does nothing", "compiled"),
    "NCCL_P2P_DISABLE": Effect(0.8, "GPUs exchange gradients through the host's memory", "ranks"),
    "NCCL_SHM_DISABLE": Effect(0.6, "GPUs of one host exchange over the network", "ranks"),
    "NCCL_IB_DISABLE": Effect(0.6, "nodes exchange over TCP in place of InfiniBand", "ranks"),
    "NCCL_BLOCKING_WAIT": Effect(0.6, "the host waits for each collective", "ranks"),
    "TORCH_NCCL_BLOCKING_WAIT": Effect(0.6, "the host waits for each collective", "ranks"),
    "TORCH_DISTRIBUTED_DEBUG": Effect(0.6, "ranks check each collective", "ranks"),
    "OMP_NUM_THREADS": Effect(0.6, "operators on the CPU use one core", "cpu"),
    "MKL_NUM_THREADS": Effect(0.5, "operators on the CPU use one core", "cpu"),
    "PYTHONMALLOC": Effect(0.5, "python checks each allocation"),
    "PYTHONDEVMODE": Effect(0.5, "python runs its own checks"),
}
"""By name. `gpurun/records/switches.py` has the values that hurt."""

REPLAYED = {"CUDA_LAUNCH_BLOCKING": Change.LAUNCH_WAITS}
"""Changes of the steps if the variable were not set; no recording shows the others' effects."""


class EnvironmentSwitches(Diagnosis):
    """A variable, mostly left over from debugging, slows the training down.

    Triggered by the names of variables that are set so, where they matter: `CUDA_LAUNCH_BLOCKING`,
    `NCCL_P2P_DISABLE` and others. Replayed only for `CUDA_LAUNCH_BLOCKING`, with launches that do
    not wait. gpurun never records the value of a variable.
    """

    type: ClassVar[FindingType] = FindingType.ENVIRONMENT

    def find(self, evidence: Evidence) -> Finding | None:
        """The variables that matter here, the worst first; without a replay there is no bound."""
        found = [name for name in evidence.switches if name in EFFECTS and _matters(name, evidence)]
        if not found:
            return None
        found.sort(key=lambda name: -EFFECTS[name].severity)
        worst = EFFECTS[found[0]]
        return self.finding(
            evidence,
            worst.severity,
            f"{found[0]} is set: {worst.text}",
            [EvidenceFigure("variable", name, "environment") for name in found],
            tuple(f"unset {name}: {EFFECTS[name].text}" for name in found),
            replayed=evidence.replayed_gain(REPLAYED[found[0]]) if found[0] in REPLAYED else None,
        )


def _matters(name: str, evidence: Evidence) -> bool:
    where = EFFECTS[name].where
    result = evidence.result
    several = result is not None and result.ranks > 1
    cores = evidence.cores_available or 1
    return {
        "anywhere": True,
        "gpu": evidence.on_gpu,
        "ranks": several and evidence.on_gpu,
        "compiled": "compile" in evidence.traits,
        "cpu": not evidence.on_gpu and not several and cores > 1 and not _chosen(evidence),
    }[where]


def _chosen(evidence: Evidence) -> bool:
    """True if a setting of gpurun set the number of threads."""
    knobs = () if evidence.result is None else evidence.result.knobs
    return any(knob.knob == "cpu_threads" and knob.outcome == "applied" for knob in knobs)
