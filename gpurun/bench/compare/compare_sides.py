"""One benchmark compared, whatever ends it: two commits, or two settings of one script in one tree,
from their names to the document."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from gpurun.arguments import settings_file
from gpurun.bench.benchmark_launcher import Launcher, Tell, isolation
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.comparison_document import Compared, LabelledSettings, comparison
from gpurun.bench.compare.pair_runner import Findings, PairRunner
from gpurun.bench.compare.untouched_files import untouched
from gpurun.bench.record_of_launches import (
    Version,
    keep,
    record_of,
    users_side,
    version_here,
    version_of,
)
from gpurun.bench.trees.git import Repository, incomparable, open_repository, short
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Sides, prepared_sides
from gpurun.bench.unfinished import Unfinished, ended_by
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.pairs.gate import GatePlan, Verdict
from gpurun.records.bench.benchmark import AcceptedBaseline, BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.tuning import SavedSettings
from gpurun.rundir import kept_run
from gpurun.trials.applied_settings import applied_settings
from gpurun.trials.signal_guard import SignalGuard

NONE = "none"
"""In place of a settings file: the script as it is."""
AS_IT_IS = SavedSettings({}, (), None, {}, ())


@dataclass(frozen=True)
class CompareRequest:
    """Settings that hold for all benchmarks of one command. `deadline`: of `time.monotonic`.

    `keep` enters a record into the store; `tell` hears what happens, a line each.
    `fail_on_training_change`: another training is a verdict of its own. `accepted`: the baselines
    of a benchmark that were accepted, oldest first. `recorded`: its records, oldest first.
    """

    ref: str
    home: Path
    plan: GatePlan
    deadline: float
    in_place: bool
    keep: Callable[[BenchmarkRecord], None]
    tell: Tell
    fail_on_training_change: bool = False
    accepted: Callable[[str], Sequence[AcceptedBaseline]] = lambda benchmark: ()
    recorded: Callable[[str], Sequence[BenchmarkRecord]] = lambda benchmark: ()


@dataclass(frozen=True)
class ComparisonPlan:
    """The two sides of a comparison. `sides` makes both ready for the time of a block. It gets the
    run folder, which receives the output of setup commands.

    `batch_may_differ`: the user allows that the sides train with batches of unequal size. `notes`:
    why these two are compared.
    """

    compared: Compared
    sides: Callable[[Path], AbstractContextManager[Sides]]
    purpose: BenchmarkPurpose
    batch_may_differ: bool = False
    notes: tuple[str, ...] = ()


def compare(benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard) -> Comparison:
    """Compare the user's tree with the commit that is its baseline; see `compare_sides`.

    Nothing is launched where the tree changes no file that the baseline's benchmark opened.
    """
    found = _unlaunched(benchmark, asked)
    if found is not None:
        return found
    return compare_sides(benchmark, asked, interruption, lambda: _with_baseline(benchmark, asked))


def _unlaunched(benchmark: Benchmark, asked: CompareRequest) -> Comparison | None:
    """The document of a tree that passes without a launch; None if it must be launched."""
    started = time.monotonic()
    try:
        records = asked.recorded(benchmark.name)
        if not records:
            return None
        repository = open_repository(benchmark.folder)
        baseline = choose_baseline(repository, asked.ref)
        why = untouched(benchmark, repository, baseline.commit, records)
        if why is None:
            return None
        current = version_of(repository)
        commits = repository.commits_between(baseline.commit, current.commit or "")
    except GpurunError:  # the comparison tells
        return None
    asked.tell(baseline.why)
    asked.tell(why)
    compared = Compared(Version(baseline.commit, None, False), current, commits=commits)
    found = comparison(
        benchmark, Findings(notes=[baseline.why, why]), compared, time.monotonic() - started
    )
    return replace(
        found,
        verdict=Verdict.PASS.value,
        exit_code=int(ExitCode.OK),
        recommendation="nothing to do",
        training=None,
        launched=False,
    )


def _with_baseline(benchmark: Benchmark, asked: CompareRequest) -> ComparisonPlan:
    repository = open_repository(benchmark.folder)
    baseline = choose_baseline(repository, asked.ref)
    current = version_of(repository)
    older = Version(baseline.commit, None, False)
    commits = repository.commits_between(baseline.commit, current.commit or "")
    asked.tell(baseline.why)

    def sides(folder: Path) -> AbstractContextManager[Sides]:
        both = {BASELINE: baseline.commit, CURRENT: None}
        return prepared_sides(repository, both, asked.home, benchmark, folder, asked.tell)

    compared = Compared(older, current, commits=commits)
    notes = (baseline.why, *accepted_between(benchmark.name, asked, commits))
    return ComparisonPlan(compared, sides, BenchmarkPurpose.COMPARE, notes=notes)


def accepted_between(
    benchmark: str, asked: CompareRequest, commits: Sequence[str]
) -> tuple[str, ...]:
    """A note on each commit between the sides that was accepted as a baseline, on any machine.

    The verdict stays as it is: what was accepted is for a person to weigh, who sees both figures.
    """
    try:
        last = {one.commit: one for one in asked.accepted(benchmark)}
    except GpurunError:  # the verdict stands without a database
        return ()
    return tuple(
        f"this comparison includes commit {short(commit)}, which {last[commit].accepted_by} "
        f"accepted as baseline on {last[commit].time[:10]}: {last[commit].reason or 'no reason'}"
        for commit in commits
        if commit in last
    )


def compare_sides(
    benchmark: Benchmark,
    asked: CompareRequest,
    interruption: SignalGuard,
    prepare: Callable[[], ComparisonPlan],
) -> Comparison:
    """Compare, keep the records of both sides, and say what was found.

    The document reports an end as `ended_by` says; other errors are raised, after the records were
    kept. No signal interrupts any more afterwards, until `interruption.release`.
    """
    started, unfinished = time.monotonic(), None
    findings, tell = Findings(), asked.tell
    compared, purpose = Compared(Version(), Version()), BenchmarkPurpose.COMPARE
    try:
        plan = prepare()
        compared, purpose = plan.compared, plan.purpose
        findings.notes += plan.notes
        with kept_run(asked.home) as folder, plan.sides(folder) as sides:
            mode = isolation(sides.current.folder, asked.in_place, tell)
            findings.notes += sides.notes
            for line in sides.notes:
                tell(line)
            launcher = Launcher(benchmark, folder, mode, tell)
            limits = (asked.deadline, plan.batch_may_differ, asked.fail_on_training_change)
            two = compared.settings is not None
            pairs = PairRunner(sides, benchmark, launcher, asked.plan, findings, tell, *limits, two)
            try:
                pairs.run()
            finally:
                interruption.hold()
                launcher.close()
    except BaseException as error:
        done = f"interrupted after {count(len(findings.pairs), 'pair')}"
        unfinished = ended_by(error, benchmark.name, interruption.exit_code, done)
    finally:
        interruption.hold()
        interrupted = unfinished is not None and unfinished.verdict == "interrupted"
        records: list[BenchmarkRecord | None] = []
        for side, version in ((BASELINE, compared.baseline), (CURRENT, compared.current)):
            launches, record = findings.launches(side), None
            if launches:
                record = record_of(benchmark, launches, version, purpose, interrupted=interrupted)
                keep(record, asked.keep, tell)
            records.append(record)
    return comparison(
        benchmark,
        findings,
        replace(compared, records=(records[0], records[1])),
        time.monotonic() - started,
        unfinished,
        fail_on_training_change=asked.fail_on_training_change,
    )


def read_settings(name: str) -> LabelledSettings:
    """The settings in a file; `GpurunError` says what is wrong with it."""
    return LabelledSettings(name, AS_IT_IS if name == NONE else settings_file.load(Path(name)))


def compare_settings(
    benchmark: Benchmark,
    both: tuple[LabelledSettings, LabelledSettings],
    asked: CompareRequest,
    interruption: SignalGuard,
    knob_paths: Sequence[str],
    allow: Sequence[str],
) -> Comparison:
    """Compare the second settings with the first, as trees are compared.

    `GpurunError` for a knob that there is not, that is not among the effects in `allow`, or cannot
    take its value. Batches of unequal size are compared only where "training" is allowed.
    """
    applied = [
        applied_settings(one.saved, one.label, benchmark.args, knob_paths, allow) for one in both
    ]
    version = version_here(benchmark.folder)
    side = replace(users_side(benchmark), commit=version.commit or "")
    baseline, current = (
        replace(side, name=name, applied=one)
        for name, one in zip((BASELINE, CURRENT), applied, strict=True)
    )
    for name, one in zip((BASELINE, CURRENT), both, strict=True):
        words = ", ".join(f"{knob}={value}" for knob, value in one.saved.settings.items())
        asked.tell(f"{name}: {one.label}, {words or 'the script as it is'}")
    plan = ComparisonPlan(
        Compared(version, version, settings=both),
        lambda _: nullcontext(Sides(baseline, current, side.tree)),
        BenchmarkPurpose.SETTINGS,
        batch_may_differ="training" in allow,
    )
    return compare_sides(benchmark, asked, interruption, lambda: plan)


def not_compared(benchmark: Benchmark, unfinished: Unfinished) -> Comparison:
    """The document of a benchmark that was not compared, with the reason."""
    return comparison(benchmark, Findings(), Compared(Version(), Version()), 0.0, unfinished)


@dataclass(frozen=True)
class Baseline:
    """The commit to compare the working tree with. `why` is one line."""

    commit: str
    why: str


def choose_baseline(repository: Repository, ref: str) -> Baseline:
    """The merge base of `ref` and HEAD: what others did on `ref` since then is not ours to judge.

    If that is HEAD itself (a run on main), a user can mean two things. Uncommitted changes are
    compared with HEAD. Without any, HEAD is compared with its first parent. `GpurunError` with exit
    code 4 where there is no such commit.
    """
    head, asked = repository.head(), repository.resolve(ref)
    changed = repository.changed_files()
    uncommitted = count(len(changed), "uncommitted change")
    base = repository.merge_base(asked.commit, head)
    if base != head:
        why = f"the merge base of {asked.name} and HEAD"
        why += f", against HEAD with {uncommitted}" if changed else ""
    elif changed:
        verb = "is" if len(changed) == 1 else "are"
        why = (
            f"HEAD, because {asked.name} holds it already: your {uncommitted} "
            f"{verb} compared (the last commit itself: --compare HEAD~1)"
        )
    else:
        parent = repository.first_parent(head)
        if parent is None:
            raise incomparable(
                f"HEAD is the first commit of {repository.root}: there is nothing before it",
                "compare from the second commit on",
            )
        base, why = parent, f"HEAD's first parent, because {asked.name} holds HEAD already"
    return Baseline(base, f"baseline {short(base)}: {why}")
