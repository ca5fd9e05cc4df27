"""`gpurun bench`: measure benchmarks, or judge them against a baseline."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.bench_flags import BenchOptions, parse_bench
from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import Config, load_config
from gpurun.bench.benchmark_launcher import isolation
from gpurun.bench.benchmarks import GATED, Benchmark, benchmarks
from gpurun.bench.compare.compare_sides import (
    CompareRequest,
    compare,
    compare_settings,
    not_compared,
    read_settings,
)
from gpurun.bench.compare.compare_with_records import (
    compare_stored,
    compare_with_history,
    read_results,
)
from gpurun.bench.history.branch_records import PURPOSES
from gpurun.bench.record_of_launches import (
    DEFAULT_LAUNCHES,
    Version,
    keep,
    measure,
    scaling_efficiency,
    version_here,
)
from gpurun.bench.store import open_store
from gpurun.commands.bench.bench_outputs import (
    conclude,
    emit_exports,
    shown,
)
from gpurun.commands.bench.chosen_benchmarks import chosen_by, gated, of_each, records_home
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say, teller
from gpurun.errors import ExitCode
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkExport, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import to_json
from gpurun.report.bench_text import record_lines
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.report.tracker_formats import tracked_records
from gpurun.rundir import new_run
from gpurun.trials.signal_guard import SignalGuard

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

HELP = f"""\
usage: gpurun bench [flags] [script.py args...]                measure it, and keep a record
       gpurun bench --compare REF [flags] [script.py args...]  is this tree slower than REF?
       gpurun bench --results FILE [flags]                     are stored results slower?
       gpurun bench --ab A B [flags] [script.py args...]       is it slower under B than under A?
       gpurun bench selftest [flags] [script.py args...]       can the gate fail here?
       gpurun bench bisect GOOD..BAD [flags] [script.py ...]   which commit made it slower?
       gpurun bench history [NAME]                             the records over time
       gpurun bench accept [NAME]                              move the baseline on purpose

Without a script, gpurun runs the benchmarks of gpurun.toml ([bench] script = ..., or several as
[[bench.benchmark]]). Each launch is isolated: it changes no file of yours. A
measurement without pairs takes {DEFAULT_LAUNCHES} launches.

