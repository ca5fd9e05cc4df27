"""`gpurun bench`: measure benchmarks, or compare them with a baseline."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.bench.comparison import Asked, compare
from gpurun.bench.document import SPEED, together
from gpurun.bench.gate import GatePlan
from gpurun.bench.metrics import Metric
from gpurun.bench.series import DEFAULT_LAUNCHES, measure
from gpurun.bench.store import open_store
from gpurun.config import load_config
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.box import require
from gpurun.options import BenchOptions
from gpurun.records.benchmark import BenchmarkExport, BenchmarkRecord
from gpurun.records.codec import to_json
from gpurun.records.comparison import Comparison
from gpurun.report.benchmark import record_lines
from gpurun.report.comparison import comparison_lines, comparison_markdown
from gpurun.report.terminal import PREFIX, write_plain
from gpurun.rundir import check_output, find_home, json_text, new_run, write_json, write_whole
from gpurun.tuner.interruption import Interruption
from gpurun.verdict import print_verdict

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""The file that GitHub shows on the page of a job."""

HELP = f"""\
usage: gpurun bench [flags] [script.py args...]                measure it, and keep a record
       gpurun bench --compare REF [flags] [script.py args...]  is this tree slower than REF?

Without a script: the benchmarks of gpurun.toml ([bench] script = ..., or several as
[[bench.benchmark]]). Each launch is isolated, so that it changes no file of yours.

  --compare REF      launch the merge base of REF and this tree in turn until it is decided;
                     exit code 0 pass, 1 regression, 3 inconclusive, 4 no usable baseline,
                     5 the benchmark itself failed
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


def bench(options: BenchOptions) -> int:
    """Measure or compare; the exit codes are those of the help text."""
    if options.help:
        sys.stdout.write(HELP)
        return int(ExitCode.OK)
    for flag, name in (("--json", options.json), ("--markdown", options.markdown)):
        if name is not None and name != "-":
            check_output(flag, Path(name))
    plan = GatePlan() if options.max_pairs is None else GatePlan.up_to(options.max_pairs)
    chosen = _chosen(options)
    home = _home(options)
    store = open_store(home, options.store, notice=_say)
    with Interruption() as interruption:
        if options.compare is None:
            return _measure(chosen, options, home, store.add, interruption)
        asked = Asked(
            ref=options.compare,
            home=home,
            plan=plan,
            deadline=time.monotonic() + (options.budget_seconds or math.inf),
            in_place=options.trials_in_place,
            keep=store.add,
            tell=_silent if options.quiet else _say,
        )
        return _compare(chosen, options, asked, interruption)


def _chosen(options: BenchOptions) -> tuple[Benchmark, ...]:
    """The benchmarks to launch, with what the flags say of them."""
    config = load_config(Path.cwd())
    if options.script is None:
        found = benchmarks(config)
    else:
        found = (named(config, options.script, options.args, Path.cwd()),)
    if not found:
        raise GpurunError(
            "there is no benchmark",
            'name a script, or write [bench] script = "train.py" into gpurun.toml',
        )
    for benchmark in found:
        if not (benchmark.folder / benchmark.script).is_file():
            raise GpurunError(
                f"there is no script {benchmark.folder / benchmark.script}", "check the path"
            )
    return tuple(_with_flags(benchmark, options) for benchmark in found)


def _with_flags(benchmark: Benchmark, options: BenchOptions) -> Benchmark:
    if options.steps is not None:
        benchmark = replace(benchmark, steps=options.steps)
    thresholds = dict(benchmark.thresholds)
    metrics = benchmark.metrics
    if options.metrics is not None:
        metrics = tuple(Metric(name) for name, _ in options.metrics)
        thresholds = {m: thresholds.get(m, m.default_threshold) for m in metrics}
    if options.threshold is not None:
        thresholds |= {m: options.threshold for m in SPEED if m in thresholds}
    own = {Metric(name): share for name, share in options.metrics or () if share is not None}
    return replace(benchmark, metrics=metrics, thresholds={**thresholds, **own})


def _home(options: BenchOptions) -> Path:
    try:
        return find_home(Path.cwd(), options.out)
    except OSError as error:
        raise GpurunError(
            f"records cannot be written: {error.strerror or error}",
            "make room there, or name another folder with --out",
        ) from None


# -- a comparison ----------------------------------------------------------------------------------


def _compare(
    chosen: Sequence[Benchmark], options: BenchOptions, asked: Asked, interruption: Interruption
) -> int:
    documents: list[Comparison] = []
    for benchmark in chosen:
        if len(chosen) > 1:
            asked.tell(f"benchmark {benchmark.name}")
        if documents:
            try:
                interruption.release()
            except KeyboardInterrupt:
                break
        document = compare(benchmark, asked, interruption)
        documents.append(document)
        if document.verdict == "failed" or not options.quiet:
            write_plain([f"{PREFIX}{line}" for line in comparison_lines(document)])
        if document.verdict == "interrupted":
            break
    found = together(documents)
    code = interruption.exit_code if interruption.signal is not None else found.exit_code
    _write_json(options, to_json(found))
    _write_markdown(options, comparison_markdown(found))
    print_verdict(found.verdict, code, slowdown=found.slowdown, pairs=found.pairs)
    return code


def _write_markdown(options: BenchOptions, text: str) -> None:
    if options.markdown is not None:
        place = Path(options.markdown)
        _attempt("--markdown", lambda: write_whole(place, text))
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        _attempt(SUMMARY_VARIABLE, lambda: _append(Path(summary), text))


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


# -- a measurement ---------------------------------------------------------------------------------


def _measure(
    chosen: Sequence[Benchmark],
    options: BenchOptions,
    home: Path,
    keep: Callable[[BenchmarkRecord], None],
    interruption: Interruption,
) -> int:
    tell = _silent if options.quiet else _say
    records: list[BenchmarkRecord] = []
    for benchmark in chosen:
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
    _write_json(options, to_json(one))
    verdict, code = "ok", int(ExitCode.OK)
    if any(record.error is not None for record in records):
        verdict, code = "failed", int(ExitCode.BENCHMARK_FAILED)
    if interruption.signal is not None:
        verdict, code = "interrupted", interruption.exit_code
    print_verdict(verdict, code, records=len(records))
    return code


# -- what both do ----------------------------------------------------------------------------------


def _write_json(options: BenchOptions, document: Any) -> None:
    if options.json == "-":
        sys.stdout.write(json_text(document))
        sys.stdout.flush()
    elif options.json is not None:
        place = Path(options.json)
        _attempt("--json", lambda: write_json(place, document))


def _attempt(what: str, job: Callable[[], None]) -> None:
    try:
        job()
    except OSError as error:
        _say(f"{what} could not be written: {error.strerror or error}")


def _say(line: str) -> None:
    write_plain([f"{PREFIX}{line}"])


def _silent(line: str) -> None:
    """For --quiet."""
