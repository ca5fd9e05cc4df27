"""`gpurun bench`: measure benchmarks, or compare them with a baseline."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.compare.comparison import Asked, compare
from gpurun.bench.compare.document import together
from gpurun.bench.compare.gate import GatePlan
from gpurun.bench.compare.settings import compare_settings, read_settings
from gpurun.bench.series import DEFAULT_LAUNCHES, measure
from gpurun.bench.store import open_store
from gpurun.bench.tuned import tuned_note
from gpurun.commands.bench.chosen import chosen_by, records_home
from gpurun.commands.bench.output import (
    SUMMARY_VARIABLE,
    check_outputs,
    emit_json,
    emit_markdown,
    say,
    teller,
)
from gpurun.config import load_config
from gpurun.errors import ExitCode
from gpurun.isolation.box import require
from gpurun.options import BenchOptions
from gpurun.records.benchmark import BenchmarkExport, BenchmarkRecord
from gpurun.records.codec import to_json
from gpurun.records.comparison import Comparison
from gpurun.report.benchmark import record_lines
from gpurun.report.comparison import comparison_lines, comparison_markdown
from gpurun.report.terminal import PREFIX, write_plain
from gpurun.rundir import new_run
from gpurun.tuner.interruption import Interruption
from gpurun.verdict import print_verdict

if TYPE_CHECKING:
    from gpurun.bench.store.store import BenchmarkStore

HELP = f"""\
usage: gpurun bench [flags] [script.py args...]                measure it, and keep a record
       gpurun bench --compare REF [flags] [script.py args...]  is this tree slower than REF?
       gpurun bench --ab A B [flags] [script.py args...]       is it slower under B than under A?
       gpurun bench selftest [flags] [script.py args...]       can the gate fail, here?

Without a script: the benchmarks of gpurun.toml ([bench] script = ..., or several as
[[bench.benchmark]]). Each launch is isolated, so that it changes no file of yours.

  --compare REF      launch the merge base of REF and this tree in turn until it is decided;
                     exit code 0 pass, 1 regression, 3 inconclusive, 4 no usable baseline,
                     5 the benchmark itself failed
  --ab A B           the same for two settings of one script in this tree: files as
                     --save-settings writes them (JSON, or TOML with a table [settings]),
                     or none for the script as it is
  --allow EFFECTS    with --ab: what settings may change, of pipeline,numerics,training
  --threshold 5%     by how much throughput may get worse
  --metrics LIST     what can fail the comparison: throughput,step_time,peak_memory,energy,
                     each with a threshold of its own if you like: peak_memory=2%
  --max-pairs 16     pairs after which an undecided comparison is inconclusive
  --budget TIME      no pair begins that would end later: 90s, 5m, 1h
  --launches N       without --compare: how often it is measured, {DEFAULT_LAUNCHES} by default
  --steps N          training steps to measure in a launch; as many as it takes by default
  --json FILE        the result as JSON (- for stdout)
  --markdown FILE    the comparison as Markdown; ${SUMMARY_VARIABLE} receives it, too
  --store URL        the database of records: postgresql://user@host/database;
                     by default bench.db in the folder of records
  --trials-in-place  let launches write to your files where they cannot be isolated
  --out DIR          keep records there (default .gpurun; also GPURUN_HOME)
  --quiet            print nothing but errors and the closing verdict line
"""


def run_bench(options: BenchOptions) -> int:
    """Measure or compare; the exit codes are those of the help text."""
    if options.help:
        sys.stdout.write(HELP)
        return int(ExitCode.OK)
    check_outputs(json=options.json, markdown=options.markdown)
    plan = GatePlan() if options.max_pairs is None else GatePlan.up_to(options.max_pairs)
    wanted = chosen_by(options)
    home = records_home(options.out)
    store = open_store(home, options.store, notice=say)
    compared = None if options.compare is None else _of_commits(store)
    if options.ab is not None:
        compared = _of_settings(options.ab, options.allow)
    with Interruption() as interruption:
        if compared is None:
            return _measure(wanted, options, home, store.add, interruption)
        asked = Asked(
            ref=options.compare or "HEAD",
            home=home,
            plan=plan,
            deadline=time.monotonic() + (options.budget_seconds or math.inf),
            in_place=options.trials_in_place,
            keep=store.add,
            tell=teller(options.quiet),
        )
        return _compare(wanted, options, asked, interruption, compared)


# -- a comparison ----------------------------------------------------------------------------------

How = Callable[[Benchmark, Asked, Interruption], Comparison]
"""Compares one benchmark."""


def _of_commits(store: BenchmarkStore) -> How:
    def compared(benchmark: Benchmark, asked: Asked, interruption: Interruption) -> Comparison:
        found = compare(benchmark, asked, interruption)
        note = tuned_note(store, benchmark)
        if note is None:
            return found
        asked.tell(note)
        return replace(found, notes=(*found.notes, note))

    return compared


def _of_settings(names: tuple[str, str], allow: tuple[str, ...] | None) -> How:
    both = (read_settings(names[0]), read_settings(names[1]))
    config = load_config(Path.cwd())
    allowed = allow or tuple(effect.value for effect in config.optimize.allow)
    return lambda benchmark, asked, interruption: compare_settings(
        benchmark, both, asked, interruption, config.knobs, allowed
    )


def _compare(
    wanted: Sequence[Benchmark],
    options: BenchOptions,
    asked: Asked,
    interruption: Interruption,
    compared: How,
) -> int:
    documents: list[Comparison] = []
    for benchmark in wanted:
        if len(wanted) > 1:
            asked.tell(f"benchmark {benchmark.name}")
        if documents:
            try:
                interruption.release()
            except KeyboardInterrupt:
                break
        document = compared(benchmark, asked, interruption)
        documents.append(document)
        if document.verdict == "failed" or not options.quiet:
            write_plain([f"{PREFIX}{line}" for line in comparison_lines(document)])
        if document.verdict == "interrupted":
            break
    found = together(documents)
    code = interruption.exit_code if interruption.signal is not None else found.exit_code
    emit_json(options.json, to_json(found))
    emit_markdown(options.markdown, comparison_markdown(found))
    print_verdict(found.verdict, code, slowdown=found.slowdown, pairs=found.pairs)
    return code


# -- a measurement ---------------------------------------------------------------------------------


def _measure(
    wanted: Sequence[Benchmark],
    options: BenchOptions,
    home: Path,
    keep: Callable[[BenchmarkRecord], None],
    interruption: Interruption,
) -> int:
    tell = teller(options.quiet)
    records: list[BenchmarkRecord] = []
    for benchmark in wanted:
        mode, imperfection = require(benchmark.folder, in_place=options.trials_in_place)
        if imperfection:
            tell(imperfection)
        count = options.launches or DEFAULT_LAUNCHES
        record = measure(benchmark, new_run(home), mode, count, tell)
        keep(record)
        records.append(record)
        if record.error is not None or not options.quiet:
            write_plain([f"{PREFIX}{line}" for line in record_lines(record)])
        if interruption.signal is not None:
            break
    interruption.hold()
    one = records[0] if len(records) == 1 else BenchmarkExport(tuple(records), ())
    emit_json(options.json, to_json(one))
    verdict, code = "ok", int(ExitCode.OK)
    if any(record.error is not None for record in records):
        verdict, code = "failed", int(ExitCode.BENCHMARK_FAILED)
    if interruption.signal is not None:
        verdict, code = "interrupted", interruption.exit_code
    print_verdict(verdict, code, records=len(records))
    return code
