"""The machine is set or cooled badly: environment variables, and clocks that are held down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.diagnoses.api import NOTICEABLE, Seen, diagnosis, gain_without, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.number_text import count
from gpurun.records.finding import WARNING, FindingType
from gpurun.records.samples import POWER_CAP, DeviceSample
from gpurun.replay.what_ifs import Change


@dataclass(frozen=True)
class Effect:
    """The effect of a variable on a training, its severity, and the trainings that it concerns."""

    severity: float
    text: str
    where: str = "anywhere"


BLOCKING = "CUDA_LAUNCH_BLOCKING"
"""The only variable whose effect a recording shows."""
EFFECTS = {
    BLOCKING: Effect(0.9, "the host waits for each kernel", "gpu"),
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
ADVICE_HEAT = (
    "check the cooling: temperature, fans and neighbours of this GPU (nvidia-smi -q -d "
    "TEMPERATURE,PERFORMANCE)",
    "move the job to another GPU and compare",
)
ADVICE_POWER = (
    "see whether the power limit was lowered: nvidia-smi -q -d POWER",
    "bfloat16 and fused kernels do the same work with less energy",
)
CRITICAL_ERRORS = 0.9
"""Results may be wrong."""
ADVICE_ERRORS = (
    "move the job to another GPU, and have this one reset or replaced: nvidia-smi -q -d ECC",
    "compare the results with those of another GPU",
)
XIDS = {
    13: "a kernel did what it may not, mostly an index out of bounds",
    31: "a kernel used an address that is not its own",
    48: "double-bit ECC error",
    63: "a row of the memory is to be remapped at the next reset",
    64: "a row of the memory could not be remapped",
    74: "an NVLink failed",
    79: "the GPU has fallen off the bus",
    94: "an ECC error that ends only the process that used the memory",
    95: "an ECC error whose damage is not known",
    119: "the GPU's own processor (GSP) does not answer",
}
"""From NVIDIA's list; others are told by their number."""
OF_SCRIPTS = (13, 31)
"""XIDs that a fault of the script can cause on a sound GPU."""
OF_ENDS = (43, 45)
"""XIDs that follow any abrupt end of a process: they name no cause."""
ADVICE_XIDS = (
    "run once with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer, to find the kernel",
    "if it stays without a fault of the script, look at the GPU: gpurun doctor --gpu",
)
ADVICE_GOVERNOR = ("set another one: cpupower frequency-set --governor performance",)
ADVICE_SHARED = (
    "see who it is: nvidia-smi; ask for a device of your own, or wait",
    "figures of this run hold for a shared device only",
)


@diagnosis(FindingType.ENVIRONMENT)
def environment_switches(evidence: Evidence) -> Seen | None:
    """A variable, mostly left over from debugging, slows the training down.

    Triggered by the names of variables that are set so, where they matter: `CUDA_LAUNCH_BLOCKING`,
    `NCCL_P2P_DISABLE` and others. Replayed only for `CUDA_LAUNCH_BLOCKING`, with launches that do
    not wait. gpurun never records the value of a variable.
    """
    there = _trainings(evidence)
    names = [n for n in evidence.switches if n in EFFECTS and EFFECTS[n].where in there]
    if not names:
        return None
    names.sort(key=lambda name: -EFFECTS[name].severity)
    worst = names[0]
    return Seen(
        f"{worst} is set: {EFFECTS[worst].text}",
        measured("environment", variable=names),
        tuple(f"unset {name}: {EFFECTS[name].text}" for name in names),
        severity=EFFECTS[worst].severity,
        replayed=evidence.replayed_gain(Change.LAUNCH_WAITS) if worst == BLOCKING else None,
    )


def _trainings(evidence: Evidence) -> set[str]:
    """The kinds of training, as in `Effect.where`, that this is. A thread count that a setting of
    gpurun chose does not concern it.
    """
    several, cores = evidence.ranks > 1, (evidence.host.cores_available or 1) > 1
    chosen = evidence.applied("cpu_threads")
    kinds = {
        "anywhere": True,
        "gpu": evidence.on_gpu,
        "ranks": several and evidence.on_gpu,
        "compiled": "compile" in evidence.traits,
        "cpu": not evidence.on_gpu and not several and cores and not chosen,
    }
    return {kind for kind, true in kinds.items() if true}


@diagnosis(FindingType.THROTTLING, Source.DEVICE, thresholds=("throttled_share", "clock_loss"))
def throttling(evidence: Evidence) -> Seen | None:
    """The clock of the device is held down.

    Triggered by thermal, hardware or power-brake slow-downs in more than 10 % of the samples, or by
    a clock that these hold 5 % below the highest seen. The power cap alone is usual under full load
    and a note.
    """
    found = [_held_down(evidence, samples) for samples in evidence.of_each_device().values()]
    return max(found, key=lambda seen: seen.severity or 0.0, default=None)


