"""`gpurun bench accept`: move the baseline on purpose."""

from __future__ import annotations

import getpass
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.arguments.bench_subcommand_flags import AcceptOptions, parse_accept
from gpurun.arguments.flag_table import flags_of
from gpurun.bench.history.branch_records import PURPOSES, series_key
from gpurun.bench.store import open_store
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.commands.bench.chosen_benchmarks import records_home
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict, say
from gpurun.errors import ExitCode, GpurunError
from gpurun.formatting.number_text import number
from gpurun.records.bench.benchmark import (
    INTERRUPTED,
    AcceptedBaseline,
    BenchmarkExport,
    BenchmarkRecord,
    utc_moment,
)
from gpurun.records.codec import to_json

if TYPE_CHECKING:
    from gpurun.bench.store.benchmark_store import BenchmarkStore

HELP = """\
usage: gpurun bench accept [NAME] [flags]      move the baseline on purpose

Makes the newest record of HEAD the baseline, for each benchmark (or NAME), machine and workload.
From then on `bench history` shows the level against it, and `--from-history` counts only later
records. `--compare` judges as before, and mentions baselines accepted between its sides.

{flags}

Exit code 4 if there is no record of HEAD.
"""
FLAGS = flags_of(AcceptOptions)


def accept(argv: list[str]) -> int:
    """Accept one record, or those of HEAD; exit code 4 where there is none."""
    options = parse_accept(argv)
    check_outputs(json=options.json)
    store = open_store(records_home(options.out), options.store, notice=say)
    repository = _repository(options)
    records = (
        [_named(store, options.record)]
        if options.record
        else _of_head(store, repository, options.name)
    )
    who = (repository.user() if repository is not None else None) or _login()
    accepted: list[AcceptedBaseline] = []
    for record in records:
        accepted.append(store.accept(record.id, who, options.reason))
        if not options.quiet:
            say(_line(record, accepted[-1]))
    emit_json(options.json, to_json(BenchmarkExport((), tuple(accepted))))
    print_verdict("accepted", int(ExitCode.OK), baselines=len(accepted))
    return int(ExitCode.OK)


def _repository(options: AcceptOptions) -> Repository | None:
    """The repository of the current folder; one record can be accepted without it."""
    try:
        return open_repository(Path.cwd())
    except GpurunError as error:
        if options.record is None:
            raise GpurunError(error.what, "name a record: --record ID") from None
        return None


def _named(store: BenchmarkStore, record_id: str) -> BenchmarkRecord:
    record = store.get(record_id)
    if record is None:
        raise GpurunError(
            f"{store.name} has no record {record_id}",
            "see the ids in gpurun bench history --json -",
            ExitCode.NO_BASELINE,
        )
    fault = _fault(record)
    if fault is not None:
        raise GpurunError(
            f"record {record_id} comes from a run {fault}",
            "commit, measure to the end, and accept that",
        )
    return record


def _fault(record: BenchmarkRecord) -> str | None:
    """Why a record cannot be a baseline; None where it can."""
    if record.dirty:
        return "with uncommitted changes"
    if record.status == INTERRUPTED:
        return "that was interrupted"
    return None if record.error is None else "that failed"


def _of_head(
    store: BenchmarkStore, repository: Repository | None, name: str | None
) -> list[BenchmarkRecord]:
    """The newest record of HEAD for each benchmark, fingerprint and workload."""
    assert repository is not None
    head = repository.head()
    records = [r for r in store.query(name, purposes=PURPOSES) if r.commit == head]
    good = [record for record in records if _fault(record) is None]
    newest = {series_key(record): record for record in sorted(good, key=_moment)}
    if newest:
        return list(newest.values())
    what = f"there is no record of HEAD ({short(head)})" + (f" of {name!r}" if name else "")
    if records:
        newest_fault = _fault(max(records, key=_moment))
        what = f"the newest record of HEAD ({short(head)}) comes from a run {newest_fault}"
    raise GpurunError(what, "measure it first: gpurun bench", ExitCode.NO_BASELINE)


def _moment(record: BenchmarkRecord) -> tuple[object, str]:
    return utc_moment(record.time), record.id


def _line(record: BenchmarkRecord, accepted: AcceptedBaseline) -> str:
    commit = "no commit" if record.commit is None else short(record.commit)
    rate = record.samples_per_second
    figure = "" if rate is None else f" ({number(rate)} samples/s on {record.device})"
    branch = "" if record.branch is None else f" on {record.branch}"
    words = shlex.join(record.args)
    return (
        f"accepted {record.benchmark}{f' {words}' if words else ''} of {commit}{branch}{figure} by "
        f"{accepted.accepted_by}"
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user: a bare number in a container
        return "unknown"
