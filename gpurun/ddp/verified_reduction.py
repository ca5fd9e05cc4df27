"""Verifies, before ranks begin, that they train what one process trains: by running both."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.ddp.rank_trials import OF_RANKS, RankTrials, trained_steps
from gpurun.ddp.rank_verdict import Kind, RankVerdict, TrainedSteps, judge
from gpurun.errors import GpurunError, Refused, ScriptFailed, say
from gpurun.isolation.available_modes import require
from gpurun.isolation.folder_removal import scratch_folder
from gpurun.measure.run_events import ProcessLog
from gpurun.records.messages.traits import (
    DISTRIBUTED_TRAITS,
    PARALLEL_REFUSED,
    STARTS_PROCESSES,
    STARTS_PROGRAMS,
)
from gpurun.records.spec import LossReduction
from gpurun.same.sameness_table import RANKS
from gpurun.trials.outcome import Outcome
from gpurun.trials.trial_launcher import TrialLauncher

FOLDERS = "trials-"
"""The names of verifications' folders begin with it."""
VARIABLE = re.compile(rf"\b({'|'.join(OF_RANKS)})\b")
SAY_REDUCTION = "set it with --loss-reduction mean or sum; gpurun then does not verify it"
TODO = (
    "divide sums by the number of samples at hand, as x.size(0), so that the loss is a mean; or "
    "set --loss-reduction mean or sum; or run it without --ddp"
)
DISTRIBUTED = "run gpurun --nproc-per-node N without --ddp; its batch size is then a device's"
SIZES = (
    "where the script uses its batch size, take the number of samples from the batch, as in "
    "x.size(0); or run it without --ddp"
)
NOT_COMPARABLE = (
    "the first gradients of ranks are those of one process; later steps were not comparable, for "
    "rounding may part them"
)
LAST_CHARACTERS = 20_000
MOST_LINES = 3
"""So many lines a refusal names at most."""


def verified_reduction(
    options: Options, environment: Mapping[str, str], ranks: int, shared: int, home: Path
) -> LossReduction | None:
    """How the loss reduces: from the user, or from two trials, and further ones if it is a sum, or
    if later steps differ.

    None for a script that is distributed by itself. `Refused` where ranks cannot train the script;
    `ScriptFailed` where it fails by itself.
    """
    if options.loss_reduction is not None:
        return options.loss_reduction
    try:
        mode, _ = require(Path.cwd(), in_place=False)
    except GpurunError as error:
        raise Refused(f"ranks cannot be verified: {error.what}", SAY_REDUCTION) from None
    began = time.monotonic()
    place = home / "verified"
    place.mkdir(parents=True, exist_ok=True)
    with (
        scratch_folder(place, FOLDERS) as folder,
        closing(TrialLauncher(folder, mode, tell=lambda _: None)) as launcher,
    ):
        trials = RankTrials(options, environment, launcher, ranks, shared)
        found = _Verification(trials, ranks).run()
    if found is None:
        return None
    reduction, verdict = found
    _tell(options, reduction, verdict, time.monotonic() - began)
    return reduction


def _tell(options: Options, reduction: LossReduction, found: RankVerdict, seconds: float) -> None:
    if found.later:
        say(f"{NOT_COMPARABLE}: {found.said}; all gradients are {found.apart:.2%} apart")
    elif found.kind is Kind.AS_DDP:
        say(
            f"ranks train as hand-written DistributedDataParallel does, not as one process: "
            f"{found.said}; all gradients are {found.apart:.2%} apart"
        )
    if not options.quiet:
        taken = "ranks take it as" if found.kind is Kind.AS_DDP else "the loss is"
        say(f"{taken} a {reduction.value} over samples (verified in {seconds:.1f} s by trials)")


