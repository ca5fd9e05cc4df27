"""The flags of `gpurun bench`."""

from __future__ import annotations

from gpurun.arguments.flag_parser import Words, split
from gpurun.arguments.flag_table import IN_PLACE, KEPT, QUIET, filled, flag, flags_of, refuse_idle
from gpurun.arguments.flag_values import duration_of, effects_of, fraction_of
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import GATEABLE
from gpurun.records.record import record

EXPORT_KINDS = ("customBiggerIsBetter", "customSmallerIsBetter", "bencher")
"""Documents of `--export KIND=FILE`, by the names that the trackers have for them."""
COMPARING = ("compare", "ab", "results")
STORE = "the database of records; by default bench.db in the folder of records"
STEPS = "training steps to measure in a launch; by default as many as needed"
BUDGET = "no pair begins that would end later: 90s, 5m, 1h"


def metrics_of(flag: str, text: str) -> tuple[tuple[str, float | None], ...]:
    """Names and thresholds of a list such as `throughput,peak_memory=2%`."""
    chosen: dict[str, float | None] = {}
    known = [metric.value for metric in GATEABLE]
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise GpurunError(f"--{flag}: {name!r} is no metric", f"choose among {','.join(known)}")
        chosen[name] = fraction_of(f"{flag} {name}", share) if share else None
    if not chosen:
        raise GpurunError(f"--{flag} names none", f"choose among {','.join(known)}")
    return tuple(chosen.items())


def _two(flag: str, text: str) -> tuple[str, str]:
    first, _, second = text.partition("\n")
    return first, second


@record
class BenchOptions:
    """The flags of `gpurun bench`; None where nobody said anything.

    `script` and `args`: the benchmark, None for those of the configuration. `metrics`: (name,
    threshold or None) of each that is gated. `threshold`: the fraction by which throughput and step
    time may get worse. `exports`: (tracker, file) of each document for a tracker of other make.
    """

    script: str | None = None
    args: tuple[str, ...] = ()
    compare: str | None = flag(
        "compare this tree with its merge base with REF, in live pairs (both run and take turns of "
        "a few steps), until the test decides. Exit code 0 pass, 1 regression (slower, more "
        "memory, or a loss that is no longer finite), 3 inconclusive, 4 no usable baseline, 5 the "
        "benchmark itself failed. If several apply: 5 before 1, 6, 4, 3",
        "REF",
    )
    fail_on_training_change: bool = flag(
        "exit code 6 if the loss curves differ from the baseline's by more than repeats of one "
        "side do; without this flag that is a warning",
        needs=COMPARING,
    )
    from_history: bool = flag(
        "launch this tree only, and compare it with the last 10 records of the branch: cheaper "
        "and weaker, because the machine may have drifted since",
        needs=("compare",),
    )
    ab: tuple[str, str] | None = flag(
        "compare two settings of one script in this tree: files of --save-settings (JSON, or TOML "
        "with a table [settings]), or none for the script as it is",
        "A B",
        read=_two,
    )
    results: str | None = flag(
        "launch nothing: judge results of gpurun bench --json, from any machine, against the "
        "records of earlier commits, and keep them with these; as weak as --from-history, with "
        "the same exit codes",
        "FILE",
    )
    baseline: str | None = flag(
        "use the records in this folder (.gpurun/benchmarks, copied from any machine) or file",
        "PATH",
        needs=("results",),
    )
    commit_sha: str | None = flag(
        "measure only if SHA is checked out, without changes; outside git, gpurun writes SHA into "
        "the record",
        "SHA",
        against=("results", "compare", "ab"),
    )
    branch: str | None = flag(
        "the branch that the record names; by default the one that is checked out, and where none "
        "is (as CI checks out), that of $GITHUB_HEAD_REF or $GITHUB_REF_NAME",
        "B",
        against=("results", "compare", "ab"),
    )
    allow: tuple[str, ...] | None = flag(
        "effects to allow, a list of pipeline,numerics,training",
        "EFFECTS",
        read=effects_of,
        needs=("ab",),
    )
    threshold: float | None = flag(
        "by how much throughput and step time may get worse",
        "5%",
        read=fraction_of,
        needs=COMPARING,
    )
    metrics: tuple[tuple[str, float | None], ...] | None = flag(
        "metrics that can fail the comparison: throughput,step_time,peak_memory,energy, each with "
        "its own threshold if you like: peak_memory=2%",
        "LIST",
        read=metrics_of,
        needs=COMPARING,
    )
    max_pairs: int | None = flag(
        "pairs after which an undecided comparison is inconclusive",
        "16",
        needs=COMPARING,
        against=("results", "from-history"),
    )
    budget_seconds: float | None = flag(
        BUDGET,
        "TIME",
        name="budget",
        read=duration_of,
        needs=COMPARING,
        against=("results", "from-history"),
    )
    launches: int | None = flag("number of launches (not for pairs)", "N", against=("results",))
    steps: int | None = flag(
        "training steps to measure in a launch; by default, and always in live pairs, as many as "
        "needed",
        "N",
        against=("results",),
    )
    json: str | None = flag("the result as JSON (- for stdout)", "FILE")
    output: str | None = flag("the same as --json FILE", "FILE")
    markdown: str | None = flag(
        "the comparison as Markdown; $GITHUB_STEP_SUMMARY receives it, too, and $GITHUB_OUTPUT "
        "regression=true|false and verdict=...",
        "FILE",
        needs=COMPARING,
    )
    exports: tuple[tuple[str, str], ...] = flag(
        "the figures for a tracker; may be repeated. KIND: customBiggerIsBetter or "
        "customSmallerIsBetter (tools of github-action-benchmark), bencher",
        "KIND=FILE",
        name="export",
        initial=(),
    )
    store: str | None = flag(
        "the database of records: postgresql://user@host/database; by default bench.db in the "
        "folder of records",
        "URL",
    )
    trials_in_place: bool = flag(IN_PLACE, against=("results",))
    out: str | None = flag(KEPT, "DIR")
    quiet: bool = flag(QUIET)


