"""`gpurun bench bisect GOOD..BAD`: which commit made the benchmark slower."""

from __future__ import annotations

import math
import time

from gpurun.arguments.bench_subcommand_flags import BisectOptions, parse_bisect
from gpurun.arguments.flag_table import flags_of
from gpurun.bench.bisect.bisect_runner import BisectRequest, bisect, not_searched
from gpurun.bench.bisect.culprit_search import SearchPlan
from gpurun.bench.store import open_store
from gpurun.bench.unfinished import worst_with_others
from gpurun.commands.bench.bench_outputs import emit_markdown
from gpurun.commands.bench.chosen_benchmarks import chosen, of_each, records_home
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say, teller
from gpurun.records.bench.bisection import BisectionReport
from gpurun.records.codec import to_json
from gpurun.report.bench_text import bisection_lines, bisection_markdown
from gpurun.trials.signal_guard import SignalGuard

HELP = f"""\
usage: gpurun bench bisect GOOD..BAD [flags] [script.py args...]   (or: GOOD BAD)

Finds the commit after GOOD, up to BAD, that made the benchmark slower. gpurun halves the range: the
gate of bench --compare answers by pairs of launches whether a commit is slow. The culprit is
confirmed against its parent. Commits that do not run are skipped. The search follows first parents:
a merged branch is one change, named by its merge. After an interruption, the same command continues
the search. Without --max-pairs it ends after {SearchPlan.max_pairs} pairs.

Exit code 0 the culprit is known, 3 it is not (no drop, undecided, or pairs or time ended), 4 the
range cannot be searched, 5 the benchmark failed at GOOD or BAD.

{{flags}}
"""
FLAGS = flags_of(BisectOptions)


def bisect_command(argv: list[str]) -> int:
    """`gpurun bench bisect ...`: the exit codes are those of the help text."""
    options = parse_bisect(argv)
    check_outputs(json=options.json, markdown=options.markdown)
    wanted = chosen(options.script, options.args, options.steps)
    home = records_home(options.out)
    store = open_store(home, options.store, notice=say)
    search = BisectRequest(
        good=options.good,
        bad=options.bad,
        home=home,
        max_pairs=options.max_pairs,
        deadline=time.monotonic() + (options.budget_seconds or math.inf),
        in_place=options.trials_in_place,
        fresh=options.fresh,
        keep=store.add,
        tell=teller(options.quiet),
    )
    with SignalGuard() as interruption:
        documents = of_each(
            wanted,
            interruption,
            find=lambda benchmark: bisect(benchmark, search, interruption),
            without=lambda benchmark, unfinished: not_searched(benchmark, search, unfinished),
            shown=lambda found: _shown(found, options),
            tell=search.tell,
        )
        found = worst_with_others(documents)
        emit_json(options.json, to_json(found))
        emit_markdown(options.markdown, bisection_markdown(found))
        print_verdict(
            found.verdict, found.exit_code, culprit=found.culprit, slowdown=found.slowdown,
            pairs=len(found.pairs),
        )  # fmt: skip
        return found.exit_code


def _shown(found: BisectionReport, options: BisectOptions) -> list[str]:
    return bisection_lines(found) if found.verdict == "failed" or not options.quiet else []