@dataclass
class _Verification:
    """The trials of one script, and what follows from each."""

    trials: RankTrials
    ranks: int
    _rounded: TrainedSteps | None = field(init=False, default=None)

    def run(self) -> tuple[LossReduction, RankVerdict] | None:
        outcome = self.trials.one()
        if _distributed(outcome.logs[:1]) or (outcome.exit_code and _asks_for_ranks(outcome)):
            return None
        one = self._one(outcome)
        found = self._judged(one, LossReduction.MEAN)
        if found.kind is not Kind.SUM:
            if found.kind is not Kind.REFUSED:
                return LossReduction.MEAN, found
            if found.later:
                raise _not_comparable(found, LossReduction.MEAN)
            raise Refused(f"ranks would train otherwise than one process: {found.said}", TODO)
        again = self._judged(one, LossReduction.SUM)
        if again.kind is Kind.EQUAL or (again.later and again.most <= RANKS.ceiling):
            return LossReduction.SUM, again
        if again.later:
            raise _not_comparable(again, LossReduction.SUM)
        raise Refused(
            "the loss is a sum over samples, and a part of it is none: a penalty or a mean "
            f"beside it would count once for each rank ({again.said})",
            TODO,
        )

    def _judged(self, one: TrainedSteps, reduction: LossReduction) -> RankVerdict:
        """If only later steps differ, a further launch shows what rounding makes of them."""
        many = self._many(reduction, len(one.steps))
        found = judge(one, many, self.ranks)
        if found.later:
            self._rounded = self._rounded or trained_steps(self.trials.one(self.ranks).logs, 1)
            found = judge(one, many, self.ranks, self._rounded)
        return found

    def _one(self, outcome: Outcome) -> TrainedSteps:
        trained = [log for log in outcome.logs if any(map(len, log.steps.values()))]
        if len(trained) > 1 or _distributed(outcome.logs):
            traits = outcome.logs[0].traits
            lines = [x.detail for x in traits if x.trait == STARTS_PROCESSES]
            lines = lines or [x.detail for x in traits if x.trait == STARTS_PROGRAMS]
            where = f" ({', '.join(lines[-MOST_LINES:])})" if lines else ""
            raise Refused(
                f"the script starts training processes of its own{where}: each would join the "
                "ranks of --ddp",
                "run it without --ddp; if it is written for torchrun: gpurun --nproc-per-node N",
            )
        if outcome.exit_code:
            sys.stderr.write(_printed(outcome))  # its own error
            what = "the script failed on one device, before any rank began"
            raise ScriptFailed(what, outcome.exit_code)
        if outcome.exit_code is None and outcome.failure is not None:
            raise Refused(f"one process cannot be run: {outcome.failure.text}", SAY_REDUCTION)
        found = trained_steps(outcome.logs, 1)
        if found is None or not any(step.norms for step in found.steps):
            raise Refused(
                "no optimizer was seen to step: there are no gradients to compare",
                f"{SAY_REDUCTION}; or run it without --ddp",
            )
        return found

    def _many(self, reduction: LossReduction, steps: int) -> TrainedSteps:
        """The ranks' steps, as many as one process took."""
        outcome = self.trials.many(reduction)
        for trait in (trait for log in outcome.logs for trait in log.traits):
            if trait.trait == PARALLEL_REFUSED:
                what, _, todo = trait.detail.partition("\n")
                raise Refused(what, todo)
        if _distributed(outcome.logs):
            raise Refused(
                "the script is distributed by itself, or by a library, which gives each rank "
                "batches of its own: under --ddp they would add up to a larger one",
                DISTRIBUTED,
            )
        found = trained_steps(outcome.logs, self.ranks)
        if found is None or len(found.steps) < steps:
            failure = outcome.failure
            text = f"exit code {outcome.exit_code}" if failure is None else failure.text
            raise Refused(f"a share of a batch cannot be computed: {text}", SIZES)
        return found


def _not_comparable(found: RankVerdict, reduction: LossReduction) -> Refused:
    """Later steps differ too much, and no launch tells how much of it is rounding."""
    return Refused(
        f"{NOT_COMPARABLE}: {found.said}",
        f"if the loss is a {reduction.value} over samples, set --loss-reduction "
        f"{reduction.value}; or run it without --ddp",
    )


def _distributed(logs: Sequence[ProcessLog]) -> bool:
    return any(trait.trait in DISTRIBUTED_TRAITS for log in logs for trait in log.traits)


def _asks_for_ranks(outcome: Outcome) -> bool:
    """It fails where it reads a variable of torchrun: only a distributed script needs those."""
    _, trace, said = _printed(outcome).rpartition("Traceback (")
    return bool(trace and VARIABLE.search(said))


def _printed(outcome: Outcome) -> str:
    with suppress(OSError):
        text = (outcome.run_dir / "output.log").read_text(errors="replace")
        return text.replace("\r\n", "\n")[-LAST_CHARACTERS:]
    return ""