def _held_down(evidence: Evidence, samples: Sequence[DeviceSample]) -> Seen:
    reasons = sorted({reason for sample in samples for reason in sample.throttle_reasons})
    hot = [s for s in samples if any(r != POWER_CAP for r in s.throttle_reasons)]
    held = [s for s in samples if s.throttle_reasons]
    share, loss = len(hot) / len(samples), _clock_loss(samples, held)
    rate = evidence.thresholds.severity
    severity = max(rate("throttled_share", share), rate("clock_loss", loss) if held else 0.0)
    temperatures = [s.temperature_celsius for s in samples if s.temperature_celsius is not None]
    return Seen(
        f"the GPU is slowed down by {' and '.join(reasons)} in "
        f"{percent(len(held) / len(samples))} of the samples",
        measured(
            Source.DEVICE,
            throttled_share=share,
            clock_loss=loss,
            temperature_celsius=max(temperatures, default=None),
            reason=reasons,
        ),
        ADVICE_HEAT if hot else ADVICE_POWER,
        severity=severity if hot else min(severity, WARNING / 2),
        bound=gain_without(loss),
    )


@diagnosis(FindingType.SHARED_DEVICE, Source.DEVICE)
def shared_device(evidence: Evidence) -> Seen | None:
    """Other processes use the same device.

    Triggered by processes that are not of this run, as NVML counts them. How much of the device
    they take is not known: it is a note.
    """
    others = max((d.foreign_processes or 0 for d in evidence.devices), default=0)
    return Seen(
        f"{count(others, 'process')} of others used the device meanwhile",
        measured(Source.DEVICE, foreign_processes=others),
        ADVICE_SHARED,
        severity=NOTICEABLE if others else 0.0,
    )


@diagnosis(FindingType.DEVICE_ERRORS, Source.DEVICE)
def device_errors(evidence: Evidence) -> Seen | None:
    """The device has errors: of its memory, or others that the driver reports.

    Triggered by uncorrected ECC errors: a warning if there were some before, critical if they came
    in the measured steps; and by XID errors in the run: a warning if the script can be their cause
    (13, 31), else critical. 43 and 45 alone only tell that a process ended.
    """
    samples = evidence.of_each_device().values()
    seen = [[e for s in of if (e := s.uncorrected_ecc_errors) is not None] for of in samples]
    errors, new = sum(e[-1] for e in seen if e), sum(e[-1] - e[0] for e in seen if e)
    text = f"the GPU's memory has had {count(errors, 'uncorrected ECC error')}, {new} of them in "
    text += "the measured steps"
    xids = [each for each in evidence.xids if each[1] not in OF_ENDS]
    if xids and new <= 0:
        gpu, xid = min(xids, key=lambda each: (each[1] in OF_SCRIPTS, each[1]))
        meaning = XIDS.get(xid, "see NVIDIA's list of XID errors")
        text = f"the driver reported XID {xid} on {gpu} in the run: {meaning}"
    times = Counter(evidence.xids if xids else ())
    wrong = new > 0 or any(xid not in OF_SCRIPTS for _, xid in xids)
    return Seen(
        text,
        measured(
            Source.DEVICE,
            uncorrected_ecc_errors=errors,
            new_errors=new,
            xid=[f"{xid} ({gpu}, {count(n, 'time')})" for (gpu, xid), n in sorted(times.items())],
        ),
        ADVICE_ERRORS if wrong or not xids else ADVICE_XIDS,
        severity=CRITICAL_ERRORS if wrong else WARNING if errors or xids else 0.0,
    )


@diagnosis(FindingType.CPU_GOVERNOR, Source.CPU_USE)
def cpu_governor(evidence: Evidence) -> Seen | None:
    """The kernel holds the clocks of the cores down.

    Triggered by the governors "powersave" and "conservative"; with the drivers intel_pstate and
    amd-pstate-epp "powersave" is dynamic and no finding. What it costs was not measured: a note.
    """
    governor = evidence.host.slow_governor
    return Seen(
        f"the governor {governor!r} holds the clocks of the cores down",
        measured(Source.CPU_USE, governor=governor),
        ADVICE_GOVERNOR,
        severity=NOTICEABLE if governor else 0.0,
    )


def _clock_loss(samples: Sequence[DeviceSample], held: Sequence[DeviceSample]) -> float | None:
    """By how much the mean clock while held down is below the highest that was seen."""
    highest = max((s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None), default=None)
    clocks = [s.sm_clock_mhz for s in held if s.sm_clock_mhz is not None]
    return 1 - sum(clocks) / len(clocks) / highest if highest and clocks else None
