"""`gpurun bench selftest`: can the gate fail, on this machine and with this benchmark?"""

from __future__ import annotations

import math
import time

from gpurun.arguments.bench_flags import BenchOptions
from gpurun.arguments.bench_subcommand_flags import QUICK_PAIRS, SELFTEST, parse_selftest
from gpurun.bench.compare.compare_sides import CompareRequest
from gpurun.bench.gate_selftest import not_tried, selftest
from gpurun.bench.store import open_store
from gpurun.bench.unfinished import worst_with_others
from gpurun.commands.bench.chosen_benchmarks import chosen_by, of_each, records_home
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say, teller
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.comparison import Selftest
from gpurun.records.codec import to_json
from gpurun.report.bench_text import selftest_lines
from gpurun.trials.signal_guard import SignalGuard

HELP = """\
usage: gpurun bench selftest [flags] [script.py args...]

Compares HEAD with itself three times, in separate worktrees. As it is, the gate must stay green. It
must go red if the current side sleeps in each step, and stay green if the baseline side does. The
sleep costs twice the threshold, and the launches must record it. Nothing enters a history, and your
tree is not touched.

Exit code 0 all three are right, 3 undecided, 5 the gate answers wrong or the benchmark fails.

{flags}
"""
FLAGS = SELFTEST


def run_selftest(argv: list[str]) -> int:
    """Try the gate; the exit codes are those of the help text."""
    options, quick = parse_selftest(argv)
    check_outputs(json=options.json)
    most = QUICK_PAIRS if quick else options.max_pairs
    wanted = chosen_by(options)
    home = records_home(options.out)
    store = open_store(home, options.store, notice=say)
    asked = CompareRequest(
        ref="HEAD",
        home=home,
        plan=GatePlan() if most is None else GatePlan.up_to(most),
        deadline=time.monotonic() + (options.budget_seconds or math.inf),
        in_place=options.trials_in_place,
        keep=store.add,
        tell=teller(options.quiet),
    )
    with SignalGuard() as interruption:
        documents = of_each(
            wanted,
            interruption,
            find=lambda benchmark: selftest(benchmark, asked, interruption),
            without=lambda benchmark, unfinished: not_tried(benchmark, asked, unfinished),
            shown=lambda found: _shown(found, options),
            tell=asked.tell,
        )
        found = worst_with_others(documents)
        emit_json(options.json, to_json(found))
        answers = {part.part: part.answer for part in found.parts}
        pairs = sum(part.comparison.pairs for part in found.parts)
        print_verdict(found.verdict, found.exit_code, **answers, pairs=pairs)
        return found.exit_code


def _shown(found: Selftest, options: BenchOptions) -> list[str]:
    if options.quiet and found.verdict in ("pass", "inconclusive"):
        return []
    return selftest_lines(found)