{{flags}}
"""
FLAGS = flags_of(BenchOptions)


def bench_command(argv: list[str]) -> int:
    """`gpurun bench` without a further command."""
    return run_bench(parse_bench(argv))


def run_bench(options: BenchOptions) -> int:
    """Measure or compare; the exit codes are those of the help text."""
    check_outputs(json=options.json, markdown=options.markdown)
    for _, place in options.exports:
        check_outputs(export=place)
    options = replace(
        options, quiet=options.quiet or bool(load_config(Path.cwd()).flags.get("quiet"))
    )
    plan = GatePlan() if options.max_pairs is None else GatePlan.up_to(options.max_pairs)
    wanted = () if options.results is not None else chosen_by(options)
    home = records_home(options.out)
    store = open_store(home, options.store, notice=say)
    if options.results is not None:
        return judge_results(options, home, store)
    versions = {
        one.name: version_here(one.folder, options.commit_sha, options.branch) for one in wanted
    }
    compared = None if options.compare is None else _of_commits(store, options)
    if options.ab is not None:
        compared = _of_settings(options.ab, options.allow)
    with SignalGuard() as interruption:
        if compared is None:
            return _measure(wanted, versions, options, home, store.add, interruption)
        asked = CompareRequest(
            ref="HEAD" if options.compare is None else options.compare,
            home=home,
            plan=plan,
            deadline=time.monotonic() + (options.budget_seconds or math.inf),
            in_place=options.trials_in_place,
            keep=store.add,
            tell=teller(options.quiet),
            fail_on_training_change=options.fail_on_training_change,
            accepted=store.baselines,
            recorded=lambda name: store.query(name, purposes=PURPOSES),
        )
        return _compare(wanted, options, asked, interruption, compared)


# -- a comparison ----------------------------------------------------------------------------------

How = Callable[[Benchmark, CompareRequest, SignalGuard], Comparison]
"""Compares one benchmark."""


def _of_commits(store: BenchmarkStore, options: BenchOptions) -> How:
    def compared(
        benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
    ) -> Comparison:
        if options.from_history:
            return compare_with_history(benchmark, asked, store, options.launches, interruption)
        return compare(benchmark, asked, interruption)

    return compared


def _of_settings(names: tuple[str, str], allow: tuple[str, ...] | None) -> How:
    both = (read_settings(names[0]), read_settings(names[1]))
    config = load_config(Path.cwd())
    allowed = allow or config.allowed
    return lambda benchmark, asked, interruption: compare_settings(
        benchmark, both, asked, interruption, config.knobs, allowed
    )


def _compare(
    wanted: Sequence[Benchmark],
    options: BenchOptions,
    asked: CompareRequest,
    interruption: SignalGuard,
    compared: How,
) -> int:
    documents = of_each(
        wanted,
        interruption,
        find=lambda benchmark: compared(benchmark, asked, interruption),
        without=not_compared,
        shown=lambda found: shown(found, options),
        tell=asked.tell,
    )
    return conclude(documents, options)


# -- a measurement ---------------------------------------------------------------------------------


def _measure(
    wanted: Sequence[Benchmark],
    versions: Mapping[str, Version],
    options: BenchOptions,
    home: Path,
    into: Callable[[BenchmarkRecord], None],
    interruption: SignalGuard,
) -> int:
    tell = teller(options.quiet)
    records: list[BenchmarkRecord] = []
    for benchmark in wanted:
        mode = isolation(benchmark.folder, options.trials_in_place, tell)
        count = options.launches or DEFAULT_LAUNCHES
        version = versions[benchmark.name]
        record = measure(benchmark, new_run(home), mode, count, tell, version)
        record = replace(record, multi_gpu_scaling_efficiency=scaling_efficiency(home, record))
        keep(record, into, say)
        records.append(record)
        if record.error is not None or not options.quiet:
            write_plain([f"{PREFIX}{line}" for line in record_lines(record)])
        if interruption.signal is not None:
            break
    interruption.hold()
    one = records[0] if len(records) == 1 else BenchmarkExport(tuple(records), ())
    emit_json(options.json, to_json(one))
    emit_exports(options.exports, tracked_records(records))
    verdict, code = "ok", int(ExitCode.OK)
    if any(record.error is not None for record in records):
        verdict, code = "failed", int(ExitCode.BENCHMARK_FAILED)
    if interruption.signal is not None:
        verdict, code = "interrupted", interruption.exit_code
    print_verdict(verdict, code, records=len(records))
    return code


# -- stored results --------------------------------------------------------------------------------


def judge_results(options: BenchOptions, home: Path, store: BenchmarkStore) -> int:
    """Judge each benchmark of the file; the exit codes are those of a comparison."""
    assert options.results is not None
    records = {one.benchmark: one for one in read_results(Path(options.results))}
    config = load_config(Path.cwd())
    wanted = [gated(_benchmark(record, config), options) for record in records.values()]
    baseline = None if options.baseline is None else Path(options.baseline)
    asked = CompareRequest(
        ref="HEAD",
        home=home,
        plan=GatePlan(),
        deadline=math.inf,
        in_place=False,
        keep=store.add,
        tell=teller(options.quiet),
        fail_on_training_change=options.fail_on_training_change,
    )
    with SignalGuard() as interruption:
        documents = of_each(
            wanted,
            interruption,
            find=lambda benchmark: compare_stored(
                benchmark, records[benchmark.name], baseline, asked, store, interruption
            ),
            without=not_compared,
            shown=lambda found: shown(found, options),
            tell=asked.tell,
        )
        return conclude(documents, options)


def _benchmark(record: BenchmarkRecord, config: Config) -> Benchmark:
    """The benchmark of a record, gated as the configuration here says where it has that one."""
    known = {one.name: one for one in benchmarks(config)}
    if record.benchmark in known:
        return replace(known[record.benchmark], script=record.script, args=record.args)
    return Benchmark(
        name=record.benchmark,
        folder=Path.cwd(),
        script=record.script,
        args=record.args,
        steps=None,
        setup=None,
        env={},
        needed=(),
        metrics=GATED,
        thresholds={metric: metric.default_threshold for metric in GATED},
    )
