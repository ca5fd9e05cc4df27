"""The document of `--optimize`: every trial, the ladder, and the proof."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import Any

from gpurun.records.failure import FailureKind
from gpurun.records.finding import Finding, FindingType
from gpurun.records.record import record
from gpurun.records.result import StepTime
from gpurun.records.script_arguments import TunedArgument

TUNING_SCHEMA = "gpurun/tuning@2"
SETTINGS_SCHEMA = "gpurun/settings@1"


@record
class Candidate:
    """A finalist or the baseline, with the figures of its launches (means over them)."""

    knobs: dict[str, Any]
    samples_per_second: float | None
    step_time_ms: StepTime | None
    peak_memory_bytes: int | None
    gpu_utilization_percent: float | None
    joules_per_sample: float | None = None
    """Energy of the GPUs."""


@record
class Proof:
    """Outcome of the paired sequential test of a candidate against the baseline.

    `speedup` is a factor of throughput (of peak memory or energy saved under those objectives); the
    interval and the p-value are those of the latest look (`gpurun/pairs/gain.py`). `pairs` holds
    [baseline, candidate] samples/s (or bytes, or joules a sample) of each pair. In a live pair, the
    candidate's figure is the baseline's times the gain by turns. There is no interval where it is
    so wide that it says nothing: the pairs do.
    """

    speedup: float
    speedup_confidence_interval: tuple[float, float] | None
    p_value: float
    statistically_significant: bool
    settled: bool
    pairs: tuple[tuple[float, float], ...]
    live: bool = False
    """True if both sides of each pair ran beside each other and took turns of some steps."""
    errors: tuple[float, ...] = ()
    """The standard error of ln(candidate / baseline) within each live pair, by its turns."""


@record
class LargerBatch:
    """The second finalist: the best settings with another batch size, which changes training."""

    knobs: dict[str, Any]
    samples_per_second: float | None
    step_time_ms: StepTime | None
    peak_memory_bytes: int | None
    gpu_utilization_percent: float | None
    batch_size: int
    speedup: float
    proof: Proof | None
    side_effects: tuple[str, ...]
    """Other changes that come with the batch size: learning rate, steps an epoch, schedules."""
    guard: GuardVerdict | None = None
    joules_per_sample: float | None = None


@record
class LadderRow:
    """One row of the ladder: what was changed at a stage, and what it is worth.

    The first row is the script as it is (`stage` "as it is"). Each row that is `kept` holds all
    changes of the rows above it too: `speedup` is that of the whole set over the script as it is,
    `step_speedup` that over the row above. Both are of one launch beside the script as it is, the
    last kept row's of the proof; None where they were not measured. `merged`: the stages before
    `stage` that were measured together with it. A row that is not kept is one change that was tried
    on top of what was kept by then, and `reason` says why it went; `speedup` is then its own.

    `samples_per_second`: of the script as it is, times `speedup`. `loss_deviation` and
    `output_deviation` (of a script that only infers) are fractions, None if not compared.
    `startup_seconds`: the extra time before the steady pace (compilation, say). The first launch
    pays most of it, because trials share the compilers' caches. `break_even_steps`: the number of
    steps that repay it, None if none do.
    """

    stage: str
    changes: dict[str, Any]
    effect: str
    kept: bool
    samples_per_second: float | None = None
    speedup: float | None = None
    speedup_confidence_interval: tuple[float, float] | None = None
    step_speedup: float | None = None
    step_speedup_confidence_interval: tuple[float, float] | None = None
    peak_memory_bytes: int | None = None
    gpu_utilization_percent: float | None = None
    joules_per_sample: float | None = None
    """Energy of the GPUs."""
    loss_deviation: float | None = None
    output_deviation: float | None = None
    answers: FindingType | None = None
    """The finding of the script as it is whose cause a change of the row may remove."""
    merged: tuple[str, ...] = ()
    reason: str = ""
    startup_seconds: float | None = None
    break_even_steps: int | None = None


class TrialPurpose(enum.Enum):
    """What a trial is launched for."""

    PROBE = "probe"
    """The first trial: the script as it is."""
    SCREEN = "screen"
    """A trial of the search."""
    REFERENCE = "reference"
    """It takes turns with trials of the search; it has no record of its own."""
    PAIR_BASELINE = "pair baseline"
    """One side of a pair of the proof: the baseline."""
    PAIR_CANDIDATE = "pair candidate"
    """The other side: a finalist."""
    RUNG = "rung"
    """The settings of the ladder up to one of its stages, in turns with the script as it is."""
    ROUNDING = "rounding"
    """The script as it is, its parameters rounded."""
    STILL = "dropout off"
    """A trial whose model draws no random numbers: only its audited steps count."""
    SEEDS = "seeds"
    """The script as it is under another seed."""
    REPEAT = "repeat"
    """The script as it is once more."""
    CEILINGS = "ceilings"
    """Model and loader each alone: the trial has no speed of its own."""
    WORKERS = "workers"
    """Several numbers of loader workers in turns: the trial has no speed of its own."""
    BLAME = "blame"
    """A launch of `gpurun blame`."""


PAIR_SIDES = (TrialPurpose.PAIR_BASELINE, TrialPurpose.PAIR_CANDIDATE)
"""The purposes of the trials of the proof."""
WITHOUT_SPEED = (TrialPurpose.CEILINGS, TrialPurpose.WORKERS, TrialPurpose.STILL)
"""The purposes of trials that measure something else than a speed of their own."""


@record
class TrialRecord:
    """One short launch."""

    number: int
    purpose: TrialPurpose
    knobs: dict[str, Any]
    status: str
    samples_per_second: float | None
    step_time_ms: StepTime | None
    peak_memory_bytes: int | None
    final_loss: float | None
    seconds: float
    reason: str
    run_dir: str
    others_cpu_percent: float | None = None
    """Other programs' use of the cores meanwhile, in percent of one core."""
    foreign_processes: int | None = None
    """Processes of others on the GPUs while it was measured."""
    failure: FailureKind | None = None
    """The kind of what `reason` says; None where the trial was measured."""
    gain_over_reference: float | None = None
    """Speed over the script as it is, in turns with it (1.0: as fast)."""
    gain_error: float | None = None
    """Standard error of the logarithm of that gain, within these launches."""
    joules_per_sample: float | None = None
    """Energy of the GPUs."""
    peak_reserved_bytes: int | None = None
    """GPU memory that its allocator held at most, free blocks included."""
    peak_host_bytes: int | None = None
    """Resident memory of all its processes together, at most."""
    in_turns: bool | None = None
    """Whether it was frozen while another launch had its turns; None in older documents."""

    def took_turns(self, live_pairs: bool = True) -> bool:
        """`in_turns`. Series of its devices, and its use of the processor, then say nothing of it.

        `live_pairs`: for older documents, whether their pairs took turns.
        """
        if self.in_turns is not None:
            return self.in_turns
        in_pair = live_pairs and self.purpose in PAIR_SIDES
        return in_pair or self.gain_over_reference is not None


