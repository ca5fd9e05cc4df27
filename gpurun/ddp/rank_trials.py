"""The trials by which `--ddp` is verified: one process, and the ranks. All are seeded alike.

What they show of their first steps, of all ranks together, is compared by `rank_verdict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.ddp.rank_verdict import TrainedStep, TrainedSteps
from gpurun.launch.hidden_ranks import rank_environment
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock, training_loaders
from gpurun.records.spec import SEED, LossReduction, Parallel, Share, StopRule, TrialSpec
from gpurun.same.launch_audit import audit_of
from gpurun.same.step_distances import gradients_by_name
from gpurun.trials.launch_request import LaunchRequest, Ranks
from gpurun.trials.outcome import Outcome
from gpurun.trials.trial_launcher import TrialLauncher

STEPS = 6
"""Audited steps of a trial. A term of the loss that begins later is not seen."""
LIMIT_SECONDS = 1800.0
OF_RANKS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass
class RankTrials:
    """Launches below one folder. `shared`: so many GPUs the ranks share, 0 if each has its own."""

    options: Options
    environment: Mapping[str, str]
    launcher: TrialLauncher
    ranks: int
    shared: int
    _loaders: tuple[str, ...] = ()

    def one(self, shares: int = 0) -> Outcome:
        """One process on the whole of each batch. It shows which loaders feed the training.

        `shares`: it takes the samples of a batch share by share of so many ranks.
        """
        environment = {n: v for n, v in self.environment.items() if n not in OF_RANKS}
        visible = [word for word in environment.get(VISIBLE, "0").split(",") if word.strip()]
        environment[VISIBLE] = visible[0] if visible else ""
        name = f"one process, shares of {shares}" if shares else "one process"
        outcome = self.launcher.run(self._request(name, environment, None, shares))
        log = outcome.log
        clock = None if log is None else step_clock(log)
        if log is not None and clock is not None:
            self._loaders = tuple(x.key for x in training_loaders(log, clock))
        return outcome

    def many(self, reduction: LossReduction) -> Outcome:
        """The ranks, each on its share."""
        name = f"{self.ranks} ranks, {reduction.value}"
        flags = (
            "--standalone",
            f"--nproc-per-node={self.ranks}",
            "--max-restarts=0",
            f"--log-dir={self._folder(name) / 'ranks'}",
            "--redirects=3",
        )
        parallel = Parallel(Share.GLOBAL, SEED, self.shared, reduction)
        ranks = Ranks(flags, parallel, to_finish=self.ranks)
        return self.launcher.run(self._request(name, self.environment, ranks))

    def _request(
        self, name: str, environment: Mapping[str, str], ranks: Ranks | None, shares: int = 0
    ) -> LaunchRequest:
        stop = StopRule(STEPS, 0.0, STEPS, warmup_steps=0, audit_steps=STEPS)
        return LaunchRequest(
            name=name,
            run_dir=self._folder(name),
            target=self.options.target,
            cwd=Path.cwd(),
            # a compiler would take longer than the steps
            environment={
                **rank_environment(environment, self.ranks),
                "TORCHDYNAMO_DISABLE": "1",
            },
            trial=TrialSpec(stop=stop, seed=SEED, by_sample=True, shares=shares),
            training_loaders=() if ranks is None else self._loaders,
            ranks=ranks,
            limit_seconds=LIMIT_SECONDS,
            patience_seconds=self.options.patience_seconds,
        )

    def _folder(self, name: str) -> Path:
        return self.launcher.folder / name.replace(", ", "-").replace(" ", "-")


def trained_steps(logs: Sequence[ProcessLog], ranks: int) -> TrainedSteps | None:
    """The steps that all ranks show; None if one shows none. Without ranks: of the one process.

    After the exchange all ranks have the same gradients and updates: those of rank 0 are taken.
    """
    trained = [log for log in logs if log.audits]
    if ranks > 1:
        by_rank = {log.process.rank: log for log in trained}
        trained = [by_rank[rank] for rank in range(ranks) if rank in by_rank]
    launches = [audit for log in trained[:ranks] if (audit := audit_of(log, SEED)) is not None]
    if len(launches) < ranks:
        return None
    steps = tuple(
        TrainedStep(gradients_by_name(first), first.gradient_norms, first.update_norms)
        for first, *_ in zip(*(launch.audits for launch in launches), strict=False)
    )
    samples = frozenset(index for log in trained[:ranks] for index in _samples(log))
    return TrainedSteps(steps, samples)


def _samples(log: ProcessLog) -> set[int]:
    """The indices of training samples; a stream's have none."""
    clock = step_clock(log)
    training = set() if clock is None else set(clock.training_loaders)
    training -= {loader.loader for loader in log.loaders if loader.iterable}
    return {index for pass_ in log.samples if pass_.loader in training for index in pass_.order}
