"""A comparison: pairs of launches of two trees until the gate decides.

One launch of each side alone warms it up and shows whether live pairs are possible. Pairs follow:
live pairs, or launches in turn (baseline first, current first, and so on). Either way a drift of
the machine affects both sides alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpurun.bench.bench_pairs import BenchEngine, bench_engine, obstacle
from gpurun.bench.benchmark_launcher import Launch, Launcher, warm_up_rule
from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.compare.compare_training import Curves, compare_training, loses_its_loss
from gpurun.bench.trees.edited_files import EditedFiles
from gpurun.bench.trees.module_origins import check_origins
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.bench.workload import check_workload, figure, without_effect
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.engine import NotLive, Pair, ToldOnce
from gpurun.pairs.gate import Gated, GatePlan, GateResult, Verdict, judge
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.records.bench.metrics import Metric
from gpurun.trials.stop_rules import later_rule

BY_TURNS = (Metric.THROUGHPUT, Metric.STEP_TIME)
"""The metrics that the turns of a live pair measure."""

Tell = Callable[[str], None]
"""Hears what happens, a line each."""


@dataclass
class Findings:
    """The findings so far; they stay here, whatever ends the comparison.

    `pairs`: the baseline's launch first; a ratio is the current step time over the baseline's.
    `gated`: the metrics that are judged, with their thresholds. `by_samples`: the throughput is in
    samples/s, else in steps/s. `ended`: why it ended before the gate decided. `first`: the launches
    that warmed up, baseline first. `in_turn`: why pairs are not live, "" if they are.
    """

    pairs: list[Pair[Launch]] = field(default_factory=list)
    first: list[Launch] = field(default_factory=list)
    in_turn: str = ""
    gated: dict[Metric, float] = field(default_factory=dict)
    by_samples: bool = True
    result: GateResult | None = None
    failed: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The gate's verdict; MORE becomes inconclusive once the comparison is over."""
        if self.result is None or self.result.verdict is Verdict.MORE:
            return Verdict.INCONCLUSIVE
        return self.result.verdict

    def launches(self, side: str) -> list[Launch]:
        """The launches of a side, "baseline" or "current": those of its pairs, and one that
        failed."""
        failed = [launch for launch in self.failed if launch.start.name == side]
        both = [launch for pair in self.pairs for launch in (pair.first, pair.second)]
        return [launch for launch in both if launch.start.name == side] + failed

    def training(self) -> TrainingComparison:
        """Compare the losses of both sides."""
        return compare_training(*self.loss_curves())

    def loss_curves(self) -> tuple[Curves, Curves]:
        """The losses of the pairs, and of the first launches too if the pairs are live.

        First launches are as long as the sides of a live pair; launches in turn are longer.
        """
        live = self.pairs and all(pair.ratio is not None for pair in self.pairs)
        first = [[one.loss_curve] for one in self.first] if live and self.first else [[], []]
        return (
            [*first[0], *(pair.first.loss_curve for pair in self.pairs)],
            [*first[1], *(pair.second.loss_curve for pair in self.pairs)],
        )

    def judged(self, plan: GatePlan) -> GateResult:
        """The gate's answer to the pairs so far."""
        errors = [None if pair.ratio is None else pair.ratio.error for pair in self.pairs]
        gated = [
            Gated(m, self.figures(m), share, errors if m in BY_TURNS else ())
            for m, share in self.gated.items()
        ]
        return judge(gated, plan)

    def figures(self, metric: Metric) -> list[tuple[float, float]]:
        """(baseline, current) of each pair; NaN, which the gate refuses, where nothing was.

        For a live pair, the current throughput and step time are the baseline's times the ratio by
        turns.
        """
        return [self._figures(metric, pair) for pair in self.pairs]

    def _figures(self, metric: Metric, pair: Pair[Launch]) -> tuple[float, float]:
        before = self._figure(metric, pair.first)
        if pair.ratio is None or metric not in BY_TURNS:
            return before, self._figure(metric, pair.second)
        if metric is Metric.STEP_TIME:
            return before, before * math.exp(pair.ratio.log)
        batches = [launch.result.batch_size for launch in (pair.first, pair.second)]
        more = batches[1] / batches[0] if self.by_samples and batches[0] and batches[1] else 1.0
        return before, before * more * math.exp(-pair.ratio.log)

    def _figure(self, metric: Metric, launch: Launch) -> float:
        value = figure(metric, launch.result, self.by_samples)
        return math.nan if value is None else float(value)