@record
class OtherLoad:
    """Other programs' use of the `cores` that the trials shared with them: the mean over the
    trials' time, in percent of one core."""

    cpu_percent: float
    cores: int


@record
class LossCurves:
    """Loss by step of baseline and candidate.

    The candidate's trial is the one that is furthest off, the baseline's one of the same seed where
    there is one. `lowest` and `highest`: of all trials of the baseline. None: no finite loss was
    seen at that step.
    """

    baseline: tuple[float | None, ...]
    candidate: tuple[float | None, ...]
    lowest: tuple[float | None, ...] = ()
    highest: tuple[float | None, ...] = ()


@record
class NamedDistance:
    """How far a side is from the script as it is, in one regard; 1 scaled is the most allowed.

    `distance`, `floor`: None where infinite; `floor` also where nothing showed one. `bound`: the
    largest distance that is the same. `source`: of the floor.
    """

    name: str
    distance: float | None
    floor: float | None
    source: str | None
    bound: float | None
    scaled: float | None
    compared: bool


@record
class GuardVerdict:
    """Does the script still train or infer the same way? The answer, and the reasons.

    `compared`: what was compared with the script as it is: "samples", "gradients", "losses",
    "outputs" (of calls without gradients: inference, evaluation).
    """

    accepted: bool
    loss_deviation: float | None
    noise: float | None
    reasons: tuple[str, ...]
    curves: LossCurves | None = None
    output_deviation: float | None = None
    """The largest relative RMS difference of a floating output; None where none was compared."""
    output_agreement: float | None = None
    """The smallest part of integers, or of rows' largest numbers, that agree between outputs."""
    outputs_not_compared: str | None = None
    """Why no output was compared, of a script that only infers."""
    compared: tuple[str, ...] = ()
    forward_only: bool = False
    """True if the script only infers: there is no training to compare."""
    distances: tuple[NamedDistance, ...] = ()
    """The distance of each kind that sticks out most, the largest scaled first."""


@record
class Rejection:
    """Settings that the loss guard rejected, with both loss curves in the verdict."""

    knobs: dict[str, Any]
    guard: GuardVerdict


@record
class WaitingLine:
    """A line of the script's own that waits for the GPU in every step.

    `where`: "train.py:57"; `calls`: what it calls there, and how often a step: {".item()": 1.0}.
    """

    where: str
    calls: dict[str, float]


@record
class Ceilings:
    """The speed of each side of the training alone, with the script's own settings.

    Samples a second, all three in one process. The model alone trains on one batch, copied to the
    device anew in each step. The loader alone has all the processor. None: not measured, and
    `reason` says why. `gain_upper_bound`: the largest factor that faster data can bring (1.0:
    none).
    """

    loader_samples_per_second: float | None
    model_samples_per_second: float | None
    script_samples_per_second: float | None
    gain_upper_bound: float | None
    reason: str


