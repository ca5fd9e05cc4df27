"""Outputs of `gpurun bench`: Markdown, and documents for trackers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpurun.arguments.bench_flags import BenchOptions
from gpurun.bench.unfinished import worst_with_others
from gpurun.commands.written_outputs import attempt, emit_json, emit_text, print_verdict, say
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import to_json
from gpurun.report.comparison_text import comparison_lines, comparison_markdown
from gpurun.report.tracker_formats import TRACKERS, Tracked, tracked

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
"""The file that GitHub shows on the page of a job."""
OUTPUT_VARIABLE = "GITHUB_OUTPUT"
"""The file from which later steps of a job read values."""


def emit_markdown(place: str | None, text: str) -> None:
    """To the file, and to the page of the job where there is one."""
    if place is not None:
        emit_text(place, text, "--markdown")
    _append(SUMMARY_VARIABLE, text)


def emit_exports(exports: Sequence[tuple[str, str]], runs: Sequence[Tracked]) -> None:
    """For each tracker its document; stdout for `-`."""
    for kind, place in exports:
        document = TRACKERS[kind](runs)
        if not document:
            say(f"--export {kind}: no figure for it was measured")
        emit_json(place, document, f"--export {kind}")


def _append(variable: str, text: str) -> None:
    """Add lines to the file that a variable names, if there is one."""
    place = os.environ.get(variable)

    def append() -> None:
        with Path(place or "").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{text}\n")

    if place:
        attempt(variable, append)


def conclude(documents: Sequence[Comparison], options: BenchOptions) -> int:
    """Write what was asked for, and the closing line; the exit code."""
    found = worst_with_others(documents)
    code = found.exit_code  # a signal after the last comparison changes nothing that is known
    emit_json(options.json, to_json(found))
    emit_markdown(options.markdown, comparison_markdown(found))
    emit_exports(options.exports, tracked(found))
    slower = str(found.regression_detected).lower()
    _append(OUTPUT_VARIABLE, f"regression={slower}\nverdict={found.verdict}")
    differs = None if found.training_differs is None else str(found.training_differs).lower()
    if differs is None and options.fail_on_training_change:
        differs = "unknown"
    grounds = {"pairs": found.pairs, "records": found.baseline_records}
    print_verdict(found.verdict, code, slowdown=found.slowdown, training_differs=differs, **grounds)
    return code


def shown(found: Comparison, options: BenchOptions) -> list[str]:
    """The lines of one benchmark for the terminal."""
    return comparison_lines(found) if found.verdict == "failed" or not options.quiet else []
