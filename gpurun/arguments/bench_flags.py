"""The flags of `gpurun bench`."""

from __future__ import annotations

from gpurun.arguments.flag_parser import Flags, Words, filled, split
from gpurun.arguments.flag_values import allow_of, budget_of, threshold_of
from gpurun.arguments.options import BenchOptions
from gpurun.errors import GpurunError
from gpurun.records.bench.metrics import GATEABLE

FLAGS = Flags(
    switches=(
        "from-history", "fail-on-training-change", "trials-in-place", "quiet",
    ),
    values=(
        "compare", "threshold", "max-pairs", "metrics", "budget", "launches", "steps", "allow",
        "json", "output", "markdown", "export", "store", "out", "results", "baseline",
        "branch",
        "commit-sha",
    ),
    pairs=("ab",),
)  # fmt: skip
EXPORT_KINDS = ("customBiggerIsBetter", "customSmallerIsBetter", "bencher")
"""Documents of `--export KIND=FILE`, by the names that the trackers have for them."""
COMPARING = ("compare", "ab", "results")
OF_COMPARE = (
    "threshold", "max-pairs", "metrics", "budget", "markdown", "fail-on-training-change",
)  # fmt: skip
"""Flags that need a comparison."""
OF_PAIRS = ("max-pairs", "budget")
"""Flags that need pairs of launches."""
OF_LAUNCHES = (*OF_PAIRS, "launches", "steps", "trials-in-place", "branch", "commit-sha")
"""Flags that need launches."""


def parse_bench(argv: list[str]) -> BenchOptions:
    """The options of `gpurun bench`; `GpurunError` where one is unknown or has no good value."""
    words = split(argv, FLAGS)
    own = words.own
    asked = [name for name in COMPARING if name in own]
    idle = [name for name in OF_COMPARE if name in own and not asked]
    if idle:
        raise GpurunError(f"--{idle[0]} needs --compare REF", "add it, as in --compare main")
    _check_alone(asked)
    _check_results(words)
    named = [flag for flag in ("commit-sha", "branch") if flag in own]
    if named and asked:
        raise GpurunError(
            f"--{named[0]} goes with measuring, not with --{asked[0]}",
            f"drop --{named[0]}: gpurun compares the commit that is checked out",
        )
    if "from-history" in own and "compare" not in own:
        raise GpurunError("--from-history needs --compare REF", "add it, as in --compare main")
    if "from-history" in own:
        for name in OF_PAIRS:
            if name in own:
                raise GpurunError(
                    f"--{name} is for pairs, and --from-history launches one side",
                    "set the number of its launches with --launches",
                )
    elif asked and "launches" in own:
        raise GpurunError(f"--launches is not for --{asked[0]}", "limit it by --max-pairs")
    if "allow" in own and "ab" not in own:
        raise GpurunError("--allow needs --ab A B", "drop it: without settings nothing is changed")
    return options_of(words)


def _check_alone(asked: list[str]) -> None:
    if len(asked) > 1:
        raise GpurunError(
            "--compare is for two commits, --ab for two settings and --results for stored results",
            "drop all but one of them",
        )


def _check_results(words: Words) -> None:
    """Refuse flags that `--results` excludes, and `--baseline` without it."""
    own = words.own
    if "results" not in own:
        if "baseline" in own:
            raise GpurunError(
                "--baseline needs --results FILE", "add it, or compare: --compare REF"
            )
        return
    if words.program is not None:
        raise GpurunError(
            f"--results launches nothing and takes no script ({words.program})",
            "drop the script: the results name it",
        )
    for name in OF_LAUNCHES:
        if name in own:
            raise GpurunError(
                f"--{name} is for launches, and --results launches nothing", "drop it"
            )


def options_of(words: Words) -> BenchOptions:
    """The options; a command leaves those that it does not know at their defaults."""
    own = words.own
    first, _, second = own.get("ab", "").partition("\n")
    return filled(
        BenchOptions,
        own,
        script=words.program,
        args=words.args,
        ab=(first, second) if "ab" in own else None,
        allow=allow_of(own.get("allow")),
        threshold=threshold_of(own.get("threshold")),
        budget_seconds=budget_of(own.get("budget")),
        metrics=_metrics(own.get("metrics")),
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


def _metrics(text: str | None) -> tuple[tuple[str, float | None], ...] | None:
    """Names and thresholds of a list such as `throughput,peak_memory=2%`."""
    if text is None:
        return None
    chosen: dict[str, float | None] = {}
    known = [metric.value for metric in GATEABLE]
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, share = word.partition("=")
        name = name.replace("-", "_")
        if name not in known:
            raise GpurunError(
                f"--metrics: {name!r} is no metric", f"choose among {','.join(known)}"
            )
        chosen[name] = threshold_of(share or None, f"--metrics {name}")
    if not chosen:
        raise GpurunError("--metrics names none", f"choose among {','.join(known)}")
    return tuple(chosen.items())
