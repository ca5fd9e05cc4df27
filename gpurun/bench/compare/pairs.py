"""A comparison: paired launches of two trees in turn until the gate decides.

One launch of each side warms it up and is not judged. Then pairs: baseline first, current first,
and so on, so that a drift of the machine falls on both sides alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.compare.gate import GatePlan, GateResult, Verdict, judge
from gpurun.bench.compare.training import compare_training
from gpurun.bench.launches import Launch, Launcher, Start
from gpurun.bench.metrics import Gated, Metric
from gpurun.bench.trees.origin import check_origins
from gpurun.bench.trees.sides import Side, Sides
from gpurun.bench.workload import (
    check_workload,
    disturbance,
    figure,
    trouble_of_both,
    without_effect,
)
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.comparison import TrainingComparison
from gpurun.records.spec import StopRule
from gpurun.trials.stop_rules import first_rule, later_rule

MOST_AGAIN = 8
"""Pairs that are launched again because something befell one half; further ones count."""

Tell = Callable[[str], None]
"""Hears what happens, a line each."""


@dataclass(frozen=True)
class Pair:
    """One launch of each side, run one right after the other."""

    baseline: Launch
    current: Launch


@dataclass
class Findings:
    """What is known so far; whatever ends the comparison, it stands here.

    `gated`: the metrics that are judged, with their thresholds. `by_samples`: the throughput is in
    samples/s, else in steps/s. `ended`: why it ended before the gate decided.
    """

    pairs: list[Pair] = field(default_factory=list)
    gated: dict[Metric, float] = field(default_factory=dict)
    by_samples: bool = True
    result: GateResult | None = None
    failed: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: str | None = None

    @property
    def verdict(self) -> Verdict:
        """That of the gate; undecided is inconclusive once all is over."""
        if self.result is None or self.result.verdict is Verdict.MORE:
            return Verdict.INCONCLUSIVE
        return self.result.verdict

    def launches(self, side: str) -> list[Launch]:
        """Those of a side, "baseline" or "current": of its pairs, and one that failed."""
        failed = [launch for launch in self.failed if launch.start.name == side]
        return [getattr(pair, side) for pair in self.pairs] + failed

    def training(self) -> TrainingComparison:
        """What the losses of the pairs say."""
        return compare_training(
            [pair.baseline.loss_curve for pair in self.pairs],
            [pair.current.loss_curve for pair in self.pairs],
        )

    def figures(self, metric: Metric) -> list[tuple[float, float]]:
        """(baseline, current) of each pair; NaN, which the gate refuses, where nothing was."""
        return [
            (self._figure(metric, pair.baseline), self._figure(metric, pair.current))
            for pair in self.pairs
        ]

    def _figure(self, metric: Metric, launch: Launch) -> float:
        value = figure(metric, launch, self.by_samples)
        return math.nan if value is None else float(value)


class Comparing:
    """One comparison under way. `deadline`: of `time.monotonic`, when no further pair begins.

    `batch_may_differ`: the user allows that the sides train with batches of unequal size.
    """

    def __init__(
        self,
        sides: Sides,
        benchmark: Benchmark,
        launcher: Launcher,
        plan: GatePlan,
        findings: Findings,
        tell: Tell,
        deadline: float = math.inf,
        batch_may_differ: bool = False,
    ) -> None:
        self._sides = sides
        self._benchmark = benchmark
        self._launcher = launcher
        self._plan = plan
        self._findings = findings
        self._tell = tell
        self._deadline = deadline
        self._batch_may_differ = batch_may_differ
        self._again = 0

    def run(self) -> None:
        """Launch until the gate decides or time ends; `GpurunError` where the benchmark fails."""
        findings = self._findings
        first = self._warmed_up()
        rule = later_rule(self._benchmark.steps, first.values())
        self._settle(first)
        while findings.result is None or findings.result.verdict is Verdict.MORE:
            if self._late():
                done = len(findings.pairs)
                findings.ended = f"the budget ended after {done} pair{'' if done == 1 else 's'}"
                return
            self._pair(rule)
            findings.result = judge(
                [Gated(m, findings.figures(m), share) for m, share in findings.gated.items()],
                self._plan,
            )

    def _late(self) -> bool:
        """Whether a further pair would end after the deadline."""
        return time.monotonic() + 2 * self._launcher.expected > self._deadline

    def _warmed_up(self) -> dict[str, Launch]:
        """A first launch of each side; both are tried, so that an error can say which fails."""
        rule, launches = first_rule(self._benchmark.steps), {}
        self._refuse_without_script()
        for side in (self._sides.baseline, self._sides.current):
            self._tell(f"first launch of the {side.name} side, to warm it up")
            launches[side.name] = self._launcher.run(self._start(side), rule, first=True)
        self._refuse_failed(launches)
        for side in (self._sides.baseline, self._sides.current):
            self._check_origins(side, launches[side.name])
            for line in without_effect(launches[side.name]):
                self._remember(f"{side.name}: {line}")
        self._check_workload(launches, self._remember)
        return launches

    def _refuse_without_script(self) -> None:
        script, side = self._benchmark.script, self._sides.baseline
        if self._in_worktree() and not (side.folder / script).is_file():
            raise GpurunError(
                f"the baseline has no script {script}: there is nothing to compare with yet",
                "measure it without --compare until it is part of the baseline",
                ExitCode.NO_BASELINE,
            )

    def _check_origins(self, side: Side, launch: Launch) -> None:
        if launch.start.trees is not None:
            check_origins(self._sides, side, launch.origins)

    def _check_workload(self, launches: Mapping[str, Launch], tell: Tell) -> None:
        names = (self._sides.baseline.name, self._sides.current.name)
        note = check_workload(
            launches[names[0]],
            launches[names[1]],
            self._benchmark.metrics if self._batch_may_differ else None,
        )
        if note is not None:
            tell(note)

    def _settle(self, first: Mapping[str, Launch]) -> None:
        """Which figures are compared, by what the first launches of both sides measured."""
        findings, benchmark = self._findings, self._benchmark
        findings.by_samples = all(x.result.samples_per_second for x in first.values())
        if not findings.by_samples:
            findings.notes.append("samples cannot be counted: the throughput is that of steps")
        for metric in benchmark.metrics:
            without = [
                name for name, x in first.items() if not figure(metric, x, findings.by_samples)
            ]
            if len(without) == len(first) and benchmark.metrics == GATED:
                findings.notes.append(f"{metric.value} was not measured here and is not gated")
            elif without:
                raise GpurunError(
                    f"{metric.value} was not measured on the {' and the '.join(without)} side",
                    "gate what every launch reports: --metrics throughput",
                    ExitCode.BENCHMARK_FAILED,
                )
            else:
                findings.gated[metric] = benchmark.thresholds[metric]

    def _pair(self, rule: StopRule) -> None:
        """One more pair, launched again where a recorded cause befell one half of it."""
        findings = self._findings
        number = len(findings.pairs) + 1
        sides = [self._sides.baseline, self._sides.current]
        order = sides if number % 2 else sides[::-1]
        launches = {}
        for side in order:
            launch = self._launcher.run(self._start(side), rule)
            self._refuse_failed({side.name: launch}, f" in pair {number}")
            self._check_origins(side, launch)
            launches[side.name] = launch
        pair = Pair(launches[sides[0].name], launches[sides[1].name])
        self._check_workload(launches, lambda line: None)
        cause = disturbance(pair.baseline, pair.current)
        if cause is not None and self._again < MOST_AGAIN and not self._late():
            self._again += 1
            self._remember(f"pair {number} is launched again: {cause}")
            return self._pair(rule)
        if cause is not None:
            self._remember(
                f"pair {number} counts although {cause}: it was so too often, or the time is up"
            )
        trouble = trouble_of_both(pair.baseline, pair.current)
        if trouble is not None and trouble not in findings.notes:
            self._remember(trouble)
        findings.pairs.append(pair)
        self._tell(self._shown(number, pair))
        return None

    def _start(self, side: Side) -> Start:
        return Start(
            side.name,
            side.folder,
            side.python,
            side.variables,
            self._sides.watched(side),
            side.settled,
            side.planted_seconds,
        )

    def _refuse_failed(self, launches: Mapping[str, Launch], when: str = "") -> None:
        failed = {name: launch for name, launch in launches.items() if launch.error}
        if not failed:
            return
        self._findings.failed.extend(failed.values())
        for name, launch in failed.items():
            for line in launch.printed:
                self._tell(f"{name}: {line}")
        which = "both sides" if len(failed) > 1 else f"the {next(iter(failed))} side"
        reasons = dict.fromkeys(launch.error for launch in failed.values())
        logs = " and ".join(str(launch.folder / "output.log") for launch in failed.values())
        todo = f"the whole output is in {logs}"
        if list(failed) == [self._sides.baseline.name] and not when and self._in_worktree():
            todo += '; if it misses a file that git does not hold: needed = ["data/*"] in [bench]'
        raise GpurunError(
            f"the benchmark {self._benchmark.name} failed on {which}{when}: {'; '.join(reasons)}",
            todo,
            ExitCode.BENCHMARK_FAILED,
        )

    def _in_worktree(self) -> bool:
        return self._sides.baseline.folder != self._sides.current.folder

    def _remember(self, line: str) -> None:
        self._findings.notes.append(line)
        self._tell(line)

    def _shown(self, number: int, pair: Pair) -> str:
        metric = Metric.THROUGHPUT
        before, now = (
            figure(metric, launch, self._findings.by_samples)
            for launch in (pair.baseline, pair.current)
        )
        if not before or not now:
            return f"pair {number}"
        unit = "samples/s" if self._findings.by_samples else "steps/s"
        change = (now / before - 1) * 100
        return f"pair {number}: baseline {before:.4g}, current {now:.4g} {unit} ({change:+.1f} %)"
