"""`gpurun bench history`: what the records of benchmarks show over time."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.bench_subcommand_flags import HistoryOptions, parse_history
from gpurun.arguments.flag_table import flags_of
from gpurun.bench.history.branch_records import PLAN, PURPOSES, Branch, branch_here
from gpurun.bench.history.trends import Accepted, trends
from gpurun.bench.store import open_store
from gpurun.bench.trees.git import incomparable
from gpurun.commands.bench.chosen_benchmarks import records_home
from gpurun.commands.written_outputs import check_outputs, emit_json, must_write, print_verdict, say
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import count
from gpurun.records.bench.benchmark import BenchmarkRecord, utc_moment, utc_text
from gpurun.records.bench.history import History, Trend
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import to_json
from gpurun.report.history_text import history_grid, history_lines, title
from gpurun.report.terminal_table import print_grid

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

HELP = """\
usage: gpurun bench history [NAME] [flags]      the records over time

Shows one row for each benchmark (all, or NAME), fingerprint and workload. gpurun never compares
figures of two machines or of unequal work. The records are those of the checked-out branch, in the
order of its commits. Changes of level are listed with their commits; so is a drift, to which many
commits add a little.

{flags}

Exit code 4 if there is no record.
"""
FLAGS = flags_of(HistoryOptions)
THREADS = "OPENBLAS_NUM_THREADS"


def history(argv: list[str]) -> int:
    """Show the trends; exit code 4 where there are none."""
    options = parse_history(argv)
    check_outputs(json=options.json, png=options.png)
    store = open_store(records_home(options.out), options.store, notice=say)
    _load_numpy()
    found = read_history(store, options, branch_here(Path.cwd(), options.branch))
    if not options.quiet:
        print_grid(title(found), history_grid(found))
        for line in history_lines(found):
            say(line)
    emit_json(options.json, to_json(found), needed=True)
    if options.png is not None:
        from gpurun.report.plots.history_plot import draw_history

        picture = Path(options.png)
        must_write("--png", lambda: draw_history(picture, found))
    changes = [change for trend in found.trends for change in (*trend.changes, trend.drift)]
    directions = [change.direction for change in changes if change is not None]
    worse = directions.count("regression")
    counts = {"regressions": worse, "improvements": len(directions) - worse}
    print_verdict("ok", int(ExitCode.OK), trends=len(found.trends), **counts)
    return int(ExitCode.OK)


def read_history(store: BenchmarkStore, options: HistoryOptions, branch: Branch) -> History:
    """The document; `GpurunError` with exit code 4 where no record fits."""
    metric = Metric(options.metric)
    records = store.query(options.name, since=options.since, until=options.until, purposes=PURPOSES)
    held = [record for record in records if branch.holds(record)]
    found = trends(metric, held, _accepted(store, options, records), branch)
    if not found:
        raise _nothing(store, options, records, held, branch)
    return History(
        metric=metric.value,
        branch=branch.name,
        since=None if options.since is None else utc_text(options.since),
        until=None if options.until is None else utc_text(options.until),
        trends=found,
        elsewhere=len(records) - len(held),
        unmeasured=len(held) - sum(len(trend.points) for trend in found),
        notes=_notes(found, branch),
    )


def _accepted(
    store: BenchmarkStore, options: HistoryOptions, records: Sequence[BenchmarkRecord]
) -> list[Accepted]:
    """The baselines that had been accepted by then, with their records, be they older ones."""
    known = {record.id: record for record in records}
    found = []
    for baseline in store.baselines(options.name):
        record = known.get(baseline.record) or store.get(baseline.record)
        late = options.until is not None and utc_moment(baseline.time) >= options.until
        if record is not None and not late:
            found.append((baseline, record))
    return found


def _notes(found: Sequence[Trend], branch: Branch) -> tuple[str, ...]:
    notes = []
    if branch.places and not branch.whole:
        notes.append("this clone is shallow: commits that it lacks are known by time only")
    if any(len(trend.points) > PLAN.most_points for trend in found):
        notes.append(f"changes of level are looked for in the newest {PLAN.most_points} commits")
    return tuple(notes)


def _nothing(
    store: BenchmarkStore,
    options: HistoryOptions,
    records: Sequence[BenchmarkRecord],
    held: Sequence[BenchmarkRecord],
    branch: Branch,
) -> GpurunError:
    """Why there is nothing to show, and what to do."""

    if held:
        failed = sum(record.error is not None for record in held)
        why = f", {failed} of them of failed runs" if failed else ""
        return incomparable(
            f"none of {count(len(held), 'record')} has a figure of {options.metric}{why}",
            "ask for another --metric, or measure again",
        )
    if records:
        names = sorted({record.branch for record in records if record.branch is not None})
        todo = f"name another: --branch {names[0]}" if names else "check out their branch"
        return incomparable(
            f"none of {count(len(records), 'record')} is of a commit of "
            f"{branch.name or 'this branch'}",
            todo,
        )
    names = sorted({record.benchmark for record in store.query(purposes=PURPOSES)})
    if not names:
        return incomparable(f"{store.name} has no records yet", "make one: gpurun bench train.py")
    if options.name is not None and options.name not in names:
        near = get_close_matches(options.name, names, 1)
        guess = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
        return incomparable(f"there is no record of a benchmark {options.name!r}", guess)
    return incomparable("no record lies between those dates", "widen --since and --until")


def _load_numpy() -> None:
    """Load numpy with one thread: on the small matrices of a history more wait for each other.

    The variable is taken back, since it is not ours to set for others.
    """
    if THREADS in os.environ or "numpy" in sys.modules:
        return
    os.environ[THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[THREADS]
