"""`gpurun bench bisect GOOD..BAD`: which commit made the benchmark slower."""

from __future__ import annotations

import math
import sys
import time

from gpurun.arguments import Flags, Words, budget_of, count_of, split
from gpurun.bench.bisect.bisection import SearchPlan
from gpurun.bench.bisect.document import together
from gpurun.bench.bisect.driver import Search, bisect, not_searched
from gpurun.bench.store import open_store
from gpurun.commands.bench.chosen import chosen, records_home
from gpurun.commands.bench.each import of_each
from gpurun.commands.bench.output import (
    SUMMARY_VARIABLE,
    check_outputs,
    emit_json,
    emit_markdown,
    say,
    teller,
)
from gpurun.errors import ExitCode, GpurunError
from gpurun.options import BisectOptions
from gpurun.records.bisection import BisectionReport
from gpurun.records.codec import to_json
from gpurun.report.bisection import bisection_lines, bisection_markdown
from gpurun.trials.interruption import Interruption
from gpurun.verdict import print_verdict

HELP = f"""\
usage: gpurun bench bisect GOOD..BAD [flags] [script.py args...]   (or: GOOD BAD)

Which commit after GOOD, up to and with BAD, made the benchmark slower? Commits are launched in
pairs until one of them is known to be it and is confirmed against its parent; those that do not run
are skipped. The commits are those along first parents: a merged branch is one change, named by its
merge. An interrupted search goes on when the same command is given again.

exit code 0 the culprit is known, 3 it is not (no drop, or pairs or time ended, or the only suspects
cannot be measured), 4 the range cannot be searched, 5 the benchmark failed at GOOD or BAD

  --max-pairs N      pairs after which the search ends, {SearchPlan.max_pairs} by default
  --budget TIME      no pair begins that would end later: 90s, 5m, 1h
  --steps N          training steps to measure in a launch; as many as it takes by default
  --fresh            forget what an earlier search of this range has measured
  --json FILE        the result as JSON (- for stdout)
  --markdown FILE    the result as Markdown; ${SUMMARY_VARIABLE} receives it, too
  --store URL        the database of records (see gpurun bench --help)
  --trials-in-place  let launches write to your files where they cannot be isolated
  --out DIR          keep records there (default .gpurun; also GPURUN_HOME)
  --quiet            print nothing but errors and the closing verdict line
"""

FLAGS = Flags(
    switches=("fresh", "trials-in-place", "quiet", "help"),
    values=("max-pairs", "budget", "steps", "json", "markdown", "store", "out"),
)
EXAMPLE = "as in gpurun bench bisect v1.0..main train.py"


def bisect_command(argv: list[str]) -> int:
    """`gpurun bench bisect ...`: the exit codes are those of the help text."""
    options = parse_bisect(argv)
    if options is None:
        sys.stdout.write(HELP)
        return int(ExitCode.OK)
    return run_bisect(options)


def parse_bisect(argv: list[str]) -> BisectOptions | None:
    """The options of `gpurun bench bisect`; `GpurunError` where one is unknown or missing.

    Flags may stand before and after the range; what follows the script is the script's own. None
    asks for the help.
    """
    words = split(argv, FLAGS)
    if "help" in words.own:
        return None
    if words.program is None:
        raise GpurunError("bisect needs a range GOOD..BAD", EXAMPLE)
    good, dots, bad = words.program.partition("..")
    words = _further(words)
    if not dots:
        if words.program is None or words.program.endswith(".py"):
            raise GpurunError(f"bisect needs a range, and {good!r} is one commit", EXAMPLE)
        bad = words.program
        words = _further(words)
    if "help" in words.own:
        return None
    if not good or bad.startswith((".", "/")):
        raise GpurunError(f"{good}{dots}{bad} is no range GOOD..BAD", EXAMPLE)
    own = words.own
    return BisectOptions(
        good=good,
        bad=bad or "HEAD",
        script=words.program,
        args=words.args,
        max_pairs=count_of("max-pairs", own.get("max-pairs")),
        steps=count_of("steps", own.get("steps")),
        budget_seconds=budget_of(own.get("budget")),
        fresh="fresh" in own,
        trials_in_place="trials-in-place" in own,
        json=own.get("json"),
        markdown=own.get("markdown"),
        store=own.get("store"),
        out=own.get("out"),
        quiet="quiet" in own,
    )


def _further(words: Words) -> Words:
    """The words after a positional one, with the flags before it."""
    more = split(list(words.args), FLAGS)
    more.own = {**words.own, **more.own}
    return more


def run_bisect(options: BisectOptions) -> int:
    """Search each of the benchmarks that are asked for."""
    check_outputs(json=options.json, markdown=options.markdown)
    wanted = chosen(options.script, options.args, options.steps)
    home = records_home(options.out)
    store = open_store(home, options.store, notice=say)
    search = Search(
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
    with Interruption() as interruption:
        documents = of_each(
            wanted,
            interruption,
            find=lambda benchmark: bisect(benchmark, search, interruption),
            without=lambda benchmark, ending: not_searched(benchmark, search, ending),
            shown=lambda found: _shown(found, options),
            tell=search.tell,
        )
        found = together(documents)
        emit_json(options.json, to_json(found))
        emit_markdown(options.markdown, bisection_markdown(found))
        print_verdict(
            found.verdict, found.exit_code, culprit=found.culprit, slowdown=found.slowdown,
            pairs=len(found.pairs),
        )  # fmt: skip
        return found.exit_code


def _shown(found: BisectionReport, options: BisectOptions) -> list[str]:
    return bisection_lines(found) if found.verdict == "failed" or not options.quiet else []