@record
class BatchTrial:
    """One launch of a batch size. `memory_share`: what torch held of the device's memory at most.

    `told`: "as it is", "fastest", "largest that fits" (a tenth of the memory stays free), or why it
    was not measured.
    """

    batch_size: int
    samples_per_second: float | None
    step_time_ms: float | None
    peak_memory_bytes: int | None
    memory_share: float | None
    told: tuple[str, ...]


PROVEN = ("faster", "smaller", "saves_energy")
"""Verdicts of a proof that was won."""
MEASURED = (*PROVEN, "no_gain", "inconclusive")
"""Verdicts that rest on comparing trials."""
APPLICABLE = (*PROVEN, "fits")
"""Verdicts whose report has settings to train with."""


@record
class TuningReport:
    """The document behind `--optimize --json`. `verdict`: "faster", "no_gain", "inconclusive",
    "smaller", "saves_energy", "fits", "dry_run", "too_few_steps", "no_training",
    "not_measured", "script_failed", "interrupted" or "error".

    Under the objective "memory" the proof is of less peak memory ("smaller"). `memory_reduction` is
    the factor (2.0: half as much), `p_value` belongs to it, and `speedup` is the price. Under
    "energy" ("saves_energy") `energy_reduction` is that of joules a sample. "fits": the
    script runs out of memory as it is, and nothing was proven to be faster than `baseline`, whose
    settings make it fit. The baseline of no other script has settings.

    >>> import json
    >>> from gpurun.records.codec import from_json
    >>> with open("tuning.json") as file:
    ...     report = from_json(TuningReport, json.load(file))
    >>> report.verdict, report.speedup, report.speedup_confidence_interval
    ('faster', 2.31, (2.25, 2.37))
    >>> sorted(report.chosen.knobs)
    ['host_allocator', 'loader_workers', 'tf32']
    """

    verdict: str
    speedup: float | None
    speedup_confidence_interval: tuple[float, float] | None
    p_value: float | None
    statistically_significant: bool
    baseline: Candidate | None
    chosen: Candidate | None
    larger_batch: LargerBatch | None
    ladder: tuple[LadderRow, ...]
    trials: tuple[TrialRecord, ...]
    tuning_seconds: float
    proof: Proof | None
    guard: GuardVerdict | None
    rejections: tuple[Rejection, ...]
    isolation: str
    decisions: tuple[str, ...]
    fingerprint: dict[str, Any]
    command: tuple[str, ...]
    invocation: tuple[str, ...] = ()
    """The words that run this command with the settings found, without trials."""
    other_load: OtherLoad | None = None
    objective: str = "throughput"
    memory_reduction: float | None = None
    memory_reduction_confidence_interval: tuple[float, float] | None = None
    energy_reduction: float | None = None
    energy_reduction_confidence_interval: tuple[float, float] | None = None
    waits: tuple[WaitingLine, ...] = ()
    memory_of: str = ""
    """Whose peak `peak_memory_bytes` is: "GPU", or "main process" of a script on the CPU."""
    ceilings: Ceilings | None = None
    """None where a tuning ended before they were thought of."""
    gains_so_far: tuple[float, ...] = ()
    """Under the verdict "inconclusive": of the finalist's pairs."""
    findings: tuple[Finding, ...] = ()
    """What held the script back as it is, the most severe first."""
    proof_seconds: float | None = None
    """From the beginning until a gain was first significant."""
    findings_left: tuple[Finding, ...] = ()
    """What holds it back under the settings that were chosen."""
    untried: tuple[str, ...] = ()
    """Knobs that were not tried because the time or the trials were used up."""
    loss_nonfinite_from: int | None = None
    """The step, counted from 1, from which on no loss of the script as it is is finite."""
    reason: str = ""
    """Why nothing is proven, where it is not the end of the budget in the proof."""
    batches: tuple[BatchTrial, ...] = ()
    """The batch sizes that were tried under the same other settings, the script's own first."""
    second_epoch_budget: float | None = None
    """Seconds. Under such a budget a trial sees the second epoch; None if one did, or if the script
    hardly waits for data."""
    schema: str = TUNING_SCHEMA


@record
class SavedSettings:
    """Settings carried by hand (`--save-settings`) or in the cache (`.gpurun/tuned/`)."""

    settings: dict[str, Any]
    training_loaders: tuple[str, ...]
    speedup: float | None
    fingerprint: dict[str, Any]
    command: tuple[str, ...]
    tuned_arguments: tuple[TunedArgument, ...] = ()
    """Arguments of the script that `settings` may name."""
    verdict: str = "faster"
    """In the cache also "no_gain" and "inconclusive": tuned, nothing proven, no settings."""
    baseline_samples_per_second: float | None = None
    """Figures of the script as it is, in the proof: a run under these settings is compared with
    them."""
    companions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By knob, the settings that were made for its sake: they are left out together."""
    schema: str = SETTINGS_SCHEMA
