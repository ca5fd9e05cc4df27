"""`bench --compare REF --culprit`: the commit that a proven regression came with."""

from __future__ import annotations

from dataclasses import replace

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_runner import BisectRequest, bisect
from gpurun.bench.bisect.commit_range import branch_of, commit_range
from gpurun.bench.compare.compare_commits import CompareRequest
from gpurun.bench.compare.comparison_document import SPEED
from gpurun.bench.trees.git import open_repository, short
from gpurun.errors import GpurunError
from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.bench.comparison import Comparison
from gpurun.report.bisection_text import bisection_lines
from gpurun.trials.signal_guard import SignalGuard


def with_culprit(
    found: Comparison, benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
) -> Comparison:
    """The comparison with the commit of its regression, searched for in the time that is left.

    If the search finds no answer, a note gives the reason, and the verdict stands. No signal
    interrupts any more afterwards, as after the comparison itself.
    """
    if not found.regression_detected or found.likely_culprit_commit is not None:
        return found
    if not any(m.verdict == "regression" and m.metric in _SPEED for m in found.metrics):
        return _noted(found, "no search for the culprit: it looks for lost throughput only")
    try:
        good, bad = _range(found, benchmark)
        asked.tell(f"search for the culprit in {short(good)}..{short(bad)}")
        search = BisectRequest(
            good=good,
            bad=bad,
            home=asked.home,
            max_pairs=None,
            deadline=asked.deadline,
            in_place=asked.in_place,
            fresh=False,
            keep=asked.keep,
            tell=asked.tell,
        )
        interruption.release()
        report = bisect(benchmark, search, interruption)
    except KeyboardInterrupt:
        return _noted(found, "no search for the culprit: interrupted")
    except GpurunError as error:
        return _noted(found, f"the search for the culprit ended: {error.what}")
    finally:
        interruption.hold()
    return _with_answer(found, report)


def _with_answer(found: Comparison, report: BisectionReport) -> Comparison:
    """The comparison with what the search found."""
    told = "; ".join(line.strip() for line in bisection_lines(report)[:2])
    found = _noted(found, f"search for the culprit: {told}")
    if report.verdict == "no_drop" and found.current.dirty:
        where = "look at the uncommitted changes: the commits since the baseline show no loss"
        return replace(found, recommendation=where)
    if report.culprit is None:
        return found
    one = report.commit(report.culprit)
    return replace(
        found,
        likely_culprit_commit=report.culprit,
        recommendation=f'look at commit {short(one.commit)} "{one.subject}" by {one.author}',
    )


_SPEED = tuple(metric.value for metric in SPEED)


def _range(found: Comparison, benchmark: Benchmark) -> tuple[str, str]:
    """The commits between the sides; the branch itself where a merge is all that is between, as
    in the checkouts of pull requests."""
    good, bad = found.baseline.commit, found.current.commit
    assert good is not None
    assert bad is not None
    repository = open_repository(benchmark.folder)
    line = commit_range(repository, good, bad)
    merged = branch_of(repository, line.bad) if len(line.commits) == 1 else None
    return merged or (good, bad)


def _noted(found: Comparison, note: str) -> Comparison:
    return replace(found, notes=(*found.notes, note))
