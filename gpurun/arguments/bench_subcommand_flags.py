"""The flags of `gpurun bench accept`, `bisect`, `history` and `selftest`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from gpurun.arguments.bench_flags import options_of
from gpurun.arguments.flag_parser import Flags, Words, filled, flags_and_names, split
from gpurun.arguments.flag_values import budget_of, moment_of
from gpurun.arguments.options import (
    AcceptOptions,
    BenchOptions,
    BisectOptions,
    HistoryOptions,
)
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import Metric

ACCEPT = Flags(switches=("quiet",), values=("reason", "record", "json", "store", "out"))


def parse_accept(argv: Sequence[str]) -> AcceptOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own, names = flags_and_names(argv, ACCEPT, "accept")
    if names and "record" in own:
        raise GpurunError("--record already names one record, of one benchmark", "drop the name")
    return filled(AcceptOptions, own, name=names[0] if names else None)


BISECT = Flags(
    switches=("fresh", "trials-in-place", "quiet"),
    values=("max-pairs", "budget", "steps", "json", "markdown", "store", "out"),
)
RANGE_EXAMPLE = "as in gpurun bench bisect v1.0..main train.py"


def parse_bisect(argv: list[str]) -> BisectOptions:
    """The options of `gpurun bench bisect`; `GpurunError` where one is unknown or missing.

    Flags may stand before and after the range; what follows the script is the script's own.
    """
    words = split(argv, BISECT)
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
    own = words.own
    return filled(
        BisectOptions,
        own,
        good=good,
        bad=bad or "HEAD",
        script=words.program,
        args=words.args,
        budget_seconds=budget_of(own.get("budget")),
    )


def _further(words: Words) -> Words:
    """The words after a positional one, with the flags before it."""
    more = split(list(words.args), BISECT)
    more.own = {**words.own, **more.own}
    return more


HISTORY = Flags(
    switches=("quiet",),
    values=("metric", "branch", "since", "until", "json", "png", "store", "out"),
)


def parse_history(argv: Sequence[str], now: datetime | None = None) -> HistoryOptions:
    """The options; `GpurunError` where one is unknown or has no good value."""
    own, names = flags_and_names(argv, HISTORY, "history")
    now = now or datetime.now(timezone.utc)
    metric = own.get("metric", Metric.THROUGHPUT.value).replace("-", "_")
    known = [one.value for one in Metric]
    if metric not in known:
        raise GpurunError(f"--metric {metric!r} is no metric", f"write one of {','.join(known)}")
    since = moment_of("since", own.get("since"), now)
    until = moment_of("until", own.get("until"), now, end=True)
    if since is not None and until is not None and since >= until:
        raise GpurunError("--since is not before --until", "name the earlier date in --since")
    name = names[0] if names else None
    return filled(HistoryOptions, own, name=name, metric=metric, since=since, until=until)


QUICK_PAIRS = 6
SELFTEST = Flags(
    switches=("quick", "trials-in-place", "quiet"),
    values=("threshold", "max-pairs", "metrics", "budget", "steps", "json", "store", "out"),
)


def parse_selftest(argv: list[str]) -> tuple[BenchOptions, bool]:
    """The options, and whether `--quick` was given."""
    words = split(argv, SELFTEST)
    quick = "quick" in words.own
    if quick and "max-pairs" in words.own:
        raise GpurunError(f"--quick is --max-pairs {QUICK_PAIRS}", "drop one of them")
    return options_of(words), quick
