"""The flags of `gpurun bench accept`, `bisect`, `history` and `selftest`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone

from gpurun.arguments.bench_flags import (
    BUDGET,
    STEPS,
    STORE,
    BenchOptions,
    options_of,
)
from gpurun.arguments.flag_parser import Words, flags_and_names, split
from gpurun.arguments.flag_table import (
    IN_PLACE,
    KEPT,
    QUIET,
    RECORDS,
    Flag,
    Flags,
    filled,
    flag,
    flags_of,
)
from gpurun.arguments.flag_values import duration_of, moment_of
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric
from gpurun.records.record import record


@record
class AcceptOptions:
    """The flags of `gpurun bench accept`.

    `name`: the benchmark, None for all that have a record of HEAD. `record`: the id of one record.
    """

    name: str | None = None
    reason: str = flag("the reason; gpurun shows it beside the baseline", "TEXT", initial="")
    record: str | None = flag(
        "accept this record instead (`bench history --json` has the ids)", "ID"
    )
    json: str | None = flag("the accepted records as JSON (- for stdout)", "FILE")
    store: str | None = flag(STORE, "URL")
    out: str | None = flag(RECORDS, "DIR")
    quiet: bool = flag(QUIET)


def parse_accept(argv: Sequence[str]) -> AcceptOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own, names = flags_and_names(argv, flags_of(AcceptOptions), "accept")
    if names and "record" in own:
        raise GpurunError("--record already names one record, of one benchmark", "drop the name")
    return filled(AcceptOptions, own, name=names[0] if names else None)


@record
class BisectOptions:
    """The flags of `gpurun bench bisect`; None where nobody said anything.

    `good` and `bad` name the ends of the range. `script` and `args`: the benchmark, None for those
    of the configuration.
    """

    good: str
    bad: str
    script: str | None = None
    args: tuple[str, ...] = ()
    max_pairs: int | None = flag("pairs after which the search ends", "N")
    budget_seconds: float | None = flag(BUDGET, "TIME", name="budget", read=duration_of)
    steps: int | None = flag(STEPS, "N")
    fresh: bool = flag("start again, without the pairs of an earlier search of this range")
    json: str | None = flag("the result as JSON (- for stdout)", "FILE")
    markdown: str | None = flag(
        "the result as Markdown; $GITHUB_STEP_SUMMARY receives it, too", "FILE"
    )
    store: str | None = flag("the database of records (see gpurun bench --help)", "URL")
    trials_in_place: bool = flag(IN_PLACE)
    out: str | None = flag(KEPT, "DIR")
    quiet: bool = flag(QUIET)


RANGE_EXAMPLE = "as in gpurun bench bisect v1.0..main train.py"


def parse_bisect(argv: list[str]) -> BisectOptions:
    """The options of `gpurun bench bisect`; `GpurunError` where one is unknown or missing.

    Flags may stand before and after the range; what follows the script is the script's own.
    """
    words = split(argv, flags_of(BisectOptions))
    if words.program is None:
        raise GpurunError("bisect needs a range GOOD..BAD", RANGE_EXAMPLE)
    good, dots, bad = words.program.partition("..")
    words = _further(words)
    if not dots:
        if words.program is None or words.program.endswith(".py"):
            raise GpurunError(f"bisect needs a range, and {good!r} is one commit", RANGE_EXAMPLE)
        bad = words.program
        words = _further(words)
    if not good or bad.startswith((".", "/")):
        raise GpurunError(f"{good}{dots}{bad} is no range GOOD..BAD", RANGE_EXAMPLE)
    return filled(
        BisectOptions,
        words.own,
        good=good,
        bad=bad or "HEAD",
        script=words.program,
        args=words.args,
    )


def _further(words: Words) -> Words:
    """The words after a positional one, with the flags before it."""
    more = split(list(words.args), flags_of(BisectOptions))
    more.own = {**words.own, **more.own}
    return more


METRICS = tuple(metric.value for metric in Metric)


def _metric_of(flag: str, text: str) -> str:
    metric = text.replace("-", "_")
    if metric not in METRICS:
        raise GpurunError(f"--{flag} {text!r} is no metric", f"write one of {','.join(METRICS)}")
    return metric


@record
class HistoryOptions:
    """The flags of `gpurun bench history`. `name`: the benchmark, None for all that have records.

    `since` counts, `until` does not. `branch`: None for the one that is checked out.
    """

    name: str | None = None
    metric: str = flag(
        ",".join(METRICS), "NAME", initial="throughput", default="throughput", read=_metric_of
    )
    branch: str | None = flag("the records of another branch", "NAME")
    since: datetime | None = flag(
        "2026-11-22, 2026-11-22T18:00, or 30d: so long ago (h, d, w)", "DATE"
    )
    until: datetime | None = flag("likewise; a day counts to its end", "DATE")
    json: str | None = flag("the trends as JSON (- for stdout)", "FILE")
    png: str | None = flag("a picture of them", "FILE")
    store: str | None = flag(STORE, "URL")
    out: str | None = flag(RECORDS, "DIR")
    quiet: bool = flag(QUIET)


def parse_history(argv: Sequence[str]) -> HistoryOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own, names = flags_and_names(argv, flags_of(HistoryOptions), "history")
    now = datetime.now(timezone.utc)
    since = moment_of("since", own.get("since"), now)
    until = moment_of("until", own.get("until"), now, end=True)
    if since is not None and until is not None and since >= until:
        raise GpurunError("--since is not before --until", "name the earlier date in --since")
    name = names[0] if names else None
    return filled(HistoryOptions, own, name=name, since=since, until=until)


QUICK_PAIRS = 6
OF_BENCH = (
    "threshold", "metrics", "max-pairs", "budget", "steps", "json", "store", "trials-in-place",
    "out", "quiet",
)  # fmt: skip
SELFTEST: Flags = {
    "quick": Flag("quick", f"give up after {QUICK_PAIRS} pairs each: faster, more often undecided"),
    **{name: replace(flags_of(BenchOptions)[name], needs=()) for name in OF_BENCH},
}


def parse_selftest(argv: list[str]) -> tuple[BenchOptions, bool]:
    """The options, and whether `--quick` was given."""
    words = split(argv, SELFTEST)
    quick = "quick" in words.own
    if quick and "max-pairs" in words.own:
        raise GpurunError(f"--quick is --max-pairs {QUICK_PAIRS}", "drop one of them")
    return options_of(words), quick