@dataclass
class PairRunner:
    """One comparison under way. `deadline`: of `time.monotonic`, when no further pair begins.

    `batch_may_differ`: the user allows that the sides train with batches of unequal size.
    """

    sides: Sides
    benchmark: Benchmark
    launcher: Launcher
    plan: GatePlan
    findings: Findings
    tell: Tell
    deadline: float = math.inf
    batch_may_differ: bool = False

    def __post_init__(self) -> None:
        roots = (self.sides.baseline.tree.root, self.sides.current.tree.root)
        self._edited = EditedFiles(roots, self.launcher.mode is Mode.IN_PLACE)
        self._remember = ToldOnce(self.tell, self.findings.notes)

    def run(self) -> None:
        """Launch until the gate decides or time ends; `GpurunError` where the benchmark fails."""
        findings = self.findings
        first = self._warmed_up()
        findings.first = list(first.values())
        rule = later_rule(self.benchmark.steps, [launch.result for launch in first.values()])
        self._settle(first)
        engine = bench_engine(
            self.launcher, rule, self._remember, self._refuse_alone, lambda: self._late(engine)
        )
        engine.in_turn = obstacle(findings.first, self.launcher.mode)
        self._note_in_turn(engine)
        while findings.result is None or findings.result.verdict is Verdict.MORE:
            if self._late(engine):
                findings.ended = f"the budget ended after {count(len(findings.pairs), 'pair')}"
                return
            try:
                self._pair(engine)
            except NotLive as failed:
                findings.ended = f"the budget ended after a pair that failed: {failed}"
                return
            findings.result = findings.judged(self.plan)
            if loses_its_loss(*findings.loss_curves()):
                return  # a regression, however fast: further pairs change nothing

    def _note_in_turn(self, engine: BenchEngine) -> None:
        """Tell once that pairs are launched in turn from here on."""
        findings = self.findings
        if engine.in_turn and not findings.in_turn:
            findings.in_turn = engine.in_turn
            self.tell(f"launches one after the other, not live pairs: {engine.in_turn}")

    def _late(self, engine: BenchEngine) -> bool:
        """True if a pair that takes as long as the last one would end after the deadline."""
        return time.monotonic() + engine.seconds > self.deadline

    def _warmed_up(self) -> dict[str, Launch]:
        """A first launch of each side; both are tried, so that an error can say which fails."""
        rule, launches = warm_up_rule(self.benchmark.steps), {}
        self._refuse_without_script()
        for side in (self.sides.baseline, self.sides.current):
            self.tell(f"first launch of the {side.name} side, to warm it up")
            launches[side.name] = self.launcher.run(self._start(side), rule, first=True)
        self._refuse_failed(launches)
        for launch in launches.values():
            self._edited.loaded(launch.origins)
        for side in (self.sides.baseline, self.sides.current):
            self._check_origins(side, launches[side.name])
            for line in without_effect(launches[side.name]):
                self._remember(f"{side.name}: {line}")
        self._check_workload(launches, self._remember)
        return launches

    def _refuse_without_script(self) -> None:
        script, side = self.benchmark.script, self.sides.baseline
        if self._in_worktree() and not (side.folder / script).is_file():
            raise GpurunError(
                f"the baseline has no script {script}: there is nothing to compare with yet",
                "measure it without --compare until it is part of the baseline",
                ExitCode.NO_BASELINE,
            )

    def _check_origins(self, side: Side, launch: Launch) -> None:
        if launch.start.trees is not None:
            check_origins(self.sides, side, launch.origins)

    def _check_workload(self, launches: Mapping[str, Launch], tell: Tell) -> None:
        names = (self.sides.baseline.name, self.sides.current.name)
        note = check_workload(
            launches[names[0]],
            launches[names[1]],
            self.benchmark.metrics if self.batch_may_differ else None,
        )
        if note is not None:
            tell(note)

    def _settle(self, first: Mapping[str, Launch]) -> None:
        """Choose the figures to compare, by the first launches of both sides."""
        findings, benchmark = self.findings, self.benchmark
        findings.by_samples = all(x.result.samples_per_second for x in first.values())
        if not findings.by_samples:
            findings.notes.append("samples cannot be counted: throughput counts steps instead")
        for metric in benchmark.metrics:
            without = [
                name
                for name, x in first.items()
                if not figure(metric, x.result, findings.by_samples)
            ]
            if len(without) == len(first) and benchmark.metrics == GATED:
                findings.notes.append(f"{metric.value} was not measured here and is not gated")
            elif without:
                raise GpurunError(
                    f"{metric.value} was not measured on the {' and the '.join(without)} side",
                    "gate a metric that every launch reports: --metrics throughput",
                    ExitCode.BENCHMARK_FAILED,
                )
            else:
                findings.gated[metric] = benchmark.thresholds[metric]

    def _pair(self, engine: BenchEngine) -> None:
        """One more pair."""
        findings, sides = self.findings, (self.sides.baseline, self.sides.current)
        number = len(findings.pairs) + 1
        starts = (self._start(sides[0]), self._start(sides[1]))
        pair = engine.take(*starts, number, turned=number % 2 == 0)
        self._edited.refuse()
        self._note_in_turn(engine)
        launches = {launch.start.name: launch for launch in (pair.first, pair.second)}
        for side in sides:
            self._check_origins(side, launches[side.name])
        self._check_workload(launches, lambda line: None)
        findings.pairs.append(pair)
        self.tell(self._shown(len(findings.pairs), pair))

    def _refuse_alone(self, launch: Launch) -> None:
        when = f" in pair {len(self.findings.pairs) + 1}"
        self._refuse_failed({launch.start.name: launch}, when)

    def _start(self, side: Side) -> Side:
        return replace(side, trees=self.sides.watched(side))

    def _refuse_failed(self, launches: Mapping[str, Launch], when: str = "") -> None:
        self._edited.refuse()
        failed = {name: launch for name, launch in launches.items() if launch.error}
        if not failed:
            return
        self.findings.failed.extend(failed.values())
        for name, launch in failed.items():
            for line in launch.printed:
                self.tell(f"{name}: {line}")
        which = "both sides" if len(failed) > 1 else f"the {next(iter(failed))} side"
        reasons = dict.fromkeys(launch.error for launch in failed.values())
        logs = " and ".join(str(launch.folder / "output.log") for launch in failed.values())
        todo = f"the whole output is in {logs}"
        if list(failed) == [self.sides.baseline.name] and not when and self._in_worktree():
            todo += '; if it misses a file that git does not hold: needed = ["data/*"] in [bench]'
        raise GpurunError(
            f"the benchmark {self.benchmark.name} failed on {which}{when}: {'; '.join(reasons)}",
            todo,
            ExitCode.BENCHMARK_FAILED,
        )

    def _in_worktree(self) -> bool:
        return self.sides.baseline.folder != self.sides.current.folder

    def _shown(self, number: int, pair: Pair[Launch]) -> str:
        before, now = self.findings.figures(Metric.THROUGHPUT)[-1]
        if not (before > 0 and now > 0):
            return f"pair {number}"
        unit = "samples/s" if self.findings.by_samples else "steps/s"
        change = (now / before - 1) * 100
        return f"pair {number}: baseline {before:.4g}, current {now:.4g} {unit} ({change:+.1f} %)"
