"""Measurements of `--optimize` as records of benchmarks: the script as it is, and as tuned.

They are files. A store enters them into its database when it is next used, so a tuning neither
waits for a database nor fails with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpurun.arguments.gpurun_toml import Config, load_config
from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.bench.benchmark_launcher import Launch, parameters_of
from gpurun.bench.benchmarks import Benchmark, benchmarks, named
from gpurun.bench.record_of_launches import TURNED, Version, record_of, version_here
from gpurun.bench.single_tree import users_side
from gpurun.bench.store.record_files import write_file
from gpurun.errors import GpurunError
from gpurun.measure.run_events import read_run
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.codec import from_json
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.records.script_arguments import masked, secrets_digest
from gpurun.records.tuning import TrialPurpose, TrialRecord, TuningReport
from gpurun.rundir import read_json
from gpurun.trials.applied_settings import AppliedSettings
from gpurun.trials.failure_cause import main_log

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore


def keep_tuning(report: TuningReport, options: Options, folder: Path, home: Path) -> None:
    """Keep what was measured in the tuning `folder` in the folder of records `home`.

    `GpurunError` where it cannot be written, or the configuration cannot be read.
    """
    benchmark = benchmark_of(load_config(Path.cwd()), options.target, Path.cwd())
    for record in records_of(report, benchmark, folder, version_here(benchmark.folder)):
        write_file(home, record)


def benchmark_of(config: Config, target: Target, folder: Path) -> Benchmark:
    """The benchmark that the configuration has for a script, else one named after it.

    Among several for one script, the one with the same arguments. `folder`: where it was launched.
    """
    here = named(config, target.path, target.args, folder)
    if target.kind is not TargetKind.SCRIPT:
        return replace(here, name=target.path, script=target.path)
    script = (folder / target.path).resolve()
    same = [one for one in benchmarks(config) if (one.folder / one.script).resolve() == script]
    exact = [one for one in same if one.args == target.args]
    return replace((*exact, *same, here)[0], args=target.args)


def records_of(
    report: TuningReport, benchmark: Benchmark, folder: Path, version: Version
) -> tuple[BenchmarkRecord, ...]:
    """A record of the script as it is, and one of the chosen settings where those were proven.

    The launches are those of the proof; without one, the record is of what was screened as it is.
    """
    if report.baseline is None:
        return ()
    base = report.baseline.knobs
    paired = _trials(report, TrialPurpose.PAIR_BASELINE, base)
    sides = [(base, paired or _trials(report, TrialPurpose.SCREEN, base))]
    if report.chosen is not None and report.chosen.knobs != base:
        chosen = report.chosen.knobs
        sides.append((chosen, _trials(report, TrialPurpose.PAIR_CANDIDATE, chosen)))
    found = []
    for knobs, trials in sides:
        read = (_launch(trial, knobs, benchmark, folder) for trial in trials)
        launches = [launch for launch in read if launch is not None]
        if launches:
            found.append(record_of(benchmark, launches, version, BenchmarkPurpose.OPTIMIZE))
    return tuple(found)


def _trials(
    report: TuningReport, purpose: TrialPurpose, knobs: Mapping[str, Any]
) -> list[TrialRecord]:
    return [
        trial
        for trial in report.trials
        if trial.purpose is purpose and trial.knobs == knobs and trial.status in ENDED_WELL
    ]


def _launch(
    trial: TrialRecord, knobs: Mapping[str, Any], benchmark: Benchmark, folder: Path
) -> Launch | None:
    """The trial as the launch of a benchmark; None where its result is gone."""
    place = folder / trial.run_dir
    try:
        result = from_json(RunResult, read_json(place / "result.json"))
    except (OSError, ValueError):
        return None
    applied = AppliedSettings(knobs, benchmark.args, {})
    start = replace(users_side(benchmark, dict(os.environ)), applied=applied)
    parameters = parameters_of(main_log(read_run(place).processes))
    return Launch(start, result, "", place, trial.seconds, parameters)


# -- what a comparison says of them ----------------------------------------------------------------


def tuned_note(store: BenchmarkStore, benchmark: Benchmark) -> str | None:
    """A note that faster settings are known for this very command; None if none are known."""
    try:
        records = store.query(benchmark.name, purposes=(BenchmarkPurpose.OPTIMIZE,))
    except GpurunError:
        return None  # what is wrong with the store was told when the records were kept
    args = benchmark.args
    command = (benchmark.script, masked(args), secrets_digest(args))
    for record in reversed(records):
        turned = {k: v for k, v in record.fingerprint.settings.items() if k not in TURNED}
        if turned and (record.script, record.args, record.secrets_sha256) == command:
            words = ", ".join(f"{name}={value}" for name, value in turned.items())
            return (
                f"--optimize found settings for {benchmark.script} on {record.time[:10]}: {words}; "
                "both sides are measured without them"
            )
    return None
