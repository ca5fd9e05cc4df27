"""A comparison: pairs of launches of two trees until the gate decides.

One launch of each side alone warms it up and shows whether live pairs are possible. Pairs follow:
live pairs, or launches in turn (baseline first, current first, and so on). Either way a drift of
the machine affects both sides alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpurun.bench.benchmark_launcher import BenchEngine, Launch, Launcher, Tell, warm_up_rule
from gpurun.bench.benchmarks import GATED, Benchmark
from gpurun.bench.trees.module_origins import EditedFiles, check_origins
from gpurun.bench.trees.prepared_sides import Sides
from gpurun.bench.workload import check_workload, figure, without_effect
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count, signed_percent
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs import gain
from gpurun.pairs.engine import NotLive, Pair, ToldOnce
from gpurun.pairs.estimate import is_loose
from gpurun.pairs.gate import Gated, GatePlan, GateResult, Verdict, judge
from gpurun.records.bench.comparison import TrainingComparison
from gpurun.records.bench.metrics import Metric
from gpurun.same.curve_distances import Curves, compare_training, loses_its_loss
from gpurun.same.sameness_table import FEW_SIDES
from gpurun.trials.stop_rules import later_rule

BY_TURNS = (Metric.THROUGHPUT, Metric.STEP_TIME)
"""The metrics that the turns of a live pair measure: of both the loss is the throughput lost."""


@dataclass
class Findings:
    """The findings so far; they stay here, whatever ends the comparison.

    `pairs`: the baseline's launch first; a ratio is the current step time over the baseline's.
    `gated`: the metrics that are judged, with their thresholds. `by_samples`: the throughput is in
    samples/s, else in steps/s. `ended`: why it ended before the gate decided. `first`: the launches
    that warmed up, baseline first.
    """

    pairs: list[Pair[Launch]] = field(default_factory=list)
    first: list[Launch] = field(default_factory=list)
    gated: dict[Metric, float] = field(default_factory=dict)
    by_samples: bool = True
    result: GateResult | None = None
    failed: list[Launch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended: str | None = None

    @property
    def verdict(self) -> Verdict:
        """The gate's verdict; MORE becomes inconclusive once the comparison is over."""
        if self.result is None or self.undecided:
            return Verdict.INCONCLUSIVE
        return self.result.verdict

    @property
    def undecided(self) -> bool:
        """True if the gate wants a further pair."""
        return self.result is None or self.result.verdict is Verdict.MORE

    def launches(self, side: str) -> list[Launch]:
        """The launches of a side, "baseline" or "current": those of its pairs, and one that
        failed."""
        both = [launch for pair in self.pairs for launch in (pair.first, pair.second)]
        return [launch for launch in (*both, *self.failed) if launch.name == side]

    def training(self) -> TrainingComparison:
        """Compare the losses of both sides."""
        return compare_training(*self.loss_curves())

    def loss_curves(self) -> tuple[Curves, Curves]:
        """The losses of the pairs, and of the first launches too if the pairs are live.

        First launches are as long as the sides of a live pair; launches in turn are longer.
        """
        live = self.pairs and all(pair.ratio is not None for pair in self.pairs)
        sides = [(pair.first, pair.second) for pair in self.pairs]
        if live and self.first:
            sides.insert(0, (self.first[0], self.first[1]))
        return [one.loss_curve for one, _ in sides], [one.loss_curve for _, one in sides]

    def judged(self, plan: GatePlan) -> GateResult:
        """The gate's answer to the pairs so far."""
        return judge([self._gated(metric) for metric in self.gated], plan)

    def gain(self) -> gain.Look:
        """How much faster the current side is, if throughput or step time is gated."""
        speed = next((metric for metric in BY_TURNS if metric in self.gated), None)
        slower = [] if speed is None else self._gated(speed).readings()
        return gain.look([replace(one, log=-one.log) for one in slower])

    def _gated(self, metric: Metric) -> Gated:
        errors = [None if pair.ratio is None else pair.ratio.error for pair in self.pairs]
        turned = errors if metric in BY_TURNS else ()
        loose = [is_loose(pair.first.result, pair.second.result) for pair in self.pairs]
        return Gated(metric, self.figures(metric), self.gated[metric], turned, loose)

    def figures(self, metric: Metric) -> list[tuple[float, float]]:
        """(baseline, current) of each pair; NaN, which the gate refuses, where nothing was.

        For a live pair, the current throughput and step time are the baseline's times the ratio by
        turns.
        """
        return [self._figures(metric, pair) for pair in self.pairs]

    def _figures(self, metric: Metric, pair: Pair[Launch]) -> tuple[float, float]:
        results = (pair.first.result, pair.second.result)
        found = [figure(metric, one, self.by_samples) for one in results]
        before, now = (math.nan if value is None else float(value) for value in found)
        if pair.ratio is None or metric not in BY_TURNS:
            return before, now
        if metric is Metric.STEP_TIME:
            return before, before * math.exp(pair.ratio.log)
        batches = [result.batch_size for result in results]
        more = batches[1] / batches[0] if self.by_samples and batches[0] and batches[1] else 1.0
        return before, before * more * math.exp(-pair.ratio.log)