EXCLUDED = {
    "results": ("is for launches, and --results launches nothing", "drop it"),
    "from-history": (
        "is for pairs, and --from-history launches one side",
        "set the number of its launches with --launches",
    ),
    **dict.fromkeys(
        ("compare", "ab"),
        ("goes with measuring, not with comparing", "drop it: gpurun compares what is checked out"),
    ),
}
"""By mode, why it refuses flags that are against it, and the cure."""


def parse_bench(argv: list[str]) -> BenchOptions:
    """The options of `gpurun bench`; `GpurunError` where one is unknown or has no good value."""
    words = split(argv, flags_of(BenchOptions))
    own = words.own
    asked = [name for name in COMPARING if name in own]
    if len(asked) > 1:
        raise GpurunError(
            "--compare is for two commits, --ab for two settings and --results for stored results",
            "drop all but one of them",
        )
    if "results" in own and words.program is not None:
        raise GpurunError(
            f"--results launches nothing and takes no script ({words.program})",
            "drop the script: the results name it",
        )
    modes = {name: name in own for name in (*COMPARING, "from-history")}
    refuse_idle(flags_of(BenchOptions), own, modes, EXCLUDED)
    if asked and "from-history" not in own and "launches" in own:
        raise GpurunError(f"--launches is not for --{asked[0]}", "limit it by --max-pairs")
    return options_of(words)


def options_of(words: Words) -> BenchOptions:
    """The options; a command leaves those that it does not know at their defaults."""
    own = words.own
    return filled(
        BenchOptions,
        own,
        script=words.program,
        args=words.args,
        json=own.get("output", own.get("json")),
        exports=_exports(words.each.get("export", [])),
    )


def _exports(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """The tracker and the file of each `bencher=FILE`."""
    exports = []
    for text in texts:
        kind, _, file = text.partition("=")
        if kind not in EXPORT_KINDS or not file:
            raise GpurunError(
                f"--export {text!r} does not name a tracker and a file",
                f"write --export KIND=FILE, KIND being one of {', '.join(EXPORT_KINDS)}",
            )
        exports.append((kind, file))
    return tuple(exports)