@dataclass
class PairRunner:
    """One comparison under way. `deadline`: of `time.monotonic`, when no further pair begins.

    `batch_may_differ`: the user allows that the sides train with batches of unequal size.
    `measures_gain`: pairs go on until the current side's gain is known, whatever the gate says.
    """

    sides: Sides
    benchmark: Benchmark
    launcher: Launcher
    plan: GatePlan
    findings: Findings
    tell: Tell
    deadline: float = math.inf
    batch_may_differ: bool = False
    fail_on_training_change: bool = False
    measures_gain: bool = False

    def __post_init__(self) -> None:
        self._both = (self.sides.baseline, self.sides.current)
        isolated = self.launcher.mode is not Mode.IN_PLACE  # else the script itself may edit them
        self._edited = EditedFiles(side.tree.root for side in self._both if isolated)
        self._in_worktree = self._both[0].folder != self._both[1].folder
        self._remember = ToldOnce(self.tell, self.findings.notes)
        self._once = ToldOnce(self.tell)

    def run(self) -> None:
        """Launch until the gate decides or time ends; `GpurunError` where the benchmark fails."""
        findings = self.findings
        findings.first = self._warmed_up()
        rule = later_rule(self.benchmark.steps, [launch.result for launch in findings.first])
        self._choose_figures()
        first = {launch.name: launch for launch in findings.first}
        engine = self.launcher.engine(
            rule,
            self._remember,
            lambda: self.deadline - time.monotonic(),
            lambda side: first[side.name],
        )
        while findings.undecided or self._training_unknown() or self._gain_unknown():
            if engine.late:
                findings.ended = f"the budget ended after {count(len(findings.pairs), 'pair')}"
                return
            try:
                self._pair(engine)
            except NotLive as failed:
                findings.ended = f"the budget ended after a pair that failed: {failed}"
                return
            if findings.undecided:
                findings.result = findings.judged(self.plan)
            if loses_its_loss(*findings.loss_curves()):
                return  # a regression, however fast: further pairs change nothing

    def _gain_unknown(self) -> bool:
        known = not self.findings.gated.keys() & set(BY_TURNS) or self.findings.gain().settled
        return self.measures_gain and not known

    def _training_unknown(self) -> bool:
        """True if another training is a verdict of its own and the launches are too few for one."""
        findings = self.findings
        asked = self.fail_on_training_change and len(findings.pairs) < FEW_SIDES
        return asked and findings.training().differs is None

    def _warmed_up(self) -> list[Launch]:
        """A first launch of each side; both are tried, so that an error can say which fails."""
        script, rule = self.benchmark.script, warm_up_rule(self.benchmark.steps)
        if self._in_worktree and not (self.sides.baseline.folder / script).is_file():
            raise GpurunError(
                f"the baseline has no script {script}: there is nothing to compare with yet",
                "measure it without --compare until it is part of the baseline",
                ExitCode.NO_BASELINE,
            )
        launches = []
        for side in self._both:
            self.tell(f"first launch of the {side.name} side, to warm it up")
            launches.append(self.launcher.run(side, rule, first=True))
        self._refuse_failed(launches)
        for launch in launches if self.launcher.mode is not Mode.IN_PLACE else ():
            self._edited.loaded(launch.origins)
        self._check(launches, self._remember)
        for launch in launches:
            for line in without_effect(launch):
                self._remember(f"{launch.name}: {line}")
        return launches

    def _check(self, launches: Sequence[Launch], tell: Tell) -> None:
        """`GpurunError` where a side ran another tree than its own, or they did unequal work."""
        for side, launch in zip(self._both, launches, strict=True):
            if launch.start.trees is not None:
                check_origins(self.sides, side, launch.origins)
        metrics = self.benchmark.metrics if self.batch_may_differ else None
        note = check_workload(launches[0], launches[1], metrics)
        if note is not None:
            tell(note)

    def _choose_figures(self) -> None:
        """Choose the figures to compare, by the first launches of both sides."""
        findings, benchmark = self.findings, self.benchmark
        findings.by_samples = all(x.result.samples_per_second for x in findings.first)
        if not findings.by_samples:
            findings.notes.append("samples cannot be counted: throughput counts steps instead")
        for metric in benchmark.metrics:
            seen = [bool(figure(metric, x.result, findings.by_samples)) for x in findings.first]
            if all(seen):
                findings.gated[metric] = benchmark.thresholds[metric]
            elif not any(seen) and benchmark.metrics == GATED:
                findings.notes.append(f"{metric.value} was not measured here and is not gated")
            else:
                without = [x.name for x, had in zip(findings.first, seen, strict=True) if not had]
                raise GpurunError(
                    f"{metric.value} was not measured on the {' and the '.join(without)} side",
                    "gate a metric that every launch reports: --metrics throughput",
                    ExitCode.BENCHMARK_FAILED,
                )

    def _pair(self, engine: BenchEngine) -> None:
        """One more pair."""
        findings = self.findings
        number = len(findings.pairs) + 1
        pair = engine.take(*self._both, number, turned=number % 2 == 0)
        self._refuse_failed((pair.first, pair.second), f" in pair {number}")
        if pair.in_turn:
            self._once(f"launches one after the other, not live pairs: {pair.in_turn}")
        self._check((pair.first, pair.second), lambda line: None)
        findings.pairs.append(pair)
        then, here = findings.figures(Metric.THROUGHPUT)[-1]
        told = f"pair {len(findings.pairs)}"
        if then > 0 and here > 0:
            unit = "samples/s" if findings.by_samples else "steps/s"
            change = signed_percent(here / then - 1)
            told += f": baseline {then:.4g}, current {here:.4g} {unit} ({change})"
        self.tell(told)

    def _refuse_failed(self, launches: Sequence[Launch], when: str = "") -> None:
        self._edited.refuse()
        failed = [launch for launch in launches if launch.error]
        if not failed:
            return
        self.findings.failed.extend(failed)
        for launch in failed:
            for line in launch.printed:
                self.tell(f"{launch.name}: {line}")
        which = "both sides" if len(failed) > 1 else f"the {failed[0].name} side"
        reasons = dict.fromkeys(launch.error for launch in failed)
        logs = " and ".join(str(launch.folder / "output.log") for launch in failed)
        todo = f"the whole output is in {logs}"
        if self._in_worktree and not when and which == f"the {self.sides.baseline.name} side":
            todo += '; if it misses a file that git does not hold: needed = ["data/*"] in [bench]'
        raise GpurunError(
            f"the benchmark {self.benchmark.name} failed on {which}{when}: {'; '.join(reasons)}",
            todo,
            ExitCode.BENCHMARK_FAILED,
        )
